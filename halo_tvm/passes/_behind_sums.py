"""What runs over the axes of a sum again, behind it, where no rule computes both as one kernel.

Before                                                    after
    one function: mean over all places of x * x,              the mean and its root: numbers for each channel
    its root, and x / root for each place                     x / root for each place
As one function these are loops one behind the other, of which the last resort would make each: the root once more for
every place, and what the places have between two loops in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import tvm
from tvm import relax, tirx

from ..dimensions import size_of
from ..targets import Target
from ..tir_schedules.blocks import blocks
from ._served_groups import why_unserved
from .graph_pass import bindings, makes_tensor


def behind_sums(
    groups: Mapping[str, Sequence[str]], grouped: tvm.IRModule, sizes: Mapping[str, int], target: Target
) -> dict[str, set[str]]:
    """Group -> its functions that spread what it has summed, where no rule serves the group.

    `groups` has the names of the functions of each; `sizes` are typical.
    """
    found: dict[str, set[str]] = {}
    served: dict[tuple[str, ...], bool] = {}
    for name, functions in groups.items():
        parts, spreading = tuple(functions), _spreading(grouped[name], grouped, sizes)
        if spreading and parts not in served:
            served[parts] = why_unserved(grouped[name], grouped, target) is None
        if spreading and not served[parts]:
            found[name] = spreading
    return found


def _spreading(group: relax.Function, mod: tvm.IRModule, sizes: Mapping[str, int]) -> set[str]:
    """The functions of `group` whose results are larger than what they read of its sums; none where nothing else runs
    over the same places, as a kernel of one function is no better apart."""
    behind = 0
    summed: dict[relax.Expr, int] = {}  # of a sum, or made of sums alone, with its elements
    spreading = set()
    for binding in bindings(group):
        call = binding.value
        if not makes_tensor(call):
            continue
        func, elements = mod[call.args[0]], prod(size_of(n, sizes) for n in call.ty_args[0].shape.values)
        read = [summed[operand] for operand in call.args[1].fields if operand in summed]
        if isinstance(func, tirx.PrimFunc) and any("R" in block.kinds for block in blocks(func)):
            summed[binding.var] = elements
        elif read and elements > max(read):
            spreading.add(call.args[0].name_hint)
            behind += 1
        elif read:
            summed[binding.var] = elements
        else:
            behind += 1
    return spreading if behind > 1 else set()
