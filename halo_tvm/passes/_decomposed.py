"""Recognise activations that an exporter wrote out as arithmetic.

A product is read as a set of factors, so the order and the brackets of its multiplications do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tvm import relax

from ..relay_ops.operator import number_of
from .graph_pass import op_name

Value = Callable[[relax.Expr], relax.Expr]
TOLERANCE = 1e-6  # relative; exporters round constants to float32 or to ten digits
MOST_FACTORS = 8  # deeper products are no activation


def activation_of(call: relax.Call, value: Value) -> tuple[str, relax.Expr] | None:
    """("gelu", "gelu_tanh" or "silu", x) when the product `call` is that activation of x, else None."""
    for factor in _leaves(call, value):
        inner = value(factor)
        if op_name(inner) == "relax.sigmoid" and _is_product(call, 1.0, [inner.args[0], factor], value):
            return "silu", inner.args[0]
        bent = _plus_one(inner, value)
        if bent is None:
            continue
        for name, argument in (("gelu", "relax.erf"), ("gelu_tanh", "relax.tanh")):
            if op_name(value(bent)) != argument:
                continue
            within = value(bent).args[0]
            candidates = _scaled(within, math.sqrt(0.5), value) if name == "gelu" else _cubic(within, value)
            for x in candidates:
                if _is_product(call, 0.5, [x, factor], value):
                    return name, x
    return None


def _factors(expr: relax.Expr, value: Value, stop: list[relax.Expr]) -> tuple[float, list[relax.Expr]]:
    """The constant and the other factors of a product; members of `stop` are not taken apart."""
    constant, found, open_ = 1.0, [], [expr]
    while open_ and len(found) <= MOST_FACTORS:
        part = open_.pop()
        inner = value(part)
        number = number_of(inner)
        if number is not None:
            constant *= number
        elif any(part.same_as(s) for s in stop):
            found.append(part)
        elif op_name(inner) == "relax.multiply":
            open_.extend(inner.args)
        elif op_name(inner) == "relax.divide" and number_of(value(inner.args[1])):
            constant /= number_of(value(inner.args[1]))
            open_.append(inner.args[0])
        elif op_name(inner) == "relax.power" and number_of(value(inner.args[1])) in (2.0, 3.0):
            open_.extend([inner.args[0]] * int(number_of(value(inner.args[1]))))
        else:
            found.append(part)
    return constant, found


def _is_product(expr: relax.Expr, constant: float, factors: list[relax.Expr], value: Value) -> bool:
    """Whether `expr` is constant * the factors, each as often as it is listed."""
    found_constant, found = _factors(expr, value, factors)
    if len(found) != len(factors) or not math.isclose(found_constant, constant, rel_tol=TOLERANCE):
        return False
    left = list(factors)
    for part in found:
        match = next((i for i, f in enumerate(left) if f.same_as(part)), None)
        if match is None:
            return False
        del left[match]
    return True


def _leaves(call: relax.Call, value: Value) -> list[relax.Expr]:
    return _factors(call, value, [])[1]


def _terms(expr: relax.Expr, value: Value) -> Iterator[tuple[relax.Expr, relax.Expr]]:
    """Both orders of the terms of a sum."""
    inner = value(expr)
    if op_name(inner) == "relax.add":
        yield inner.args[0], inner.args[1]
        yield inner.args[1], inner.args[0]


def _plus_one(expr: relax.Expr, value: Value) -> relax.Expr | None:
    """y of y + 1; None where nothing is added, or another number."""
    return next((y for y, one in _terms(expr, value) if number_of(value(one)) == 1.0), None)


def _scaled(expr: relax.Expr, constant: float, value: Value) -> list[relax.Expr]:
    """Every x with expr = constant * x: x may itself be a product."""
    inner = value(expr)
    arguments = list(inner.args) if op_name(inner) in ("relax.multiply", "relax.divide") else []
    candidates = [a for a in arguments if number_of(value(a)) is None]
    return [x for x in candidates if _is_product(expr, constant, [x], value)]


def _cubic(expr: relax.Expr, value: Value) -> list[relax.Expr]:
    """Every x with expr = sqrt(2 / pi) * (x + 0.044715 * x^3), or x times the factor 1 + 0.044715 * x^2."""
    found = []
    for factor in _leaves(expr, value) if op_name(value(expr)) == "relax.multiply" else []:
        for x, cube in _terms(factor, value):
            if _is_product(cube, 0.044715, [x, x, x], value):
                if _is_product(expr, math.sqrt(2 / math.pi), [factor], value):
                    found.append(x)
        for one, square in _terms(factor, value):
            if number_of(value(one)) != 1.0:
                continue
            for x in _leaves(square, value):
                whole = _is_product(expr, math.sqrt(2 / math.pi), [x, factor], value)
                if whole and _is_product(square, 0.044715, [x, x], value):
                    found.append(x)
    return found
