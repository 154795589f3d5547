"""Formulas of a manifest at the sizes of a run: what a function does and moves, written when it was compiled.

A formula is a whole number, the name of a dimension, or a list of an operation and two formulas. A manifest is
untrusted: nothing is evaluated but the operations below, to a bounded depth and size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ..errors import ArtifactCorrupt

DEPTH_LIMIT = 64
VALUE_LIMIT = 1 << 120  # flops and bytes of anything that runs are far below
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


def evaluate(formula: object, sizes: Mapping[str, int], depth: int = 0) -> int:
    """`formula` at `sizes`; `ArtifactCorrupt` for anything that is no formula."""
    if isinstance(formula, bool) or depth > DEPTH_LIMIT:
        _corrupt(formula)
    if isinstance(formula, int):
        return formula if abs(formula) < VALUE_LIMIT else _corrupt(formula)
    if isinstance(formula, str):
        return sizes[formula] if formula in sizes else _corrupt(formula)
    if not isinstance(formula, (list, tuple)) or len(formula) != 3 or formula[0] not in tuple(OPERATIONS):
        _corrupt(formula)
    operation, left, right = formula
    a, b = evaluate(left, sizes, depth + 1), evaluate(right, sizes, depth + 1)
    if operation in ("//", "%") and b == 0:
        _corrupt(formula)
    value = OPERATIONS[operation](a, b)
    return value if abs(value) < VALUE_LIMIT else _corrupt(formula)


def bound(formula: object, sizes: Mapping[str, int]) -> object:
    """`formula` with the numbers that `sizes` gives to names."""
    if isinstance(formula, str):
        return sizes.get(formula, formula)
    return [formula[0], *(bound(part, sizes) for part in formula[1:])] if isinstance(formula, list) else formula


def sizes_of(shapes: object, arguments: Sequence[Sequence[int] | int | None]) -> dict[str, int] | None:
    """Dimensions by name, when parameters of these symbolic `shapes` were given `arguments` (a shape per tensor, a
    number per number, None for anything else); None when the two do not belong together."""
    if not isinstance(shapes, list) or len(shapes) > len(arguments):
        return None
    sizes: dict[str, int] = {}
    for shape, found in zip(shapes, arguments, strict=False):
        if isinstance(shape, str):
            pairs = [(shape, found)]
        elif isinstance(shape, list) and isinstance(found, (tuple, list)) and len(shape) == len(found):
            pairs = list(zip(shape, found, strict=True))
        else:
            return None
        for name, size in pairs:
            if name is None:
                continue
            if (
                not isinstance(size, int)
                or (name if isinstance(name, int) else sizes.setdefault(str(name), size)) != size
            ):
                return None
    return sizes


def _corrupt(formula: object) -> NoReturn:
    raise ArtifactCorrupt(
        f"manifest.json: expected a formula of numbers, dimensions and {' '.join(OPERATIONS)}, found "
        f"{str(formula)[:80]!r}; compile the model again"
    )
