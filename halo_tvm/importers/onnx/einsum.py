"""Einsum: two operands as one matrix product where every letter allows it, else a sum over all contracted letters.

Of more operands two are joined at a time, first those of which one has no letters of its own: a sum over the letters of
all at once would take as many steps as the product of all sizes.
"""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax, te

from ...dimensions import is_one
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.pointwise import Scalar, const, widened
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter
from ._spell import derived

_OPEN = 64  # of a size that is not known, to compare costs


@dataclass(frozen=True)
class _Equation:
    """Letters of every operand and of the result; broadcast dimensions have letters of their own."""

    operands: tuple[str, ...]
    result: str


@converter("Einsum")
def einsum(node: Node) -> relax.Expr:
    xs = [widened(node, x) for x in node.xs()]
    equation = _parsed(node, node.attr("equation"), [len(expr_shape(x)) for x in xs])
    sizes: dict[str, Dim] = {}
    for letters, x in zip(equation.operands, xs):
        for letter, dim in zip(letters, expr_shape(x)):
            known = sizes.get(letter, 1)
            if (
                isinstance(known, int)
                and known == 1
                or not isinstance(known, int)
                and isinstance(dim, int)
                and dim != 1
            ):
                sizes[letter] = dim
            elif not (isinstance(dim, int) and dim == 1) and isinstance(dim, int) and isinstance(known, int):
                node.refuse_unless(dim == known, f"expected one size for {letter}, found {known} and {dim}")
    xs = [
        same_sizes(node, x, [None if is_one(d) else sizes[c] for c, d in zip(letters, expr_shape(x))], "an operand")
        for letters, x in zip(equation.operands, xs)
    ]
    terms = list(equation.operands)
    while len(terms) > 2:
        first, second = _next_pair(terms, equation.result, sizes)
        one, other = terms[first], terms.pop(second)
        kept = _kept(one, other, [*terms[:first], *terms[first + 1 :], equation.result])
        xs[first] = _joined(node, _Equation((one, other), kept), [xs[first], xs.pop(second)], sizes)
        terms[first] = kept
    return node.cast(_joined(node, _Equation(tuple(terms), equation.result), xs, sizes), node.dtype(0))


def _next_pair(terms: Sequence[str], result: str, sizes: Mapping[str, Dim]) -> tuple[int, int]:
    """Which two of `terms` to join: the one with all letters of the other, else those whose result saves the most."""

    def elements(letters: str) -> int:
        known = (sizes[c] for c in letters)
        return math.prod(size if isinstance(size, int) else _OPEN for size in known)

    def cost(pair: tuple[int, int]) -> tuple[bool, int]:
        one, other = (terms[i] for i in pair)
        rest = [term for i, term in enumerate(terms) if i not in pair]
        apart = not (set(one) <= set(other) or set(other) <= set(one))
        return apart, elements(_kept(one, other, [*rest, result])) - elements(one) - elements(other)

    return min(itertools.combinations(range(len(terms)), 2), key=cost)


def _kept(one: str, other: str, rest: Sequence[str]) -> str:
    """The letters of two terms that others have, too: first those that both have."""
    needed = [c for c in dict.fromkeys(one + other) if any(c in term for term in rest)]
    return "".join(sorted(needed, key=lambda c: not (c in one and c in other)))


def _joined(node: Node, equation: _Equation, xs: list[relax.Expr], sizes: dict[str, Dim]) -> relax.Expr:
    if _is_product(node, equation, xs, sizes):
        return _product(node, equation, xs, sizes)
    return _general(node, equation, xs)


def _parsed(node: Node, text: str, ranks: list[int]) -> _Equation:
    text = text.replace(" ", "")
    match = re.fullmatch(r"([A-Za-z.,]*)(?:->([A-Za-z.]*))?", text)
    node.refuse_unless(match is not None, f"expected an equation of letters, found {text}")
    terms, result = match.group(1).split(","), match.group(2)
    node.refuse_unless(len(terms) == len(ranks), f"expected {len(terms)} operands, found {len(ranks)}")
    free = [c for c in string.ascii_letters if c not in text]
    spread = max([r - len(t.replace("...", "")) for t, r in zip(terms, ranks) if "..." in t], default=0)
    node.refuse_unless(0 <= spread <= len(free), f"expected operands that fit {text}")
    wide = "".join(free[:spread])
    operands = []
    for term, rank in zip(terms, ranks):
        own = rank - len(term.replace("...", ""))
        node.refuse_unless(
            own >= 0 and ("..." in term or own == 0), f"expected {len(term)} dimensions for {term}, found {rank}"
        )
        operands.append(term.replace("...", wide[spread - own :]))
        node.refuse_unless("." not in operands[-1], f"expected an equation of letters, found {text}")
    if result is None:
        joined = "".join(terms).replace("...", "")
        result = wide + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    result = result.replace("...", wide)
    unknown = sorted(set(result) - set("".join(operands)))
    node.refuse_unless(
        not unknown and len(set(result)) == len(result), f"expected each letter of the result once in {text}"
    )
    return _Equation(tuple(operands), result)


def _is_product(node: Node, equation: _Equation, xs: list[relax.Expr], sizes: dict[str, Dim]) -> bool:
    """Two operands of floating-point numbers, no diagonal, nothing broadcast, every lonely letter in the result."""
    if len(xs) != 2 or "float" not in expr_dtype(xs[0]):
        return False
    for letters, x in zip(equation.operands, xs):
        if len(set(letters)) != len(letters):
            return False
        if not all(node.sizes.is_equal(d, sizes[c]) for c, d in zip(letters, expr_shape(x))):
            return False
    left, right = equation.operands
    contracted = [c for c in left if c in right and c not in equation.result]
    return bool(contracted) and all(c in equation.result for c in set(left) ^ set(right))


def _product(node: Node, equation: _Equation, xs: list[relax.Expr], sizes: dict[str, Dim]) -> relax.Expr:
    """[batch, rows, contracted] @ [batch, contracted, columns], its dimensions put in order."""
    left, right = equation.operands
    batch = [c for c in equation.result if c in left and c in right]
    rows = [c for c in equation.result if c not in right]
    columns = [c for c in equation.result if c not in left]
    inner = [c for c in left if c in right and c not in equation.result]
    lead = [sizes[c] for c in batch]

    def matrix(x: relax.Expr, letters: str, first: list[str], second: list[str]) -> relax.Expr:
        order = [letters.index(c) for c in [*batch, *first, *second]]
        shape = [*lead, node.sizes.product([sizes[c] for c in first]), node.sizes.product([sizes[c] for c in second])]
        known = node.known(x)
        if known is not None and not batch and all(isinstance(size, int) for size in shape):  # a weight: no data moves
            name = "".join(["_", *first, "_", *second])
            return node.weight(
                derived(known, lambda: known.array.transpose(order).reshape(shape), known.dtype, shape, suffix=name)
            )
        if order != list(range(len(order))):
            x = node.emit(relax.op.permute_dims(x, order))
        return x if len(first) == len(second) == 1 else node.emit(relax.op.reshape(x, shape))

    a, b = matrix(xs[0], left, rows, inner), matrix(xs[1], right, inner, columns)
    out = node.emit(relax.op.matmul(a, b))
    letters = [*batch, *rows, *columns]
    if not len(rows) == len(columns) == 1:
        out = node.emit(relax.op.reshape(out, [sizes[c] for c in letters]))
    order = [letters.index(c) for c in equation.result]
    return out if order == list(range(len(order))) else node.emit(relax.op.permute_dims(out, order))


def _general(node: Node, equation: _Equation, xs: list[relax.Expr]) -> relax.Expr:
    summed = sorted(set("".join(equation.operands)) - set(equation.result))
    dtype = expr_dtype(xs[0])

    def compute(*tensors: te.Tensor) -> te.Tensor:
        # The sizes as the function's own parameters spell them.
        extents: dict[str, object] = {}
        for tensor, letters in zip(tensors, equation.operands):
            for c, d in zip(letters, tensor.shape):
                if c not in extents or is_one(extents[c]):
                    extents[c] = d
        axes = {c: te.reduce_axis((0, extents[c]), name=f"k{i}") for i, c in enumerate(summed)}

        def element(*index: Scalar) -> Scalar:
            place = {**dict(zip(equation.result, index)), **{c: a.var for c, a in axes.items()}}
            total = const(1, dtype) if not tensors else None
            for tensor, letters in zip(tensors, equation.operands):
                value = tensor(*(0 if is_one(d) else place[c] for c, d in zip(letters, tensor.shape)))
                total = value if total is None else total * value
            return te.sum(total, axis=list(axes.values())) if axes else total

        return te.compute([extents[c] for c in equation.result], element, name="einsum")

    return node.te(compute, *xs)
