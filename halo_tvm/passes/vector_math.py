"""Calls of the C library's functions become polynomials that vectorise, in every PrimFunc.

Before -> after
    exp(x), exp2(x), tanh(x), erf(x), sigmoid(x), log(x), log2(x), log10(x), log1p(x), sin(x), cos(x), tan(x),
    asin(x), acos(x), atan(x), atan2(y, x)
        ->   polynomials in float32 (float16 and bfloat16, but for atan2: through float32), see `code.vector_math`,
             `code.trigonometry` and `code.inverse_trigonometry`
    x * (0.5 + 0.5 * erf(x * sqrt(1/2))), however the constants are spread
    x * (0.5 + 0.5 * tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x * x))), likewise
        ->   a polynomial for the whole GELU: no cancellation, and no division as in tanh
    isnan(x)
        ->   a comparison of its bits: TVM has no vectors of that call
    pow(x, 1 | 2 | 3 | 4 | 0.5 | -0.5 | -1)
        ->   multiplications, a square root, a division
    pow(x, y) of any other float of at most 32 bits, on CPUs
        ->   logarithm and power in float64, see `code.power`
    functions of functions, choices between choices
        ->   what is used several times stored in a local buffer of the loop's lanes, see `_stages`
Leaves
    float64; every other function of the C library (sinh, acosh, ...): counted in the report
Why
    The code generator turns such a call on a vector into one scalar call per element, 8 to 18 times
    slower.
Order
    After scheduling: then every use has its own variables, whatever was inlined where, and a vectorised loop is known,
    which has a stage for each of its lanes. A loop that is vectorised later would share one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ..tir_schedules.blocks import uses
from ..tir_schedules.code import inverse_trigonometry, power, trigonometry, vector_math
from ..tir_schedules.code.bits import dtype_of, is_nan, kind_of, with_lanes
from ..tir_schedules.code.lets import hoist_lets, let
from ..tir_schedules.code.vector_math import gelu, gelu_tanh
from ._bfloat16 import COMPARISONS, as_float32, can_widen, compared, is_bfloat16, rounded, widened
from ._stages import Stages
from ._wide_buffers import with_wide_buffers
from .graph_pass import Context, Pass, Report

_NARROW = vector_math.BUILDERS | inverse_trigonometry.BUILDERS
BUILDERS = _NARROW | trigonometry.BUILDERS
SCALAR_LIBRARY = frozenset(
    {
        "pow",
        "exp10",
        "sinh",
        "cosh",
        "atan2",
        "asinh",
        "acosh",
        "atanh",
        "hypot",
    }
)


@dataclass(frozen=True)
class VectorMath(Pass):
    """Replace calls of transcendental functions by expressions that vectorise.

    The report counts by function name: `rewritten`, and `left` as scalar calls.
    """

    name = "vector_math"

    def __call__(self, mod: tvm.IRModule, context: Context | None = None) -> tuple[tvm.IRModule, Report]:
        rewritten: Counter[str] = Counter()
        left: Counter[str] = Counter()
        out = mod.clone()
        for gvar, func in list(mod.functions.items()):  # a list: updating a module while walking it corrupts memory
            if isinstance(func, tirx.PrimFunc):
                out[gvar] = rewrite_function(func, rewritten, left)
        return out, {"rewritten": dict(sorted(rewritten.items())), "left": dict(sorted(left.items()))}


def rewrite_function(
    func: tirx.PrimFunc, rewritten: Counter[str], left: Counter[str], *, wide: bool = True
) -> tirx.PrimFunc:
    """One PrimFunc rewritten; the two counters are increased by function name.

    wide: whether float64 is half as fast as float32, as on CPUs; else functions that need it are left
    """
    stages = Stages()
    builders = BUILDERS if wide else _NARROW

    def replace(call: ir.Call) -> Expr:
        if not isinstance(call.op, ir.Op):
            return call
        name = call.op.name.rpartition(".")[2]
        new = None
        if name == "isnan":
            number = as_float32(call.args[0]) if is_bfloat16(call.args[0]) else call.args[0]
            return is_nan(number) if str(dtype_of(number)).startswith("float") else call
        if name == "pow":
            new = _constant_power(*call.args)
            if new is None and wide:
                new = _power(call, stages.closed)
        elif name == "atan2" and all(str(dtype_of(arg)).startswith("float32") for arg in call.args):
            y, x = map(stages.closed, call.args)
            new = inverse_trigonometry.atan2(y, x, stages.closed)
        elif name in builders and can_widen(call.args[0]):
            new = tirx.Cast("bfloat16", builders[name](stages.closed(widened(call.args[0]))))
        elif name in builders:
            new = _in_float32(lambda x: builders[name](stages.closed(x)), call.args[0])
        if new is not None:
            rewritten[name] += 1
            return new
        if name in BUILDERS or name in SCALAR_LIBRARY:
            left[name] += 1
        return call

    def flat(store: tirx.BufferStore) -> tirx.BufferStore:
        value = hoist_lets(store.value)
        if isinstance(value, tirx.Let) and can_widen(store.value):
            value = hoist_lets(rounded(widened(store.value)))
        return tirx.BufferStore(store.buffer, stages.cut(value), store.indices)

    def whole_gelu(node: tirx.Mul) -> Expr:
        found = gelu_of(node)
        if found is None:
            return node
        name, factor, x = found
        rewritten[name] += 1
        value = _GELUS[name](stages.closed(x))
        return value if factor == 1.0 else tirx.const(factor, "float32") * value

    # GELU first: it is recognised by its erf or tanh. No callback may raise: that kills the process.
    func = with_wide_buffers(func) if wide else func
    func = tvm_ffi.structural_map(func, (tirx.Mul, whole_gelu), order="post")
    func = tvm_ffi.structural_map(func, (tirx.Select, stages.chosen), order="pre")
    steps = (
        (ir.Call, replace),
        (tirx.Cast, _lengthened),
        *((kind, compared) for kind in COMPARISONS),
        (tirx.BufferStore, flat),
        (tirx.For, lambda loop: stages.in_lanes(_without_shared(loop))),
    )
    return stages.elsewhere(tvm_ffi.structural_map(func, steps, order="post"))


def _without_shared(loop: tirx.For) -> tirx.For:
    """`loop` without lanes where all of them store one bfloat16: TVM forgets its type. LLVM makes a vector of it."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    shared: list[tirx.BufferStore] = []
    lanes = tvm.sym.Analyzer()
    lanes.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))

    def visit(store: tirx.BufferStore) -> None:
        if is_bfloat16(store.value) and not uses(lanes.simplify(store.value), loop.loop_var):
            shared.append(store)

    tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, visit), order="post")
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body) if shared else loop


def _lengthened(cast: tirx.Cast) -> Expr:
    """A conversion from bfloat16 to float32, and from that to others: TVM would convert the bits inside of a `Let`."""
    if is_bfloat16(cast) or not is_bfloat16(cast.value):
        return cast
    value = as_float32(cast.value)
    return value if str(dtype_of(cast)) == "float32" else tirx.Cast(str(dtype_of(cast)), value)


def gelu_of(product: tirx.Mul) -> tuple[str, float, Expr] | None:
    """(name, f, x) when `product` is f * gelu(x) in float32, written with erf or tanh; else None."""
    for left, right in ((product.a, product.b), (product.b, product.a)):
        outer, x = _split_constant(left)
        inner, total = _split_constant(right)
        if not isinstance(total, tirx.Add) or str(dtype_of(product)) != "float32":
            continue
        for one, scaled in ((total.a, total.b), (total.b, total.a)):
            weight, call = _split_constant(scaled)
            if not (isinstance(one, tirx.FloatImm) and isinstance(call, ir.Call) and isinstance(call.op, ir.Op)):
                continue
            found = _POLYNOMIALS.get(call.op.name)
            if found is None or float(one.value) != weight:
                continue
            name, wanted = found
            if _is_close(_coefficients(call.args[0], x), wanted):
                return name, 2.0 * outer * inner * weight, x
    return None


_GELUS = {"gelu": gelu, "gelu_tanh": gelu_tanh}
# The function in a GELU -> its name, and the coefficients of the polynomial in x that the function is of.
_POLYNOMIALS = {
    "tirx.erf": ("gelu", (0.0, 0.5**0.5)),
    "tirx.tanh": ("gelu_tanh", (0.0, (2 / math.pi) ** 0.5, 0.0, 0.044715 * (2 / math.pi) ** 0.5)),
}
_HIGHEST_POWER = 3


def _is_close(found: tuple[float, ...] | None, wanted: tuple[float, ...]) -> bool:
    return found is not None and len(found) == len(wanted) and all(abs(f - w) < 1e-7 for f, w in zip(found, wanted))


def _coefficients(expr: Expr, x: Expr) -> tuple[float, ...] | None:
    """Those of `expr` as a polynomial in `x`, from the constant on; None when it is none of at most the third power."""
    if tvm_ffi.structural_equal(expr, x):
        return 0.0, 1.0
    if isinstance(expr, tirx.FloatImm):
        return (float(expr.value),)
    if isinstance(expr, tirx.Div) and isinstance(expr.b, tirx.FloatImm) and float(expr.b.value) != 0.0:
        above = _coefficients(expr.a, x)
        return None if above is None else tuple(c / float(expr.b.value) for c in above)
    if not isinstance(expr, (tirx.Add, tirx.Mul)):
        return None
    a, b = _coefficients(expr.a, x), _coefficients(expr.b, x)
    if a is None or b is None:
        return None
    if isinstance(expr, tirx.Add):
        return tuple(p + q for p, q in itertools.zip_longest(a, b, fillvalue=0.0))
    if len(a) + len(b) - 2 > _HIGHEST_POWER:
        return None
    out = [0.0] * (len(a) + len(b) - 1)
    for (i, p), (j, q) in itertools.product(enumerate(a), enumerate(b)):
        out[i + j] += p * q
    return tuple(out)


def _split_constant(expr: Expr) -> tuple[float, Expr]:
    """(c, rest) for c * rest, rest * c or rest / (1/c); (1, expr) for anything else."""
    if isinstance(expr, tirx.Mul):
        for constant, rest in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(constant, tirx.FloatImm):
                return float(constant.value), rest
    if isinstance(expr, tirx.Div) and isinstance(expr.b, tirx.FloatImm) and float(expr.b.value) != 0.0:
        return 1.0 / float(expr.b.value), expr.a
    return 1.0, expr


def _in_float32(builder: Callable[..., Expr], *args: Expr) -> Expr | None:
    """`builder` applied to `args` in float32 and rounded back, or None for a dtype it does not serve."""
    kind = kind_of(args[0])
    if kind == "float32":
        return builder(*args)
    if kind in ("float16", "bfloat16"):
        wide = with_lanes("float32", args[0])
        return tirx.Cast(with_lanes(kind, args[0]), builder(*(tirx.Cast(wide, arg) for arg in args)))
    return None


def _power(call: ir.Call, keep: Callable[[Expr], Expr]) -> Expr | None:
    """Any power of a float of at most 32 bits."""
    x, y = call.args
    if can_widen(x) and can_widen(y):
        return tirx.Cast("bfloat16", power.power(keep(widened(x)), keep(widened(y)), keep))
    return _in_float32(lambda x, y: power.power(keep(x), keep(y), keep), x, y)


def _constant_power(x: Expr, exponent: Expr) -> Expr | None:
    """x^c for the constants that models use, or None."""
    if isinstance(exponent, tirx.Broadcast):
        exponent = exponent.value
    if not isinstance(exponent, tirx.FloatImm) or not str(x.ty.dtype).startswith("float"):
        return None
    one = tirx.const(1.0, str(x.ty.dtype))
    powers: dict[float, Callable[[Expr], Expr]] = {
        1.0: lambda v: v,
        2.0: lambda v: v * v,
        3.0: lambda v: v * v * v,
        4.0: lambda v: let(v * v, lambda s: s * s),
        0.5: tirx.sqrt,
        -0.5: lambda v: one / tirx.sqrt(v),
        -1.0: lambda v: one / v,
    }
    build = powers.get(float(exponent.value))
    return None if build is None else let(x, build)
