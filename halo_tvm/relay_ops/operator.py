"""The operator protocol: what one file in this package must define."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import tvm
import tvm.relax.script.parser as relax_parser
import tvm_ffi
from tvm import ir, relax, s_tir, te, tirx
from tvm.relax.dpl import CallPattern, DFPattern
from tvm.script import relax as script_relax

from .. import _compat
from ..errors import Rejected
from ..plain import plain

OPERATORS: dict[str, type[Operator]] = {}

# `R.halo.<name>` in TVMScript: the parser resolves `R.` in this module, decorators in the other.
_NAMESPACE = types.SimpleNamespace()
relax_parser.halo = _NAMESPACE
script_relax.halo = _NAMESPACE

OVERRIDE = "halo.override"  # attribute and block annotation: JSON of what halo.toml asks for this call
ELEMENTWISE = 0  # TVM's OpPatternKind.kElemWise
INJECTIVE = 2  # TVM's OpPatternKind.kInjective
ACCUMULATED = ("float32", "float16", "bfloat16")  # dtypes that lose nothing when summed in float32
TAKES_STAGES = 4  # TVM's OpPatternKind.kOutEWiseFusable
OPAQUE = 8  # TVM's OpPatternKind.kOpaque: FuseOps leaves the function alone


@dataclass(frozen=True)
class Match(Mapping[DFPattern, relax.Expr]):
    """What a lift's pattern found: a call for a call pattern, a variable (or constant) for a wildcard."""

    found: Mapping[DFPattern, relax.Expr]
    variables: Mapping[relax.Expr, relax.Var]  # value of a binding -> its variable
    values: Mapping[relax.Var, relax.Expr]
    weights: frozenset[relax.Var] = frozenset()  # the parameters of the function behind its inputs
    users: Mapping[relax.Var, frozenset[relax.Var | None]] = field(default_factory=dict)  # None: main's result
    inputs: frozenset[relax.Var] = frozenset()  # of the model, also with sizes declared

    def __getitem__(self, pattern: DFPattern) -> relax.Expr:
        expr = self.found[pattern]
        return expr if isinstance(pattern, CallPattern) else self.variables.get(expr, expr)

    def __iter__(self) -> Iterator[DFPattern]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def is_param(self, expr: relax.Expr) -> bool:
        """Whether `expr` is a weight: a parameter of the function that is no input of the model."""
        return expr in self.weights

    def is_input(self, expr: relax.Expr) -> bool:
        """Whether `expr` is an input of the model."""
        return expr in self.inputs

    def value(self, expr: relax.Expr) -> relax.Expr:
        """What a variable is bound to; anything else is its own value."""
        return self.values.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def require_private(self, what: str, *patterns: DFPattern) -> None:
        """`Rejected` when a call that one of `patterns` matched is used outside the match, or is an output:
        the lifted operator would compute it a second time. Patterns of alternatives not taken are passed over."""
        inside = {self.variables[expr] for expr in self.found.values() if expr in self.variables}
        for pattern in patterns:
            if pattern in self.found:
                self.require_unread(what, self.found[pattern], inside)

    def require_unread(self, what: str, call: relax.Expr, inside: set[relax.Var]) -> None:
        """`Rejected` when something outside of the variables `inside` reads `call`: it would be computed twice."""
        var = self.variables.get(call)
        if var is not None and not self.users.get(var, frozenset()) <= inside:
            raise Rejected(f"{what} is used elsewhere too ({var.name}): it would be computed twice")


@dataclass(frozen=True)
class Lift:
    """`pattern` describes a sub-graph; `build` turns its match into the operator's call.

    `build` raises `Rejected(reason)` when the sub-graph matches but the operator cannot express it.
    """

    name: str
    pattern: DFPattern
    build: Callable[[Match], relax.Expr]
    benefit: int = 1


class Operator:
    """Base class of every operator `R.halo.<name>`; subclassing registers it."""

    name: ClassVar[str]
    fusible: ClassVar[bool] = True  # FuseOps may join element-wise neighbours to it
    takes_stages: ClassVar[bool] = (
        False  # FuseOps joins what follows, and never what is in front: it is read many times
    )
    injective: ClassVar[bool] = False  # one load per element, which TVM's analysis cannot see (a data-dependent index)
    semantic: ClassVar[bool] = False  # has `expand` and never reaches a schedule
    in_vectors: ClassVar[bool] = False  # its kernel is of LLVM's vectors: other targets expand it
    writes: ClassVar[Mapping[int, int]] = {}  # result -> the argument whose memory it is: written in place
    counts_symbols: ClassVar[bool] = False  # `flops` takes symbolic sizes, and is better than counting the body

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if abstract:  # what several operators share
            return
        if cls.name in OPERATORS:
            raise ValueError(f"operator halo.{cls.name} is defined twice: {OPERATORS[cls.name]} and {cls}")
        OPERATORS[cls.name] = cls
        _compat.register_relax_op(cls.full_name(), cls.__doc__ or "")
        ir.register_op_attr(cls.full_name(), "FInferType", lambda call, _ctx=None: cls.infer_type(call))
        ir.register_op_attr(cls.full_name(), "FLegalize", cls._legalize)
        ir.register_op_attr(cls.full_name(), "FPurity", True)
        setattr(_NAMESPACE, cls.name, cls.call)

    @classmethod
    def full_name(cls) -> str:
        return f"relax.halo.{cls.name}"

    @classmethod
    def written_by(cls, attrs: Mapping[str, object]) -> Mapping[int, int]:
        """`writes` of a call with these attributes."""
        return cls.writes

    @classmethod
    def call(cls, *args: relax.Expr, **attrs: object) -> relax.Call:
        """A call of the operator; `attrs` with the value None are left out."""
        kept = {key: value for key, value in attrs.items() if value is not None}
        return relax.Call(ir.Op.get(cls.full_name()), list(args), ir.make_node("ir.DictAttrs", **kept))

    @classmethod
    def _legalize(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        """Lower to one PrimFunc whose attribute `halo.call` remembers the operator and its attributes.

        Fusion drops function attributes, so rules for fusible operators look for the block annotation
        `halo.op` that `compute` sets; rules that replace a whole operator read `halo.call`.
        """
        attrs = attrs_of(call)
        compute_attrs = {k: v for k, v in attrs.items() if k != "layer"}
        asked = str(call.attrs[OVERRIDE]) if call.attrs and OVERRIDE in call.attrs.keys() else ""
        key = _same(call, f"{cls.name} {compute_attrs} {asked}")
        known = _LOWERED.get(key) if key is not None else None
        if known is not None:  # by an equal call, of another layer or function
            types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
            return relax.call_tir(bb.add_func(known, cls.name), relax.Tuple(list(call.args)), types)
        out = bb.call_te(cls.compute, *call.args, primfunc_name_hint=cls.name, **compute_attrs)
        gvar = out.args[0]
        func = bb.get()[gvar].with_attr("halo.call", {"op": cls.name, **compute_attrs})
        if cls.takes_stages or cls.injective or not cls.fusible:
            pattern = TAKES_STAGES if cls.takes_stages else INJECTIVE if cls.injective else OPAQUE
            func = func.with_attr("op_pattern", pattern)
        if asked:
            func = annotated(func, cls.name, asked)
        bb.update_func(gvar, func)
        if key is not None and tvm_ffi.structural_equal(out.ty_args[0], call.ty):
            while len(_LOWERED) >= _MOST_LOWERED:
                del _LOWERED[next(iter(_LOWERED))]
            _LOWERED[key] = func
        return out

    @classmethod
    def _added(cls, bb: relax.BlockBuilder, call: relax.Call, func: tirx.PrimFunc) -> ir.GlobalVar:
        """`func`, which the operator wrote for `call` itself, in the module of `bb`: fusion leaves it alone."""
        attrs = {k: v for k, v in attrs_of(call).items() if k != "layer"}
        func = func.with_attr("halo.call", {"op": cls.name, **attrs})
        if call.attrs and OVERRIDE in call.attrs.keys():
            func = annotated(func, cls.name, str(call.attrs[OVERRIDE]))
        return bb.add_func(func.with_attr("op_pattern", OPAQUE), cls.name)

    # What a subclass gives. `compute` names its main block and sets attrs={"halo.op": name} on it.
    infer_type: ClassVar[Callable[[relax.Call], relax.Type]]
    compute: ClassVar[Callable[..., te.Tensor]]
    reference: ClassVar[Callable[..., np.ndarray]]  # NumPy, at the precision of its inputs
    flops: ClassVar[Callable[..., int]]  # (shapes: list[tuple[int, ...]], **attrs)
    cases: ClassVar[Callable[[], Sequence[Mapping[str, object]]]]  # {"args": [shape | array], "attrs": {...}}

    @staticmethod
    def lifts() -> Sequence[Lift]:
        """Spellings of the operator that importers leave behind."""
        return ()

    @classmethod
    def expand(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        """Rewrite a semantic operator as smaller ones; only called when `semantic`, or `in_vectors` elsewhere."""
        raise AssertionError(f"halo.{cls.name} is not semantic")


# What calls were lowered to, the oldest forgotten: a model has the same call in every layer.
_LOWERED: dict[Hashable, tirx.PrimFunc] = {}
_MOST_LOWERED = 512


def _same(call: relax.Call, words: str) -> Hashable | None:
    """What two calls that are lowered to one function have in common; None where that cannot be told from types."""
    dims: dict[ir.Var, int] = {}
    types: list[Hashable] = []
    for arg in call.args:
        if not shaped(arg.ty):
            return None
        shape: list[Hashable] = []
        for dim in arg.ty.shape.values:
            if isinstance(dim, tirx.IntImm):
                shape.append(int(dim))
            elif isinstance(dim, ir.Var):  # its name is what typical sizes and reports know it by
                shape.append((dim.name, dims.setdefault(dim, len(dims))))
            else:
                return None
        types.append((str(arg.ty.dtype), *shape))
    return (words, *types)


def attrs_of(call: relax.Call) -> dict[str, object]:
    """The attributes of an operator call as plain Python values, without what halo.toml asks for it."""
    keys = call.attrs.keys() if call.attrs else ()
    return {str(key): plain(call.attrs[key]) for key in keys if str(key) != OVERRIDE}


def operator_of(expr: relax.Expr) -> type[Operator] | None:
    """The operator an expression calls, or None when it is not a `halo` call."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) and expr.op.name.startswith("relax.halo."):
        return OPERATORS[expr.op.name.removeprefix("relax.halo.")]
    return None


def annotated(func: tirx.PrimFunc, op: str, override: str) -> tirx.PrimFunc:
    """`func` with the override on its main block, where it survives fusion and keeps the function apart.

    A loop nest of its own kind, without the root block of TE, is never fused: there the function itself carries it.
    """
    if getattr(getattr(func.body, "block", None), "name_hint", "") != "root":
        return func.with_attr(OVERRIDE, override)
    schedule = s_tir.Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if schedule.get(block).annotations.get("halo.op") == op:
            schedule.annotate(block, OVERRIDE, override)
    mod = schedule.mod
    return mod[mod.get_global_vars()[0]].with_attrs({key: func.attrs[key] for key in func.attrs.keys()})


def op_name(expr: object) -> str:
    """`relax.add` for a call of a registered operator, else the empty string."""
    return expr.op.name if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) else ""


# They give the elements of their operand other sizes, in the same order.
RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


def order_of(call: relax.Call) -> list[int]:
    """Axis a of the permute_dims `call` is this axis of its operand."""
    rank = call.args[0].ty.ndim
    return list(range(rank))[::-1] if call.attrs.axes is None else [int(a) % rank for a in call.attrs.axes]


def number_of(expr: relax.Expr) -> float | None:
    """The number of a one-element constant, else None."""
    if not isinstance(expr, ir.GenericConst):
        return None
    data = expr.value.numpy()
    return float(data.reshape(-1)[0]) if data.size == 1 and np.issubdtype(data.dtype, np.number) else None


def required_number(expr: relax.Expr, label: str) -> float:
    """The number of a one-element constant; `Rejected` for anything else."""
    number = number_of(expr)
    if number is None:
        raise Rejected(f"{label} must be a scalar constant, got shape {expr.value.numpy().shape}")
    return number


def shaped(ty: object) -> bool:
    """Whether `ty` is that of a tensor whose sizes are known, as numbers or expressions."""
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)


def same_dimension(a: ir.Expr | int, b: ir.Expr | int) -> bool:
    """Whether two dimensions are provably equal."""
    return tvm.sym.Analyzer().can_prove_equal(a, b)


def require_float(*operands: relax.Expr, out_dtype: object = None) -> None:
    """`Rejected` unless float32 accumulation serves the operands and the result has their dtype."""
    dtypes = [str(operand.ty.dtype) for operand in operands]
    if dtypes[0] not in ACCUMULATED or len(set(dtypes)) != 1:
        raise Rejected(f"accumulates in float32, so operands must be {', '.join(ACCUMULATED)}, got {', '.join(dtypes)}")
    if out_dtype and str(out_dtype) not in ("void", dtypes[0]):
        raise Rejected(f"the result must have the operands' dtype {dtypes[0]}, got {out_dtype}")


def same_shape(a: Sequence[ir.Expr | int], b: Sequence[ir.Expr | int]) -> bool:
    """Whether two lists of dimensions are provably equal."""
    analyzer = tvm.sym.Analyzer()
    return len(a) == len(b) and all(analyzer.can_prove_equal(x, y) for x, y in zip(a, b))


def same_places(a: relax.Type, b: relax.Type) -> bool:
    """Whether two types are of tensors whose shapes are known and provably equal."""
    return shaped(a) and shaped(b) and same_shape(a.shape.values, b.shape.values)


def clamped(index: ir.Expr, n: ir.Expr | int) -> ir.Expr:
    """`index` as int64 within 0..n-1, so that no kernel reads foreign memory."""
    index = index.astype("int64")
    last = tirx.const(n - 1, "int64") if isinstance(n, int) else n - 1
    return tirx.max(tirx.min(index, last), tirx.const(0, "int64"))


def chosen(condition: ir.Expr, value: ir.Expr, other: ir.Expr) -> ir.Expr:
    """`value` where `condition` holds, else `other`; vectors read both, each at the places that it says.

    TVM simplifies what a `Select` gives as if its condition held: places of loads lose what keeps them within their
    tensors, `clamped` and the like. It does not look through the number here, which is chosen and not converted, as
    TVM bounds what it names and has no bounds of vectors of truth.
    """
    one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
    return tirx.Select(tirx.Select(condition, one, zero) > zero, value, other)


def f32(value: te.Tensor) -> te.Tensor:
    """`value` as float32, the precision every operator accumulates in."""
    return value if value.dtype == "float32" else value.astype("float32")
