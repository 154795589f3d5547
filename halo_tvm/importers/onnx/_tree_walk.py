"""The kernel of an ensemble of trees: several trees are walked side by side, rows in parallel where that is worth it.

A walk is a chain of loads that wait for each other: node, feature, comparison, child. Walks of other trees are
independent, so that a processor overlaps them; a group goes on until its last walk has ended.

Tables
    A place is an inner node, numbered -nodes .. -1, or a leaf, numbered 0 .. leaves - 1, so that the signs of
    several places say together whether a walk goes on. A leaf leads to itself.
    steps [nodes + leaves, 4] int32: feature, bits of a float32 split, where no leads to, where yes leads to
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...extremes import is_nan
from ..meaning.pointwise import Scalar
from ._forest import Forest

Buffer = Any  # TVM's proxy of one, whose elements are read and written by index
_COMPARE: tuple[Callable[[Scalar, Scalar], Scalar], ...] = (  # in the order of _forest.MODES
    lambda a, b: a <= b,
    lambda a, b: a < b,
    lambda a, b: a >= b,
    lambda a, b: a > b,
    tirx.EQ,
    lambda a, b: tirx.any(tirx.NE(a, b), is_nan(a), is_nan(b)),  # in generated code NaN differs from nothing
)
_TOGETHER = 8  # walks side by side: as many places as there are registers for
_UNROLLED = 16  # scores of a row that stay in registers
_SHARED_FROM = 4096  # trees of all rows from which threads are worth starting


@dataclass(frozen=True)
class Walk:
    """What is known of a forest before it runs, and its tables."""

    targets: int
    aggregate: str
    marks: bool  # whether the second result says which targets got votes
    modes: tuple[int, ...]
    misses: bool  # whether NaN goes to the yes of some nodes
    nodes: int
    dense: bool  # the votes of a leaf are a row of weights [leaves, targets]
    tables: dict[str, np.ndarray]

    @classmethod
    def of(cls, forest: Forest, targets: int, aggregate: str, marks: bool) -> Walk:
        nodes, leaves = len(forest.features), len(forest.votes) - 1
        modes = tuple(sorted({int(m) for m in forest.modes}))
        misses = bool(forest.is_missing_true.any())
        splits = np.concatenate([forest.splits, np.zeros(leaves, forest.splits.dtype)])
        steps = np.zeros((nodes + leaves, 4), np.int32)
        steps[:nodes, 0], steps[nodes:, 2:] = forest.features, np.arange(leaves)[:, None]
        steps[:nodes, 2], steps[:nodes, 3] = (_places(c, nodes) for c in (forest.when_false, forest.when_true))
        tables = {"roots": _places(forest.roots, nodes), "steps": steps}
        if splits.dtype == np.float32:
            steps[:, 1] = splits.view(np.int32)
        else:
            tables["splits"] = splits
        if len(modes) > 1 or misses:
            kinds = np.stack([forest.modes, forest.is_missing_true], 1).astype(np.int32)
            tables["kinds"] = np.concatenate([kinds, np.zeros((leaves, 2), np.int32)])
        dense = aggregate in ("SUM", "AVERAGE") and not marks and _is_dense(forest, targets)
        if dense:
            rows = np.zeros((leaves, targets), forest.weights.dtype)
            np.add.at(rows, (np.repeat(np.arange(leaves), np.diff(forest.votes)), forest.targets), forest.weights)
            tables["rows"] = rows
        else:
            tables |= {"votes": forest.votes, "targets": forest.targets, "weights": forest.weights}
        return cls(targets, aggregate, marks, modes, misses, nodes, dense, tables)

    def nest(self, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> tirx.Stmt:
        """x [rows, features] and the tables into scores [rows, targets], and int8 marks of the same shape."""
        x, *tables = (T.buffer_proxy(b) for b in ins)
        emit = _Row(self, x, dict(zip(self.tables, tables)), [T.buffer_proxy(b) for b in outs], str(ins[0].dtype))
        rows = outs[0].shape[0]
        with IRBuilder() as builder, T.If(rows * len(self.tables["roots"]) < _SHARED_FROM):
            with T.Then(), T.serial(rows) as row:
                emit.row(row)
            with T.Else(), T.parallel(rows) as row:
                emit.row(row)
        return builder.get()


class _Row:
    def __init__(self, walk: Walk, x: Buffer, tables: Mapping[str, Buffer], outs: Sequence[Buffer], dtype: str) -> None:
        self.w, self.x, self.t, self.dtype = walk, x, tables, dtype
        self.scores, self.seen = outs[0], outs[1] if walk.marks else None
        self.kept: Buffer | None = None  # scores in registers

    def row(self, row: Scalar) -> None:
        w = self.w
        if w.dense and w.targets <= _UNROLLED:
            self.kept = T.buffer_proxy(T.alloc_buffer((w.targets,), self.dtype, scope="local"))
        for_targets = range(w.targets) if self.kept is not None else None
        self._each(for_targets, lambda t: self._set(row, t, tirx.const(0, self.dtype)))
        if self.seen is not None:
            with T.serial(w.targets) as t:
                self.seen[row, t] = tirx.const(0, "int8")
        trees = len(w.tables["roots"])
        width = min(_TOGETHER, trees)
        with T.serial(trees // width) as group:
            self._group(row, group * width, width)
        if trees % width:
            self._group(row, tirx.IntImm("int32", trees - trees % width), trees % width)
        if w.aggregate == "AVERAGE":
            count = tirx.const(trees, self.dtype)
            self._each(for_targets, lambda t: self._set(row, t, self._score(row, t) / count))
        if self.kept is not None:
            for t in range(w.targets):
                self.scores[row, t] = self.kept[t]

    def _group(self, row: Scalar, first: Scalar, width: int) -> None:
        """The votes of `width` trees from `first` on, in their order."""
        places = [T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local")) for _ in range(width)]
        for i, place in enumerate(places):
            place[0] = self.t["roots"][first + i].astype("int64")
        if not self._is_all_leaves():
            with T.While(functools.reduce(operator.or_, [place[0] for place in places]) < 0):
                for place in places:
                    at = place[0] + self.w.nodes
                    way = tirx.const(2, "int64") + self._decision(row, at).astype("int64")
                    place[0] = self.t["steps"][at, way].astype("int64")
        for place in places:
            self._vote(row, place[0])

    def _is_all_leaves(self) -> bool:
        """Whether no tree has a node: then there may be no feature to read."""
        return bool((self.w.tables["roots"] >= 0).all())

    def _decision(self, row: Scalar, at: Scalar) -> Scalar:
        w, steps = self.w, self.t["steps"]
        value = self.x[row, steps[at, 0]]
        split = self.t["splits"][at] if "splits" in self.t else tirx.reinterpret("float32", steps[at, 1])
        found = _COMPARE[w.modes[0]](value, split)
        for other in w.modes[1:]:
            found = tirx.Select(self.t["kinds"][at, 0] == other, _COMPARE[other](value, split), found)
        return tirx.any(found, tirx.all(self.t["kinds"][at, 1] != 0, tirx.isnan(value))) if w.misses else found

    def _vote(self, row: Scalar, leaf: Scalar) -> None:
        if self.w.dense:
            targets = range(self.w.targets) if self.kept is not None else None
            self._each(targets, lambda t: self._set(row, t, self._score(row, t) + self.t["rows"][leaf, t]))
            return
        first = self.t["votes"][leaf]
        with T.serial(self.t["votes"][leaf + 1] - first) as vote:
            target = self.t["targets"][first + vote]
            self._set(row, target, self._joined(row, target, self.t["weights"][first + vote]))
            if self.seen is not None:
                self.seen[row, target] = tirx.const(1, "int8")

    def _joined(self, row: Scalar, target: Scalar, new: Scalar) -> Scalar:
        old = self._score(row, target)
        if self.w.aggregate in ("SUM", "AVERAGE"):
            return old + new
        smaller_or_larger = tirx.min if self.w.aggregate == "MIN" else tirx.max
        assert self.seen is not None, "the first of several is known by marks"
        return tirx.Select(self.seen[row, target] == 0, new, smaller_or_larger(old, new))

    def _each(self, known: range | None, emit: Callable[[Scalar], None]) -> None:
        for t in known or ():
            emit(t)
        if known is None:
            with T.serial(self.w.targets) as t:
                emit(t)

    def _score(self, row: Scalar, t: Scalar) -> Scalar:
        return self.scores[row, t] if self.kept is None else self.kept[t]

    def _set(self, row: Scalar, t: Scalar, value: Scalar) -> None:
        if self.kept is None:
            self.scores[row, t] = value
        else:
            self.kept[t] = value


def _places(codes: np.ndarray, nodes: int) -> np.ndarray:
    """Codes of a forest as places: nodes below 0, leaves from 0 on."""
    return np.where(codes >= 0, codes - nodes, -1 - codes).astype(np.int32)


def _is_dense(forest: Forest, targets: int) -> bool:
    """Whether rows of all targets are at most twice the votes, and no leaf votes twice for one target.

    Of a target without a vote 0 is added, which changes no sum that begins with 0.
    """
    leaves = len(forest.votes) - 1
    of_leaf = np.repeat(np.arange(leaves, dtype=np.int64), np.diff(forest.votes))
    votes = of_leaf * targets + forest.targets[: len(of_leaf)]
    return leaves * targets <= 2 * len(votes) and len(np.unique(votes)) == len(votes)


def always_voted(forest: Forest, targets: int) -> bool:
    """Whether every target gets a vote, whatever the features: some tree has votes for it in all its leaves."""
    nodes = len(forest.features)
    walk = np.stack([np.arange(len(forest.roots)), _places(forest.roots, nodes)], 1).astype(np.int64)
    ends = []
    while len(walk):
        ends.append(walk[walk[:, 1] >= 0])
        walk = walk[walk[:, 1] < 0]
        at = walk[:, 1] + nodes
        below = [np.stack([walk[:, 0], _places(c[at], nodes)], 1) for c in (forest.when_false, forest.when_true)]
        walk = np.unique(np.concatenate(below), axis=0)
    tree, leaf = np.unique(np.concatenate(ends), axis=0).T
    most = np.bincount(tree, minlength=len(forest.roots))
    votes = [set(forest.targets[a:b].tolist()) for a, b in zip(forest.votes[:-1], forest.votes[1:])]
    pairs = [(t, target) for t, end in zip(tree.tolist(), leaf.tolist()) for target in votes[end]]
    counts = np.zeros((len(forest.roots), targets), np.int64)
    np.add.at(counts, tuple(np.array(pairs, np.int64).reshape(-1, 2).T), 1)
    return bool((counts == most[:, None]).any(0).all())
