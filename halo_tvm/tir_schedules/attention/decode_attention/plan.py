"""The decision of the rule, and the sizes and names that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import tirx

from ....dimensions import itemsize_of
from ....errors import Declined
from ...code.prefetch import CACHE_LINE_BYTES
from .._problem import Problem, buffers_of
from .._text import Vectors

_MOST_QUERIES = 8


def few_queries(func: tirx.PrimFunc) -> int:
    """The number of queries of an attention function, or Declined."""
    queries = buffers_of(func)[0].shape[1]
    count = int(queries) if isinstance(queries, tirx.IntImm) else str(queries)
    if isinstance(count, str) or count > _MOST_QUERIES:
        raise Declined(f"serves 1 to {_MOST_QUERIES} queries, known when compiling, got {count}")
    return count


@dataclass(frozen=True)
class Decision:
    """How the keys of one batch row are divided."""

    chunk: int  # keys per step of the online softmax
    splits: int  # most tasks per batch row
    least_keys: int  # of a task, where there are enough: below it a task costs more than it saves


@dataclass(frozen=True)
class QueryRows:
    """A row is one query of one head. Rows of a KV head lie together: row = kv * group + (head % ratio) * s + i."""

    problem: Problem
    s: int  # queries

    @property
    def group(self) -> int:
        """Rows that read one KV head."""
        return self.problem.ratio * self.s

    @property
    def rows(self) -> int:
        return self.problem.h * self.s


@dataclass(frozen=True)
class Plan(QueryRows):
    """Sizes, and the text of places in memory."""

    decision: Decision
    lanes: int

    @cached_property
    def vectors(self) -> Vectors:
        return Vectors(self.lanes)

    @property
    def line(self) -> int:
        """Numbers of a key, or of a value, in a cache line."""
        return CACHE_LINE_BYTES // itemsize_of(self.problem.kept)

    @property
    def columns(self) -> int:
        """Vectors of a head."""
        return self.problem.d // self.lanes

    def vector(self, name: str, row: object, column: object = 0) -> str:
        """One vector of the scratch `name`."""
        return f"{name}[{row}, {self.vectors.span(column)}]"

    def part(self, name: str, n: str, split: str, row: object, column: object = 0) -> str:
        """One vector of what a task leaves for the merge."""
        return f"{name}[{n}, {split}, {row}, {self.vectors.span(column)}]"

    def head_of(self, row: str) -> str:
        return f"({row} // T.int64({self.s}))"

    def query_of(self, row: str) -> str:
        return f"({row} % T.int64({self.s}))"
