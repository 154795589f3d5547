"""The decision of the rule, and the sizes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ._problem import Problem
from ._text import Vectors, i64


@dataclass(frozen=True)
class Decision:
    """Tile sizes; rows are queries, vectors are registers of float32 lanes."""

    block_q: int  # queries one task serves
    block_k: int  # keys per step of the online softmax
    score_rows: int  # register tile of q @ k^T
    score_vectors: int
    value_rows: int  # register tile of weights @ v
    value_vectors: int
    pack_values: bool = True  # copy V per KV head: its rows then lie close together


@dataclass(frozen=True)
class Plan:
    problem: Problem
    decision: Decision
    lanes: int

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

    @cached_property
    def slots(self) -> dict[str, int]:
        """Offsets of the scratch of one task in its only buffer, and its size under "".

        One buffer, used to the end: StorageRewrite gives the space of a dead buffer to the next one of any
        element type, and fails when one is of vectors and the other of scalars.
        """
        decision, d, lanes = self.decision, self.problem.d, self.lanes
        sizes = {
            "queries": decision.block_q * d,
            "scores": decision.block_q * decision.block_k,
            "peaks": decision.block_q * lanes,
            "totals": decision.block_q * lanes,
            "fades": decision.block_q * lanes,
            "line": decision.block_k if self.problem.bias else 0,
            "mixed": decision.block_q * d,
        }
        offsets, total = {}, 0
        for name, size in sizes.items():
            offsets[name] = total
            total += size
        return {**offsets, "": total}

    def scratch(self, name: str, index: str) -> str:
        """One value of the scratch named `name`."""
        return f"scratch[{i64(self.slots[name])} + {index}]"

    def scratch_vector(self, name: str, index: str) -> str:
        return f"scratch[{self.vectors.span(f'{i64(self.slots[name])} + {index}')}]"

    @property
    def value_groups(self) -> list[tuple[int, int]]:
        """(first vector, number of vectors) of each column group of a value tile."""
        count, step = self.problem.d // self.lanes, self.decision.value_vectors
        return [(first, min(step, count - first)) for first in range(0, count, step)]


def blocks(extent: str, size: int) -> str:
    return f"(({extent} + T.int64({size - 1})) // T.int64({size}))"
