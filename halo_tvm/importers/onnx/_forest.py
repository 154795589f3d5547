"""Decision trees as tables, checked: every walk from a root ends at a leaf, and no index leaves its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ._node import Node

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_MEMBER = 6  # in the enumeration of TreeEnsemble
_MOST_NODES = 1 << 24


@dataclass(frozen=True)
class Forest:
    """Nodes and leaves of all trees. A child or root `c` is the node c where c >= 0, else the leaf -1 - c."""

    roots: np.ndarray  # int32 [trees]
    features: np.ndarray  # int32 [nodes]
    modes: np.ndarray  # int32 [nodes], positions in MODES
    splits: np.ndarray  # float [nodes]
    is_missing_true: np.ndarray  # int32 [nodes]: where NaN goes
    when_true: np.ndarray  # int32 [nodes]
    when_false: np.ndarray  # int32 [nodes]
    votes: np.ndarray  # int32 [leaves + 1]: where the votes of every leaf begin
    targets: np.ndarray  # int32 [votes]
    weights: np.ndarray  # float [votes]


@dataclass
class _Rows:
    """The nodes of a forest while they are collected."""

    features: list[int] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)

    def add(self, feature: int, mode: int, split: float, missing: int, children: Sequence[int]) -> int:
        self.features.append(feature)
        self.modes.append(mode)
        self.splits.append(split)
        self.missing.append(missing)
        self.children.append(list(children))
        return len(self.features) - 1


def by_node_ids(node: Node, prefix: str, dtype: str, targets: int) -> Forest:
    """The trees of TreeEnsembleRegressor (`prefix` target) and TreeEnsembleClassifier (class)."""
    trees, ids = _ints(node, "nodes_treeids"), _ints(node, "nodes_nodeids")
    count = len(trees)
    node.refuse_unless(0 < count <= _MOST_NODES, f"expected 1 to {_MOST_NODES} nodes, found {count}")
    features, no, yes = (_ints(node, f"nodes_{n}", count) for n in ("featureids", "falsenodeids", "truenodeids"))
    modes = list(node.attr("nodes_modes", []))
    splits = _numbers(node, "nodes_values", dtype, count)
    missing = _ints(node, "nodes_missing_value_tracks_true", count, default=True)
    node.refuse_unless(len(ids) == len(modes) == count, "lists of nodes differ in length")
    unknown = sorted(set(modes) - {*MODES, "LEAF"})
    node.refuse_unless(not unknown, f"expected modes among {', '.join(MODES)}, found {', '.join(unknown)}")
    position = {key: i for i, key in enumerate(zip(trees, ids))}
    node.refuse_unless(len(position) == count, "a node has the number of another in its tree")

    per_leaf: dict[int, list[tuple[int, float]]] = {}
    voted = list(zip(_ints(node, f"{prefix}_treeids"), _ints(node, f"{prefix}_nodeids")))
    to, weights = _ints(node, f"{prefix}_ids", len(voted)), _numbers(node, f"{prefix}_weights", dtype, len(voted))
    for key, target, weight in zip(voted, to, weights):
        node.refuse_unless(key in position, f"a vote belongs to node {key[1]} of tree {key[0]}, which does not exist")
        per_leaf.setdefault(position[key], []).append((target, weight))

    # Positions among all nodes -> codes: inner nodes are numbered, leaves are numbered downwards.
    code, leaves = {}, []
    for i, mode in enumerate(modes):
        if mode == "LEAF":
            code[i] = -1 - len(leaves)
            leaves.append(per_leaf.get(i, []))
        else:
            code[i] = i - len(leaves)

    def child(i: int, number: int) -> int:
        found = position.get((trees[i], number))
        node.refuse_unless(
            found is not None, f"node {ids[i]} of tree {trees[i]} has the child {number}, which does not exist"
        )
        return code[found]

    table, firsts = _Rows(), {}
    for i, mode in enumerate(modes):
        firsts.setdefault(trees[i], code[i])  # the first node of a tree is its root
        if mode != "LEAF":
            table.add(features[i], MODES.index(mode), splits[i], missing[i], (child(i, yes[i]), child(i, no[i])))
    return _checked(node, table, list(firsts.values()), leaves, dtype, targets)


def by_positions(node: Node, dtype: str, targets: int) -> Forest:
    """The trees of TreeEnsemble: children are positions among the nodes or the leaves."""
    features = _ints(node, "nodes_featureids")
    count = len(features)
    node.refuse_unless(0 < count <= _MOST_NODES, f"expected 1 to {_MOST_NODES} nodes, found {count}")
    modes = [int(m) for m in np.asarray(node.attr("nodes_modes")).reshape(-1)]
    splits = _numbers(node, "nodes_splits", dtype, count)
    missing = _ints(node, "nodes_missing_value_tracks_true", count, default=True)
    children = [
        [-1 - c if leaf else c for c, leaf in zip(_ints(node, ids, count), _ints(node, kinds, count))]
        for ids, kinds in (("nodes_truenodeids", "nodes_trueleafs"), ("nodes_falsenodeids", "nodes_falseleafs"))
    ]
    node.refuse_unless(len(modes) == count, "lists of nodes differ in length")
    node.refuse_unless(
        all(0 <= m <= _MEMBER for m in modes), f"expected modes of 0 to {_MEMBER}, found {sorted(set(modes))}"
    )
    members = _members(node, sum(m == _MEMBER for m in modes))
    table = _Rows()
    for i, mode in enumerate(modes):
        table.add(features[i], 4 if mode == _MEMBER else mode, splits[i], missing[i], (children[0][i], children[1][i]))
    for i, values in zip([i for i, m in enumerate(modes) if m == _MEMBER], members):
        # One of several values: a chain of comparisons, which share the true child. None of none: never.
        yes, no = table.children[i]
        table.splits[i], at = (values[0] if values else np.nan), i
        for value in values[1:]:
            following = table.add(features[i], 4, value, missing[i], (yes, no))
            table.children[at][1], at = following, following
    weights = np.asarray(node.attr("leaf_weights"), dtype).reshape(-1)
    leaves = [[(t, w)] for t, w in zip(_ints(node, "leaf_targetids", len(weights)), weights)]
    return _checked(node, table, _ints(node, "tree_roots"), leaves, dtype, targets)


def _members(node: Node, count: int) -> list[list[float]]:
    """The values of every set, which NaN ends."""
    if count == 0:
        return []
    sets: list[list[float]] = [[]]
    for value in np.asarray(node.attr("membership_values"), np.float64).reshape(-1):
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(float(value))
    if not sets[-1]:
        sets.pop()
    node.refuse_unless(len(sets) == count, f"expected {count} sets of membership values, found {len(sets)}")
    return sets


def _checked(
    node: Node, table: _Rows, roots: list[int], leaves: list[list[tuple[int, float]]], dtype: str, targets: int
) -> Forest:
    features = node.shape(0)[-1]
    node.refuse_unless(isinstance(features, int), f"expected a fixed number of features, found {features}")
    node.refuse_unless(all(0 <= f < features for f in table.features), f"a node reads beyond the {features} features")
    count = len(table.features)
    codes = [c for pair in table.children for c in pair] + roots
    node.refuse_unless(bool(roots), "expected trees, found no root")
    node.refuse_unless(all(-len(leaves) <= c < count for c in codes), "a child or root is no node and no leaf")
    _refuse_cycles(node, table.children)
    votes = [vote for leaf in leaves for vote in leaf]
    node.refuse_unless(all(0 <= t < targets for t, _ in votes), f"a vote is for none of the {targets} targets")
    children = np.array(table.children, np.int32).reshape(-1, 2)
    one_more = max(count, 1)  # tables are never empty

    def column(values: Sequence, kind: str) -> np.ndarray:
        return np.resize(np.array(values, kind), one_more) if count else np.zeros(1, kind)

    return Forest(
        roots=np.array(roots, np.int32),
        features=column(table.features, "int32"),
        modes=column(table.modes, "int32"),
        splits=column(table.splits, dtype),
        is_missing_true=column(table.missing, "int32"),
        when_true=column(children[:, 0], "int32"),
        when_false=column(children[:, 1], "int32"),
        votes=np.cumsum([0, *map(len, leaves)]).astype(np.int32),
        targets=np.array([t for t, _ in votes] or [0], np.int32),
        weights=np.array([w for _, w in votes] or [0], dtype),
    )


def _refuse_cycles(node: Node, children: Sequence[Sequence[int]]) -> None:
    """Parents are taken away one after the other; what is left walks in a circle."""
    parents = [0] * len(children)
    for pair in children:
        for child in pair:
            if child >= 0:
                parents[child] += 1
    free, seen = [i for i, n in enumerate(parents) if n == 0], 0
    while free:
        seen += 1
        for child in children[free.pop()]:
            if child >= 0:
                parents[child] -= 1
                if parents[child] == 0:
                    free.append(child)
    node.refuse_unless(seen == len(children), "a node is its own ancestor: a walk would never end")


def _ints(node: Node, name: str, count: int | None = None, *, default: bool = False) -> list[int]:
    values = list(node.attr(name, []))
    if default and not values:
        return [0] * count
    node.refuse_unless(count is None or len(values) == count, f"expected {count} values of {name}, found {len(values)}")
    return values


def _numbers(node: Node, name: str, dtype: str, count: int) -> list[float]:
    key = f"{name}_as_tensor" if node.has_attr(f"{name}_as_tensor") else name
    values = np.asarray(node.attr(key, [])).astype(dtype).reshape(-1).tolist()
    node.refuse_unless(len(values) == count, f"expected {count} values of {key}, found {len(values)}")
    return values
