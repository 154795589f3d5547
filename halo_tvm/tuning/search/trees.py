"""Regression trees as arrays: evaluated with NumPy, kept as JSON.

A learned model is read back from files that anyone may have written; these arrays are checked node by
node before use, which the binary reader of a library would not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ...codec import Form, Must, plain, read

MOST_TREES = 2000
_MOST_NODES = 32  # trees of depth 4 have at most 31
LARGEST = 20.0  # of a value and of a sum: logarithms of speed-ups


@dataclass(frozen=True)
class Tree:
    """One tree; node 0 is the root, `left` of a leaf is -1. A row goes left when its feature is below the threshold."""

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    default_left: tuple[int, ...]  # where a missing feature goes
    value: tuple[float, ...]  # of leaves


class Ensemble:
    """The sum of some trees over named features."""

    def __init__(self, names: Sequence[str], trees: Sequence[Tree]) -> None:
        self.names = tuple(names)
        self.trees = tuple(trees)
        nodes = max((len(t.left) for t in self.trees), default=1)

        def padded(name: str, dtype: str) -> np.ndarray:
            made = np.zeros((len(self.trees), nodes), dtype=dtype)
            for at, tree in enumerate(self.trees):
                values = getattr(tree, name)
                made[at, : len(values)] = values
            return made

        self._feature = padded("feature", "int64")
        self._threshold = padded("threshold", "float32")
        self._value = padded("value", "float64")
        self._left, self._right = padded("left", "int64"), padded("right", "int64")
        self._default_left = padded("default_left", "bool")

    def predict(self, features: np.ndarray) -> np.ndarray:
        """float64 [rows] from float32 [rows, names], within 20 of zero."""
        if not self.trees or not len(features):
            return np.zeros(len(features))
        tree = np.arange(len(self.trees))
        node = np.zeros((len(features), len(self.trees)), dtype=np.int64)
        row = np.arange(len(features))[:, None]
        while True:
            inner = self._left[tree, node] >= 0
            if not inner.any():
                return self._value[tree, node].sum(axis=1).clip(-LARGEST, LARGEST)
            x = features[row, self._feature[tree, node]]
            goes_left = np.where(np.isnan(x), self._default_left[tree, node], x < self._threshold[tree, node])
            child = np.where(goes_left, self._left[tree, node], self._right[tree, node])
            node = np.where(inner, child, node)

    def to_plain(self) -> dict[str, object]:
        return {"features": list(self.names), "trees": plain(self.trees)}

    @classmethod
    def from_plain(cls, body: object) -> Ensemble:
        """The ensemble in a file; raises `ValueError` for anything that is none."""
        saved = read(_Saved, body, form=Form(other_fields=True))
        for tree in saved.trees:
            _check(tree, len(saved.features))
        return cls(saved.features, saved.trees)


_Names = Annotated[tuple[str, ...], Must(lambda names: len(set(names)) == len(names), "distinct names")]
_Trees = Annotated[tuple[Tree, ...], Must(lambda trees: len(trees) <= MOST_TREES, f"at most {MOST_TREES} trees")]


@dataclass(frozen=True)
class _Saved:
    features: _Names
    trees: _Trees


def _check(tree: Tree, features: int) -> None:
    """`ValueError` unless a walk from the root ends at a leaf."""
    count = len(tree.left)
    if not 0 < count <= _MOST_NODES or any(len(nodes) != count for nodes in vars(tree).values()):
        raise ValueError(f"a tree has 1 to {_MOST_NODES} nodes and as many of each field")
    if any(abs(v) > 1e38 for v in tree.threshold) or any(abs(v) > LARGEST for v in tree.value):
        raise ValueError(f"value holds logarithms of speed-ups, at most {LARGEST:g}, threshold what float32 holds")
    for at, (left, right, feature) in enumerate(zip(tree.left, tree.right, tree.feature)):
        if left == -1:
            continue
        # Children stand behind their parent: a walk ends.
        if not (at < left < count and at < right < count):
            raise ValueError(f"node {at} has no such children")
        if not 0 <= feature < features:
            raise ValueError(f"node {at} asks for a feature that there is not")
