"""A dimension of an input that is a multiple of a size and so many more, `2*s + 1`, where no input has the size itself.

torch writes what `Dim("n") * 2` is so. The dimension is the variable then, the size follows from it, and a run where it
is no such multiple is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy

from ...artifact import Condition


@dataclass(frozen=True)
class Solved:
    """symbol = (name - offset) / factor"""

    symbol: sympy.Symbol
    name: sympy.Symbol
    factor: int
    offset: int

    @property
    def value(self) -> sympy.Expr:
        return (self.name - self.offset) / self.factor

    def at(self, size: int) -> int:
        """The dimension where the symbol is `size`."""
        return self.factor * size + self.offset

    def below(self, size: int) -> int:
        """The largest dimension that is not above `size`."""
        return self.at((size - self.offset) // self.factor)

    @property
    def conditions(self) -> list[Condition]:
        if self.factor == 1:
            return []
        name, rest = str(self.name), self.offset % self.factor
        formula = ["-", ["%", name, self.factor], rest] if rest else ["%", name, self.factor]
        return [Condition(formula, "0", f"{name} % {self.factor} == {rest}")]


def solved_for(expr: sympy.Expr, name: str) -> Solved | None:
    """The symbol that `expr`, the dimension `name`, is a multiple of; None where it is made in another way."""
    if len(expr.free_symbols) != 1 or expr.is_Symbol:
        return None
    (symbol,) = expr.free_symbols
    expr = sympy.expand(expr)
    factor = expr.coeff(symbol)
    offset = sympy.expand(expr - factor * symbol)
    if not factor.is_Integer or not offset.is_Integer or factor < 1:
        return None
    return Solved(symbol, sympy.Symbol(name, integer=True, positive=True), int(factor), int(offset))


def as_whole(expr: sympy.Expr, solved: Iterable[Solved]) -> sympy.Expr | None:
    """`expr` over dimensions where that has whole numbers alone: 4*s is 2*x where x is 2*s; None elsewhere."""
    if expr.is_Symbol or not expr.is_polynomial(*expr.free_symbols):
        return None
    found = sympy.expand(expr.subs({s.symbol: s.value for s in solved}))
    coefficients = sympy.Poly(found, *found.free_symbols).coeffs() if found.free_symbols else [found]
    return found if all(number.is_Integer for number in coefficients) else None
