"""The larger and the smaller of two numbers, NaN when either is: what `tirx.max` and `tirx.min` are not.

Code of `tirx.max(a, b)` is `a > b ? a : b`, which gives b for any NaN, and so loses the one in a.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

_Choice = Callable[[ir.Expr, ir.Expr], ir.Expr]


def is_nan(x: ir.Expr) -> ir.Expr:
    return tirx.isnan(x.astype("float32") if _dtype(x) == "bfloat16" else x)


def _choice(of_floats: _Choice, of_integers: _Choice) -> _Choice:
    def choose(a: ir.Expr, b: ir.Expr) -> ir.Expr:
        dtype = _dtype(a)
        if dtype == "bfloat16":  # the code generator has no test of a bfloat16 for NaN
            return of_floats(a.astype("float32"), b.astype("float32")).astype(dtype)
        return of_floats(a, b) if "float" in dtype else of_integers(a, b)

    return choose


def _dtype(x: ir.Expr) -> str:
    return str(x.dtype if hasattr(x, "dtype") else x.ty.dtype)


maximum = _choice(lambda a, b: tirx.Select(tirx.any(a > b, tirx.isnan(a)), a, b), tirx.max)
minimum = _choice(lambda a, b: tirx.Select(tirx.any(a < b, tirx.isnan(a)), a, b), tirx.min)


def at_least(x: ir.Expr, low: ir.Expr) -> ir.Expr:
    """`maximum` by one comparison, where `low` is a number."""
    return tirx.Select(x < low, low, x) if "float" in _dtype(x) else tirx.max(x, low)


def at_most(x: ir.Expr, high: ir.Expr) -> ir.Expr:
    """`minimum` by one comparison, where `high` is a number."""
    return tirx.Select(x > high, high, x) if "float" in _dtype(x) else tirx.min(x, high)


def once(value: ir.Expr) -> ir.Expr:
    """`value` with each `at_least` and `at_most` of floats as one instruction, for CPUs.

    It names x once, so that what is inlined for x does not double with every bound. `tirx.max(low, x)` gives x where
    that is NaN, in code for CPUs; on a GPU it is a function that loses it.
    """

    def bounded(node: tirx.Select) -> ir.Expr:
        test, bound, x = node.condition, node.true_value, node.false_value
        if not isinstance(bound, tirx.FloatImm) or not isinstance(test, tirx.LT | tirx.GT):
            return node
        small, large = (test.a, test.b) if isinstance(test, tirx.LT) else (test.b, test.a)
        for function, near, far in ((tirx.max, small, large), (tirx.min, large, small)):
            if tvm_ffi.structural_equal(near, x) and tvm_ffi.structural_equal(far, bound):
                return function(bound, x)
        return node

    return tvm_ffi.structural_map(value, (tirx.Select, bounded), order="post")
