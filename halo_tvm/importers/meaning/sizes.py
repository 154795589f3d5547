"""Arithmetic of sizes: numbers where they are numbers, simplified expressions of symbolic dimensions elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import sym, tirx

Dim = int | tvm.ir.Expr  # one size: a number, or an expression of symbolic dimensions

_MOST_TERMS = 1024  # of one size; those of real models have a dozen, boxes of 90 classes together have 500
_MOST_DIVISIONS = 14  # inside one another: each doubles the time to simplify; strided convolutions make a few
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)


class Sizes:
    """Simplifies and compares sizes, knowing the ranges of the symbolic dimensions of one model."""

    def __init__(self) -> None:
        self._analyzer = sym.Analyzer()
        self._noted: dict[
            int, Dim
        ] = {}  # sizes of tensors, by their form; they live on, so that no other is taken for one
        self._declared: set[tirx.Var] = set()

    def declare(self, var: tirx.Var, low: int, high: int) -> None:
        self._analyzer.update(var, sym.ConstIntBound(low, high))
        self._declared.add(var)

    def declare_every(self, var: tirx.Var, step: int, start: int) -> None:
        """`var` is `start` and multiples of `step`."""
        self._analyzer.update(var, sym.ModularSet(step, start % step))

    def note(self, dims: Iterable[Dim]) -> None:
        """Sizes of a tensor: not negative, whether or not that can be proven."""
        for dim in dims:
            if isinstance(dim, tirx.Var) and dim not in self._declared:
                self.declare(dim, 0, sym.ConstIntBound.POS_INF)  # max(dim, 0), as a slice says, is dim
            elif not isinstance(dim, int):
                self._noted.setdefault(_form(dim), dim)

    def is_size(self, dim: Dim) -> bool:
        """Whether `dim` is not negative, as far as is known."""
        return _form(dim) in self._noted or bool(self.decided(prim(dim) >= 0))

    def simplify(self, dim: Dim) -> Dim:
        return dim if isinstance(dim, int | float) else plain(self._analyzer.simplify(_bounded(dim)))

    def product(self, dims: Iterable[Dim]) -> Dim:
        out: Dim = 1
        for dim in dims:
            out = prim(out) * dim
        return self.simplify(out)

    def is_equal(self, a: Dim, b: Dim) -> bool:
        """Whether the two sizes are equal for every value of their symbols, as far as can be proven."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return bool(self._analyzer.can_prove_equal(_bounded(prim(a)), _bounded(prim(b))))

    def same_shape(self, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
        """Whether there are as many of one as of the other, and each is equal to its counterpart."""
        return len(a) == len(b) and all(map(self.is_equal, a, b))

    def floordiv(self, a: Dim, b: Dim) -> Dim:
        return self.simplify(tirx.floordiv(prim(a), prim(b)))

    def ceildiv(self, a: Dim, b: Dim) -> Dim:
        return self.floordiv(prim(a) + prim(b) - 1, b)

    def minimum(self, a: Dim, b: Dim) -> Dim:
        return self.simplify(tirx.min(prim(a), prim(b)))

    def maximum(self, a: Dim, b: Dim) -> Dim:
        return self.simplify(tirx.max(prim(a), prim(b)))

    def decided(self, condition: object) -> bool | None:
        """True or False where the condition holds or fails for all sizes; None where it depends on them."""
        if isinstance(condition, bool | int):
            return bool(condition)
        simplified = self._analyzer.simplify(_bounded(condition))
        if isinstance(simplified, tirx.IntImm):
            return bool(simplified.value)
        if self._analyzer.can_prove(simplified):
            return True
        return False if self._analyzer.can_prove(tirx.Not(simplified)) else None


def _form(dim: Dim) -> int:
    """Equal for what is written alike of the same variables, whatever they are called."""
    return int(tvm_ffi.structural_hash(prim(dim), map_free_vars=False))


def plain(dim: tvm.ir.Expr | int) -> Dim:
    """An IntImm as int; anything else as it is."""
    return int(dim) if isinstance(dim, int | np.integer | tirx.IntImm) else dim


def prim(dim: Dim) -> tvm.ir.Expr:
    """A size as an expression."""
    return tirx.IntImm("int64", int(dim)) if isinstance(dim, int) else dim


def _bounded(expr: tvm.ir.Expr) -> tvm.ir.Expr:
    """`expr`; `ValueError` when it is so long or so nested that reasoning about it would take for ever."""
    stack, count = [(expr, 0)], 0
    while stack:
        current, divisions = stack.pop()
        count += 1
        divisions += isinstance(current, _DIVISIONS)
        if count > _MOST_TERMS or divisions > _MOST_DIVISIONS:
            raise ValueError(
                f"expected sizes of at most {_MOST_TERMS} terms and {_MOST_DIVISIONS} nested divisions, found more"
            )
        stack.extend((getattr(current, side), divisions) for side in ("a", "b") if hasattr(current, side))
    return expr
