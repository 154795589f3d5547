"""How the weight of a convolution lies in the panels that the rule `convolution` reads, group by group.

joined    groups narrower than a vector become one, with zeros between them
abreast   a panel has the columns of as many groups as fill a vector, without zeros: of rows of windows with a known
          length, where what a step of the sum multiplies of all of them is one vector
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir

from ..targets import Target
from ..tir_schedules.products.packing import pack_shape
from ..tir_schedules.windows.convolution import tallest_along_rows


@dataclass(frozen=True)
class Packing:
    """Shape and recipe of a packed weight, and what the operator is told of it."""

    label: str
    shape: tuple[int, ...]
    how: dict[str, int]  # of the recipe
    attrs: dict[str, int]  # of the operator


def packing_of(
    weight: Sequence[int], groups: int, step: int, joined: int, width: ir.Expr | None, target: Target
) -> Packing:
    """Of a weight [m, c / groups, *kernel] whose steps multiply `step` channels and whose rows have `width` windows.

    `joined` groups become one where none lie abreast, as without a `width`.
    """
    outer, inner, *kernel = weight
    abreast = _abreast(weight, groups, step, width, target)
    joined = joined if abreast == 1 else 1
    columns, steps = outer // groups * max(joined, abreast), prod(kernel) * -(-joined * inner // step)
    _, nr = pack_shape(steps * step, columns, target)
    shape = (-(-groups // max(joined, abreast)), -(-columns // nr), steps, nr, *([step] if step > 1 else []))
    how, attrs = {"groups": groups, "joined": joined, "nr": nr}, {"groups": groups // joined}
    if abreast == 1:
        return Packing(f"windows/{joined}/n{nr}", shape, how, attrs)
    beside = {"abreast": abreast}
    return Packing(f"windows/abreast/{abreast}/n{nr}", shape, {**how, **beside}, {**attrs, **beside})


def joined_groups(outer: int, groups: int, lanes: int, inner: int = 1, step: int = 1) -> int:
    """Groups that become one, as many as fill a vector with their results; of channels in whole steps, or all."""
    whole = [j for j in range(1, groups + 1) if groups % j == 0 and (j * inner % step == 0 or j == groups)]
    return max((j for j in whole if j * (outer // groups) <= lanes), default=whole[0])


def _abreast(weight: Sequence[int], groups: int, step: int, width: ir.Expr | None, target: Target) -> int:
    """Groups that lie side by side in a vector; 1 where none do."""
    outer, inner, *_, last = weight
    each, lanes = outer // groups, target.lanes_f32
    abreast = lanes // each
    fill = 1 < abreast <= groups and lanes % each == 0 and inner % step == 0 and lanes % (abreast * inner // step) == 0
    tall = width is not None and tallest_along_rows(width, last, 1, target.isa.vector_registers)
    return abreast if fill and tall else 1
