"""A StableHLO module as a function of arrays that `jax.lax` carries out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from numpy.typing import NDArray

from ...errors import UnsupportedModel
from . import operations  # noqa: F401  (importing them registers the converters)
from ._operation import OPERATIONS, Operation, Value
from ._sizes import known
from .operations.control import refused_call

_MOST_OPERATIONS = 200_000  # those of a function counted for each call
_MOST_CALLS = 64  # one inside another: StableHLO has no recursion
_RETURNS = ("func.return", "stablehlo.return")


class Program:
    """The functions of a module by name; raises `UnsupportedModel` with all operations that cannot be converted."""

    def __init__(self, module: ir.Module) -> None:
        table = ir.SymbolTable(module.operation)
        found = [op for op in module.body.operations if op.operation.name == "func.func"]
        self.functions: dict[str, Any] = {
            name: table[name] for name in (ir.StringAttr(op.sym_name).value for op in found)
        }
        if "main" not in self.functions:
            raise UnsupportedModel(f"expected a function main in the module, found {sorted(self.functions)[:8]}")
        self.constants: dict[Any, NDArray[Any]] = {}  # one for one operation: a weight stays one weight
        self.rows: dict[
            int, tuple[Value, Value]
        ] = {}  # id of a tensor with an axis of one in front -> that, and without it
        self._operations = self._depth = 0
        refused: Counter[str] = Counter()
        for function in self.functions.values():
            self._look(function.operation, refused)
        if refused:
            listed = "; ".join(f"{name} ({count})" for name, count in sorted(refused.items()))
            raise UnsupportedModel(
                f"expected operations that can be converted, found {listed}: export the model without them"
            )

    def _look(self, op: Any, refused: Counter[str]) -> None:
        """Note every operation inside of `op` that the table lacks."""
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    name = inner.operation.name
                    reason = refused_call(inner.operation)
                    if reason:
                        refused[reason] += 1
                    elif name.removeprefix("stablehlo.") not in OPERATIONS and name not in _RETURNS:
                        refused[name] += 1
                    self._look(inner.operation, refused)

    @property
    def main(self) -> Any:
        return self.functions["main"]

    def __call__(self, *arguments: Value) -> list[Value]:
        return self.call("main", arguments)

    def call(self, name: str, arguments: Sequence[Value]) -> list[Value]:
        """The results of a function by name."""
        if self._depth > _MOST_CALLS or name not in self.functions:
            raise UnsupportedModel(f"expected calls of functions of the module without recursion, found one of {name}")
        self._depth += 1
        try:
            return self.block(self.functions[name].entry_block, arguments, {})
        finally:
            self._depth -= 1

    def block(
        self, block: Any, arguments: Sequence[Value], outer: dict[Any, Value], wanted: Sequence[Any] | None = None
    ) -> list[Value]:
        """The results of a block, or those of its values that are `wanted`; it sees the values of `outer`, too."""
        held = {**outer, **dict(zip(block.arguments, arguments, strict=True))}
        for wrapped in block.operations:
            op = wrapped.operation
            if op.name in _RETURNS:
                return [held[v] for v in (op.operands if wanted is None else wanted)]
            self._operations += 1
            if self._operations > _MOST_OPERATIONS:
                raise UnsupportedModel(
                    f"expected at most {_MOST_OPERATIONS} operations with functions written out, found more: "
                    "export a part of the model"
                )
            held.update(zip(op.results, self._results(op, held), strict=True))
        raise UnsupportedModel("expected blocks that return, found one that does not: the file is damaged")

    def _results(self, op: Any, held: dict[Any, Value]) -> Sequence[Value]:
        o = Operation(self, op, held)
        size = known(o)
        if size is not None:
            return [size]
        result = OPERATIONS[o.name](o)
        return list(result) if isinstance(result, list | tuple) else [result]
