"""Sizes of an exported program: sympy expressions over its symbols -> TIR expressions over named variables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import sympy
import torch
from tvm import ir, tirx

from ...artifact import Condition
from ...errors import UnsupportedModel
from ..meaning.sizes import Sizes
from ._size_functions import FUNCTIONS
from ._solved import Solved, as_whole, solved_for

_ASSUMED = 1024  # the largest size of a dimension for which the program declares none, or twice its example's
_UNBOUNDED = 1 << 31


class Dimensions:
    """Names, variables and ranges of the symbols that the inputs' shapes define."""

    def __init__(self, inputs: Mapping[str, torch.Tensor], constraints: Mapping[object, object]) -> None:
        """`inputs`: example values by name (of an exported program: fakes); `constraints`: its range_constraints."""
        self.variables: dict[object, tirx.Var] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.assumed: list[str] = []
        self.sizes = Sizes()
        self.conditions: list[Condition] = []
        self._spelled: dict[object, ir.Expr] = {}
        self._solved: dict[object, Solved] = {}
        examples = _examples(inputs)
        for expr, name in _names(inputs).items():
            solved = None if expr.is_Symbol else solved_for(expr, name)
            symbol = expr if solved is None else solved.symbol
            variable = self.variables[symbol if solved is None else solved.name] = tirx.Var(name, "int64")
            low, high = self._range(name, constraints.get(symbol), examples.get(symbol, 1))
            if solved is not None:
                low, high = solved.at(low), solved.at(high)
                self._spelled[expr], self._solved[symbol] = variable, solved
                self.sizes.declare_every(variable, solved.factor, solved.offset)
                self.conditions += solved.conditions
            self.ranges[name] = low, high
            self.sizes.declare(variable, low, _UNBOUNDED if name in self.assumed else high)
        for name, tensor in inputs.items():
            for size in tensor.shape:
                if not isinstance(size, int) and not size.node.expr.is_Symbol:
                    self._require_defined(name, size.node.expr)

    def knows(self, symbol: object) -> bool:
        """Whether `symbol` is a dimension, or follows from one."""
        return symbol in self.variables or symbol in self._solved

    def in_names(self, expr: object) -> object:
        """`expr` over the names of dimensions, as texts have it."""
        names = {s: sympy.Symbol(v.name, integer=True, positive=True) for s, v in self.variables.items()}
        return expr.subs({symbol: solved.value for symbol, solved in self._solved.items()}).subs(names)

    def served(self, name: str, size: int) -> int:
        """The size nearest to `size`, not above it where there is one, that dimension `name` can have."""
        solved = next((s for s in self._solved.values() if str(s.name) == name), None)
        low, high = self.ranges[name]
        return size if solved is None else min(max(solved.below(size), low), high)

    def expr(self, size: object) -> ir.Expr | int | float | bool:
        """A size or number of the program: a Python number, or an expression over the variables."""
        if isinstance(size, bool | int | float):
            return size
        return self.of_sympy(size.node.expr)

    def define(self, size: object, hint: str, *, is_size: bool = True) -> ir.Expr:
        """`size`, which values decide, as a dimension; a symbol that is met for the first time is called by `hint`.

        `is_size`: it is not below 0.
        """
        if isinstance(size, int):
            return tirx.IntImm("int64", size)
        symbol = size.node.expr
        if symbol.is_Symbol and symbol not in self.variables:
            taken = {var.name for var in self.variables.values()}
            names = itertools.chain([hint], (f"{hint}_{number}" for number in itertools.count(1)))
            self.variables[symbol] = tirx.Var(next(name for name in names if name not in taken), "int64")
            if is_size:
                self.sizes.note([self.variables[symbol]])
        return self.of_sympy(symbol)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is named and spelled inside is forgotten behind: a graph inside another has variables of its own."""
        variables, spelled = dict(self.variables), dict(self._spelled)
        try:
            yield
        finally:
            self.variables, self._spelled = variables, spelled

    def learn(self, sizes: Sequence[object], found: Sequence[ir.Expr]) -> None:
        """Spell sizes from now on as Relax spelled them first: fusion compares shapes by their spelling."""
        for size, expr in zip(sizes, found, strict=True):
            if not isinstance(size, int) and not size.node.expr.is_Symbol:
                self._spelled.setdefault(size.node.expr, expr)

    def shape(self, sizes: Sequence[object]) -> list[ir.Expr]:
        return [tirx.IntImm("int64", s) if isinstance(s, int) else self.expr(s) for s in sizes]

    def of_sympy(self, expr: object) -> ir.Expr | int | float:
        if expr in self._spelled:
            return self._spelled[expr]
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float or expr.is_Rational:
            return float(expr)
        if expr in (True, False):
            return bool(expr)
        if not self._solved.keys().isdisjoint(expr.free_symbols):
            whole = as_whole(expr, self._solved.values())
            if whole is not None:
                return self.of_sympy(whole)
        if expr in self._solved:
            solved = self._solved[expr]
            return tirx.floordiv(self.variables[solved.name] - solved.offset, solved.factor)
        if expr.is_Symbol:
            if expr not in self.variables:
                raise UnsupportedModel(
                    f"expected sizes that follow from the inputs' shapes, found {expr}, which depends on values: "
                    "export the model without it"
                )
            return self.variables[expr]
        build = FUNCTIONS.get(type(expr).__name__)
        if build is None:
            raise UnsupportedModel(
                f"expected sizes made by arithmetic on integers, found {expr} ({type(expr).__name__}): "
                "export the model with simpler dynamic shapes"
            )
        return build(*(self.of_sympy(a) for a in expr.args))

    def _range(self, name: str, limits: object, example: int) -> tuple[int, int]:
        low = int(limits.lower) if limits is not None and limits.lower.is_Integer else 0
        # torch lets every dynamic size be at least 2 while it traces, and still runs the program with 1.
        low = 1 if low <= 2 else low
        high = int(limits.upper) if limits is not None and limits.upper.is_Integer else _UNBOUNDED
        if high >= _UNBOUNDED:
            self.assumed.append(name)
            high = max(_ASSUMED, low, 2 * example)
        return low, high

    def _require_defined(self, name: str, expr: object) -> None:
        missing = [s for s in expr.free_symbols if not self.knows(s)]
        if missing:
            raise UnsupportedModel(
                f"expected dimensions of inputs that are sizes of their own, found {expr} in input {name}: "
                "mark the dimension it is made of as dynamic in an input of that size"
            )


def _examples(inputs: Mapping[str, torch.Tensor]) -> dict[object, int]:
    """The sizes that the program was traced with, by symbol, where it remembers them."""
    sizes = (size for tensor in inputs.values() for size in tensor.shape if not isinstance(size, int))
    return {size.node.expr: int(size.node.hint) for size in sizes if size.node.hint is not None}


def _names(inputs: Mapping[str, torch.Tensor]) -> dict[object, str]:
    """A name for each symbol that is a dimension of an input, or follows from one that is a multiple of it and so
    many more: batch, sequence, or input and axis."""
    sizes = [
        (size.node.expr, (name, axis, tensor.dim()))
        for name, tensor in inputs.items()
        for axis, size in enumerate(tensor.shape)
        if not isinstance(size, int)
    ]
    defined = {expr: expr for expr, _ in sizes if expr.is_Symbol}
    for expr, _ in sizes:
        solved = solved_for(expr, "")
        if solved is not None:
            defined.setdefault(solved.symbol, expr)
    places: dict[object, list[tuple[str, int, int]]] = {}
    for expr, place in sizes:
        if expr in defined.values():
            places.setdefault(expr, []).append(place)
    names: dict[object, str] = {}
    for symbol, found in places.items():
        input_name, axis, _ = found[0]
        if all(a == 0 for _, a, _ in found):
            wanted = "batch"
        elif all((a, rank) == (1, 2) for _, a, rank in found):
            wanted = "sequence"
        else:
            wanted = f"{re.sub(r'[^A-Za-z0-9_]', '_', input_name)}_{axis}"
        others = (f"{wanted}_{number}" for number in itertools.count(len(names)))
        names[symbol] = next(name for name in itertools.chain([wanted], others) if name not in names.values())
    return names
