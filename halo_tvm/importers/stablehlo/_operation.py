"""One operation of StableHLO while it is carried out, and the table of those that can be.

    @operation("tanh")
    def tanh(o: Operation) -> Value: ...

A value is an array that jax traces, or a NumPy array that is known: of constants, or of sizes (see `_sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax import numpy as jnp
from jaxlib.mlir import ir
from numpy.typing import NDArray

from ...errors import UnsupportedModel
from ._counter import Counter, NoScan, Unread, counters

if TYPE_CHECKING:
    from ._program import Program

Value: TypeAlias = "jax.Array | NDArray[Any]"
Converter = Callable[["Operation"], "Value | Sequence[Value]"]

OPERATIONS: dict[str, Converter] = {}

_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "complex<f32>": "complex64",
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def operation(*names: str) -> Callable[[Converter], Converter]:
    """Register a function for operations by their names in the dialect `stablehlo`."""

    def register(function: Converter) -> Converter:
        for name in names:
            assert name not in OPERATIONS, f"two converters for {name}"
            OPERATIONS[name] = function
        return function

    return register


def dtype_of(kind: ir.Type) -> np.dtype[Any]:
    """The dtype of the elements of a tensor's type."""
    element = str(ir.RankedTensorType(kind).element_type) if isinstance(kind, ir.RankedTensorType) else str(kind)
    if element not in _DTYPES:
        raise UnsupportedModel(f"expected tensors of numbers, found one of {element}: export the model without it")
    return jnp.dtype(_DTYPES[element])


def traced(value: Value) -> Value:
    """`value` for `jax.lax`: sizes that are not known become the number that they are at run time."""
    if isinstance(value, Unread):
        raise NoScan
    if isinstance(value, np.ndarray) and value.dtype == object:
        numbers = [v.array if isinstance(v, Counter) else jnp.asarray(v, "int32") for v in value.reshape(-1)]
        return jnp.stack(numbers).reshape(value.shape) if value.ndim else numbers[0]
    return value


class Operation:
    """Operands by position, attributes by name, what the results are."""

    def __init__(self, program: Program, op: Any, held: dict[Any, Value]) -> None:
        self.program, self.op, self.held = program, op, held
        self.name: str = op.name.removeprefix("stablehlo.")
        self.known: list[Value] = [held[v] for v in op.operands]  # sizes as they are

    @property
    def values(self) -> list[Value]:
        """The operands as arrays of the dtypes that the file says."""
        return [jnp.asarray(traced(v), dtype_of(o.type)) for v, o in zip(self.known, self.op.operands, strict=True)]

    @property
    def x(self) -> Value:
        """The first operand, alone: what shapes are made of would be left in the jaxpr for nothing."""
        return jnp.asarray(traced(self.known[0]), dtype_of(self.op.operands[0].type))

    @property
    def dtype(self) -> np.dtype[Any]:
        return dtype_of(self.op.results[0].type)

    def sizes(self, index: int) -> tuple[Any, ...]:
        """The operand `index` as sizes."""
        value = self.known[index]
        if counters(value):
            raise NoScan
        if not isinstance(value, np.ndarray):
            raise UnsupportedModel(
                f"expected sizes that follow from those of the inputs, found others in {self.op.name}: "
                "fix the sizes with --shape"
            )
        return tuple(v if not isinstance(v, np.generic) else int(v) for v in value.reshape(-1))

    # Attributes.

    def has(self, name: str) -> bool:
        return name in self.op.attributes

    def number(self, name: str) -> int:
        return int(ir.IntegerAttr(self.op.attributes[name]).value)

    def flag(self, name: str) -> bool:
        return self.has(name) and bool(ir.BoolAttr(self.op.attributes[name]).value)

    def text(self, name: str) -> str:
        """A string, or the case of an enumeration: `#stablehlo<comparison_direction LT>` is LT."""
        attribute = self.op.attributes[name]
        if isinstance(attribute, ir.StringAttr):
            return str(attribute.value)
        if isinstance(attribute, ir.FlatSymbolRefAttr):
            return str(attribute.value)
        return str(attribute).rstrip(">").split()[-1]

    def numbers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """A list of integers; `default` where the attribute is left out."""
        if not self.has(name):
            assert default is not None, f"{self.op.name} without {name}"
            return list(default)
        return [int(v) for v in _array(self.op.attributes[name]).reshape(-1)]

    def pairs(self, name: str, count: int) -> list[tuple[int, int]]:
        """Low and high for each of `count` axes; zeros where the attribute is left out."""
        flat = self.numbers(name, [0] * 2 * count)
        return list(zip(flat[::2], flat[1::2], strict=True))

    # Regions.

    def region(self, place: int = 0) -> Callable[..., list[Value]]:
        """The function of the region number `place`, which sees what its surroundings hold."""
        (block,) = self.op.regions[place].blocks

        def run(*arguments: Value) -> list[Value]:
            return self.program.block(block, arguments, self.held)

        return run

    def refuse(self, what: str) -> UnsupportedModel:
        """The error that says what of this operation cannot be carried out; the caller raises it."""
        return UnsupportedModel(
            f"expected operations that can be converted, found {self.op.name} with {what}: export the model without it"
        )


def _array(attribute: ir.Attribute) -> NDArray[Any]:
    for kind in (ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr):
        if isinstance(attribute, kind):
            return np.array(list(attribute))
    return np.array(ir.DenseIntElementsAttr(attribute))
