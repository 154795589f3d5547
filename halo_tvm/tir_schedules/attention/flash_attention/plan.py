"""The decision of the rule, and the sizes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .._problem import Problem
from .._text import Vectors


@dataclass(frozen=True)
class Decision:
    """Tile sizes; rows are queries, vectors are registers of float32 lanes."""

    block_q: int  # queries one task serves
    block_k: int  # keys per step of the online softmax
    score_rows: int  # register tile of q @ k^T
    score_vectors: int
    value_rows: int  # register tile of weights @ v
    value_vectors: int
    pack_values: bool = True  # copy V per KV head: its rows then lie close together; pairs always are copied


@dataclass(frozen=True)
class Plan:
    problem: Problem
    decision: Decision
    lanes: int
    pairs: bool = False  # products of pairs of bfloat16: vector x of 32 columns (or keys) beside vector x + 16
    tiles: bool = False  # these in registers of two dimensions

    @property
    def width(self) -> int:
        """Float32 lanes that hold the row of one head: its values, or words of two."""
        return self.problem.d // 2 if self.pairs else self.problem.d

    @property
    def packs_values(self) -> bool:
        return self.pairs or self.decision.pack_values

    @property
    def depth(self) -> int:
        """Rows of packed values of a block of keys."""
        return self.decision.block_k // 2 if self.pairs else self.decision.block_k

    @cached_property
    def vectors(self) -> Vectors:
        return Vectors(self.lanes)

    @property
    def panel(self) -> int:
        """Keys of one packed column panel: [d, panel]."""
        return self.decision.score_vectors * self.lanes

    @property
    def key_blocks(self) -> str:
        return blocks(self.problem.t, self.decision.block_k)

    @property
    def query_blocks(self) -> str:
        return blocks(self.problem.s, self.decision.block_q)

    @property
    def scratch(self) -> dict[str, tuple[int, int]]:
        """Name -> (rows, columns) of the float32 buffers of one task."""
        decision, d = self.decision, self.problem.d
        statistics = dict.fromkeys(("peaks", "totals", "fades"), (decision.block_q, self.lanes))
        line = {"line": (1, decision.block_k)} if self.problem.bias else {}
        weights = {"weights": (decision.block_q, self.depth)} if self.pairs else {}
        return {
            "queries": (decision.block_q, self.width),
            "scores": (decision.block_q, decision.block_k),
            **weights,
            "mixed": (decision.block_q, d),
            **statistics,
            **line,
        }

    def vector(self, name: str, row: str, column: object = 0) -> str:
        """One vector of the scratch `name`."""
        return f"{name}[{row}, {self.vectors.span(column)}]"

    @property
    def value_groups(self) -> list[tuple[int, int]]:
        """(first vector, number of vectors) of each column group of a value tile."""
        count, step = self.problem.d // self.lanes, self.decision.value_vectors
        return [(first, min(step, count - first)) for first in range(0, count, step)]


def blocks(extent: str, size: int) -> str:
    return f"(({extent} + T.int64({size - 1})) // T.int64({size}))"
