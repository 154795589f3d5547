"""The pass protocol: what one file in this package must define, and what every pass may read.

A pass is a frozen dataclass whose fields are its options. It maps a module to a module and a report,
a plain dict fit for JSON that says what it did and what it left alone, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ClassVar

import tvm
from tvm import relax

from ..errors import UnknownName, UsageError
from ..params import Names, ParamTable, Shared
from ..relay_ops import OPERATORS
from ..relay_ops.operator import op_name, same_places
from ..targets import Target
from .scheme_ladder import Rung

PASSES: dict[str, type[Pass]] = {}
PART = "halo.part"  # attribute of a function that computes a part of a batch, into tensors that it is given
OVERRIDE_KEYS = ("rule", "decision")
Report = dict[str, object]


@dataclass(frozen=True)
class Overrides:
    """The tables of halo.toml that speak of passes, operators and layers, checked when they are read."""

    passes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # pass name -> its options
    operators: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # operator name -> rule, decision
    layers: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # layer glob -> rule, decision

    def __post_init__(self) -> None:
        for title, tables in (("passes", self.passes), ("operators", self.operators), ("layers", self.layers)):
            for name, table in tables.items():
                if not isinstance(table, Mapping):
                    raise UsageError(f"expected a table [{title}.{name}], found {table!r}: correct halo.toml")
        for name in self.passes:
            if name not in PASSES:
                raise UnknownName("pass", name, PASSES, "(in halo.toml)")
            with_options(PASSES[name], self.passes[name])  # a mistake is one at every precision and level
        for name in self.operators:
            scheduled = [n for n, operator in OPERATORS.items() if not operator.semantic]
            if name not in scheduled:
                raise UnknownName("scheduled operator", name, scheduled, "(in halo.toml)")
        for table in (*self.operators.values(), *self.layers.values()):
            for key in table:
                if key not in OVERRIDE_KEYS:
                    raise UnknownName("override", key, OVERRIDE_KEYS, "(in halo.toml)")
            if not isinstance(table.get("decision", {}), Mapping):
                raise UsageError(f"expected a table as decision, found {table['decision']!r}: correct halo.toml")

    def of(self, operator: str, layer: str | None) -> dict[str, object]:
        """What is overridden for one operator call; a layer's table wins over the operator's."""
        merged = dict(self.operators.get(operator, {}))
        for pattern in self.matching(layer):
            merged.update(self.layers[pattern])
        return merged

    def matching(self, layer: str | None) -> list[str]:
        """The layer patterns that name `layer`."""
        return [pattern for pattern in self.layers if layer is not None and fnmatchcase(layer, pattern)]


@dataclass(frozen=True)
class Context:
    """What passes may read besides the module. Weights are never read, only `ParamRecipe`s appended."""

    params: ParamTable
    target: Target
    ranges: Mapping[str, tuple[int, int]]
    typical: Mapping[str, int]
    overrides: Overrides = field(default_factory=Overrides)
    precision: str = "fp32"  # one of config.PRECISIONS
    shared: Shared = Shared()  # with other functions over the same weights
    rung: Rung | None = None  # of the precision's schemes; None: the usual one
    elsewhere: Names = Names()  # in other functions of the model: what globs name there, they need not name here


class Pass:
    """Base class of every pass; subclassing registers it under `name`, the word of --enable and --disable."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if cls.name in PASSES:
            raise ValueError(f"pass {cls.name} is defined twice: {PASSES[cls.name]} and {cls}")
        PASSES[cls.name] = cls

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        raise AssertionError(f"pass {self.name} does nothing")


def with_options(cls: type[Pass], options: Mapping[str, object]) -> Pass:
    """An instance of `cls` with `options` from halo.toml; unknown ones are a `UsageError`."""
    known = getattr(cls, "__dataclass_fields__", {})
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(
            f"expected options of pass {cls.name} among {', '.join(known) or 'none'}, found {unknown[0]!r}: "
            "correct halo.toml"
        )
    return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in options.items()})


def replace_main(mod: tvm.IRModule, func: relax.Function) -> tvm.IRModule:
    """A copy of `mod` with another `main`."""
    mod = mod.clone()
    mod["main"] = func
    return mod


def bindings(func: relax.Function) -> list[relax.VarBinding]:
    """Variable bindings of `func` in order."""
    return [b for block in func.body.blocks for b in block.bindings if isinstance(b, relax.VarBinding)]


def with_parts(mod: tvm.IRModule, func: relax.Function) -> list[relax.Call]:
    """The calls of `func` in order; where it computes a batch part by part, those of one part."""
    found: list[relax.Call] = []
    done: set[tvm.ir.GlobalVar] = set()

    def visit(value: relax.Expr) -> None:
        if not isinstance(value, relax.Call):
            return
        if not isinstance(value.op, tvm.ir.GlobalVar) or not is_part(mod[value.op]):
            found.append(value)
        elif value.op not in done:
            done.add(value.op)
            relax.analysis.post_order_visit(mod[value.op], visit)

    relax.analysis.post_order_visit(func, visit)
    return found


def is_part(func: object) -> bool:
    """Whether `func` computes a part of a batch."""
    return isinstance(func, relax.Function) and bool(func.attrs and PART in func.attrs)


def same_type(a: relax.Type, b: relax.Type) -> bool:
    """Whether both are tensors of one element type and of equal, known shape."""
    tensors = isinstance(a, relax.TensorType) and isinstance(b, relax.TensorType) and a.dtype == b.dtype
    return tensors and same_places(a, b)


def users_of(func: relax.Function) -> dict[relax.Var, frozenset[relax.Var | None]]:
    """Of each variable, those whose value reads it; None stands for the function's result."""
    users: dict[relax.Var, set[relax.Var | None]] = {}
    for block in func.body.blocks:
        for binding in block.bindings:
            for used in relax.analysis.free_vars(binding.value):
                users.setdefault(used, set()).add(binding.var)
    for used in relax.analysis.free_vars(func.body.body):
        users.setdefault(used, set()).add(None)
    return {var: frozenset(readers) for var, readers in users.items()}


def count_calls(func: relax.Function) -> dict[str, int]:
    """How often each operator is called, `relax.` and `relax.halo.` prefixes shortened to `halo.`."""
    counts: dict[str, int] = {}
    for binding in bindings(func):
        name = op_name(binding.value).removeprefix("relax.")
        if name:
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def rebuild(func: relax.Function, rewrite: Callable[[relax.Call], relax.Expr]) -> relax.Function:
    """`func` with every bound call replaced by `rewrite(call)`, which must keep its type."""
    blocks = []
    for block in func.body.blocks:
        changed = [
            relax.VarBinding(b.var, rewrite(b.value))
            if isinstance(b, relax.VarBinding) and isinstance(b.value, relax.Call)
            else b
            for b in block.bindings
        ]
        blocks.append(type(block)(changed))
    return with_blocks(func, blocks)


def with_blocks(func: relax.Function, blocks: Sequence[relax.BindingBlock]) -> relax.Function:
    """`func` with these bindings in front of its result."""
    return relax.Function(func.params, relax.SeqExpr(blocks, func.body.body), func.ret_ty, func.is_pure, func.attrs)


def makes_tensor(call: relax.Expr) -> bool:
    """Whether `call` is of a function of TensorIR that makes one tensor."""
    return op_name(call) == "relax.call_tir" and isinstance(call.ty_args[0], relax.TensorType)
