"""What a program computes from its weights alone: weight norm, standardised kernels, tables that a small network makes.

torch computes it when the weight is read, so it is a weight as the others are: lifts and converters see no difference,
and no run repeats it.
Leaves alone
    moves of elements, which are recipes of the weight; integers, whose scales quantised products read; masks; random
    numbers
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

import numpy as np
import torch
from torch import fx

from ..meaning.constant import Constant
from ._call import dtype_name, to_array
from ._registry import is_random, target_name

# They move or repeat elements of a weight, or look rows up: passes have recipes for them.
_MOVES = frozenset(
    "permute transpose t view reshape _unsafe_view unsqueeze squeeze slice select expand clone alias detach contiguous "
    "_to_copy to cat stack split split_with_sizes unbind chunk flatten unflatten constant_pad_nd narrow embedding "
    "index index_select gather flip roll repeat lift_fresh_copy".split()
)
_LEAVES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
_MOST_TIMES, _MOST_BYTES = 2, 1 << 20  # a result may be larger than what it is made of by these


class OfWeights:
    """Nodes of a graph whose values follow from weights and constants."""

    def __init__(self, weights: Mapping[fx.Node, torch.Tensor], constants: Mapping[fx.Node, torch.Tensor]) -> None:
        """`weights` are seen as they are when a value is asked for."""
        self._leaves = {**weights, **constants}
        # Constants of rank 3 and more are masks, which attention has names for as long as they stand apart.
        masks = {node for node, tensor in constants.items() if tensor.dim() > 2 and tensor.numel() > 1}
        leaves = {node for node, tensor in self._leaves.items() if tensor.dtype in _LEAVES and node not in masks}
        self._roots: dict[fx.Node, frozenset[fx.Node]] = {node: frozenset([node]) for node in leaves}
        self._weights = frozenset(weights)
        self._made: set[fx.Node] = set()  # of those the ones that are more than moved elements of leaves

    def visit(self, node: fx.Node) -> bool:
        """Whether `node`, whose inputs were visited, follows from weights alone."""
        inputs = node.all_input_nodes
        if not inputs or not all(i in self._roots for i in inputs) or not _repeats(node):
            return False
        self._roots[node] = frozenset().union(*(self._roots[i] for i in inputs))
        if any(i in self._made for i in inputs) or not (node.target is operator.getitem or _moves(node)):
            self._made.add(node)
        return True

    def value_of(self, node: fx.Node) -> Constant | None:
        """What a visited `node` computes, as a weight; None where it only moves elements, or follows from no weight."""
        roots = self._roots.get(node, frozenset()) & self._weights
        meta = node.meta.get("val")
        if node not in self._made or not roots or not isinstance(meta, torch.Tensor):
            return None
        if not meta.dtype.is_floating_point or not all(isinstance(size, int) for size in meta.shape):
            return None
        shape = tuple(map(int, meta.shape))
        given = sum(self._leaves[root].numel() * self._leaves[root].element_size() for root in roots)
        if math.prod(shape) * meta.element_size() > max(_MOST_TIMES * given, _MOST_BYTES):
            return None
        return Constant(shape, dtype_name(meta.dtype), lambda: self._computed(node))

    def is_left_to_its_parts(self, node: fx.Node) -> bool:
        """Whether `node`, of several results, is read through weights that are made of them only."""
        several = isinstance(node.meta.get("val"), tuple | list) and node in self._made
        return several and all(u.target is operator.getitem and self.visit(u) and self.value_of(u) for u in node.users)

    def _computed(self, node: fx.Node) -> np.ndarray:
        known: dict[fx.Node, object] = dict(self._leaves)

        def value(one: fx.Node) -> object:
            if one not in known:
                args, kwargs = (fx.node.map_arg(a, value) for a in (one.args, one.kwargs))
                known[one] = one.target(*args, **kwargs)
            return known[one]

        with torch.no_grad():
            return to_array(value(node))


def _moves(node: fx.Node) -> bool:
    return target_name(node.target).removeprefix("aten.").partition(".")[0] in _MOVES


def _repeats(node: fx.Node) -> bool:
    """Whether `node` computes the same each time and changes nothing."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return False
    return not is_random(node.target) and not node.target._schema.is_mutable
