"""Sizes of a jaxpr: what `str` says of a symbolic dimension of jax -> TIR expressions over named variables."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax import export
from tvm import ir, tirx

from ...artifact import UNBOUNDED
from ...errors import UnsupportedModel
from ..meaning.sizes import Dim, Sizes, prim

_ARITHMETIC: dict[type, Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: prim(a) + b,
    ast.Sub: lambda a, b: prim(a) - b,
    ast.Mult: lambda a, b: prim(a) * b,
}
_FUNCTIONS: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "floordiv": tirx.floordiv,
    "mod": tirx.floormod,
    "max": tirx.max,
    "min": tirx.min,
}


class Dimensions:
    """Variables and ranges of the symbols in the shapes of a program's inputs."""

    def __init__(self, shapes: Iterable[Iterable[Any]]) -> None:
        self.variables: dict[str, tirx.Var] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.sizes = Sizes()
        self._found: dict[str, Dim] = {}
        for dim in (d for shape in shapes for d in shape if not isinstance(d, int)):
            for name in _names(str(dim)):
                if name not in self.variables:
                    self.variables[name] = tirx.Var(name, "int64")
                    self.ranges[name] = _range(export.symbolic_shape(name, scope=dim.scope)[0])
                    self.sizes.declare(self.variables[name], *self.ranges[name])

    def dim(self, dim: object) -> Dim:
        """A size of jax: an integer, or an expression that `str` shows as arithmetic on names."""
        if isinstance(dim, int):
            return dim
        text = str(dim)
        if text not in self._found:
            self._found[text] = self.sizes.simplify(self._of(_parsed(text)))
        return self._found[text]

    def shape(self, dims: Iterable[object]) -> list[Dim]:
        return [self.dim(dim) for dim in dims]

    def _of(self, node: ast.expr) -> Dim:
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name) if name in self.variables:
                return self.variables[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -prim(self._of(operand))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(exponent))) if 0 < exponent <= 8:
                return self.sizes.product([self._of(left)] * exponent)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                return _ARITHMETIC[type(operator)](self._of(left), self._of(right))
            case ast.Call(func=ast.Name(id=name), args=[first, *others]) if name in _FUNCTIONS:
                out = prim(self._of(first))
                for other in others:
                    out = _FUNCTIONS[name](out, prim(self._of(other)))
                return out
        raise UnsupportedModel(
            f"expected sizes made by arithmetic on the sizes of inputs, found {ast.unparse(node)}: "
            "make every symbol the size of an input"
        )


def _parsed(text: str) -> ast.expr:
    """jax writes a power as b^2."""
    return ast.parse(text.replace("^", "**"), mode="eval").body


def _names(text: str) -> Iterator[str]:
    called = {id(node.func) for node in ast.walk(_parsed(text)) if isinstance(node, ast.Call)}
    return (node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name) and id(node) not in called)


def _range(symbol: Any) -> tuple[int, int]:
    """The smallest and largest value that the constraints of the symbol's scope allow, as jax decides comparisons."""
    low = _last(lambda bound: symbol >= bound, 1)
    high = UNBOUNDED - _last(lambda bound: symbol <= UNBOUNDED - bound, 0)
    return low, high


def _last(holds: Callable[[int], object], least: int) -> int:
    """The largest number from `least` to UNBOUNDED of which `holds` is surely true; it is of all below."""
    low, high = least, UNBOUNDED
    while low < high:
        middle = (low + high + 1) // 2
        try:
            decided = bool(holds(middle))
        except jax.errors.InconclusiveDimensionOperation:
            decided = False
        low, high = (middle, high) if decided else (low, middle - 1)
    return low
