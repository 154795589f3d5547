"""Regression trees as arrays: evaluated with NumPy, kept as JSON.

A learned model is read back from files that anyone may have written; these arrays are checked node by
node before use, which the binary reader of a library would not do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MOST_TREES = 2000
_MOST_NODES = 32  # trees of depth 4 have at most 31
LARGEST = 20.0  # of a value and of a sum: logarithms of speed-ups
_FIELDS = ("feature", "threshold", "left", "right", "default_left", "value")


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
        return {
            "features": list(self.names),
            "trees": [{name: list(getattr(tree, name)) for name in _FIELDS} for tree in self.trees],
        }

    @classmethod
    def from_plain(cls, body: Mapping[str, object]) -> Ensemble:
        """The ensemble in a file; raises `ValueError` for anything that is none."""
        names, trees = body.get("features"), body.get("trees")
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
            raise ValueError("features must be distinct names")
        if not isinstance(trees, list) or len(trees) > MOST_TREES:
            raise ValueError(f"trees must be a list of at most {MOST_TREES}")
        return cls(names, [_tree(tree, len(names)) for tree in trees])


def _tree(body: object, features: int) -> Tree:
    if not isinstance(body, dict) or set(body) != set(_FIELDS):
        raise ValueError(f"a tree has the fields {', '.join(_FIELDS)}")
    count = len(body["left"]) if isinstance(body["left"], list) else 0
    if not 0 < count <= _MOST_NODES or any(not isinstance(body[f], list) or len(body[f]) != count for f in _FIELDS):
        raise ValueError(f"a tree has 1 to {_MOST_NODES} nodes and as many of each field")
    for name in ("feature", "left", "right", "default_left"):
        if any(type(v) is not int for v in body[name]):
            raise ValueError(f"{name} holds integers")
    for name in ("threshold", "value"):
        if any(type(v) not in (int, float) or not math.isfinite(v) or abs(v) > 1e38 for v in body[name]):
            raise ValueError(f"{name} holds finite numbers")
    if any(abs(v) > LARGEST for v in body["value"]):
        raise ValueError(f"value holds logarithms of speed-ups, at most {LARGEST:g}")
    for at in range(count):
        if body["left"][at] == -1:
            continue
        # Children stand behind their parent: a walk ends.
        if not (at < body["left"][at] < count and at < body["right"][at] < count):
            raise ValueError(f"node {at} has no such children")
        if not 0 <= body["feature"][at] < features:
            raise ValueError(f"node {at} asks for a feature that there is not")
    return Tree(**{name: tuple(body[name]) for name in _FIELDS})
