"""The decision of the rule, and the sizes and places that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ....dimensions import itemsize_of
from ....targets import WARP
from ...code.threads import VECTOR_BYTES
from ..decode_attention.plan import QueryRows

_MOST_COLUMNS = 16  # of a thread's share of a row; narrower loads give more lanes a share
_HELD = 32  # float32 numbers of queries, and as many of results, that a thread holds


@dataclass(frozen=True)
class Decision:
    """How the keys of one batch row are divided."""

    splits: int  # most blocks of threads per batch row and KV head
    least_keys: int  # of a block, where there are enough: below it a block costs more than it saves
    warps: int
    keys: int  # that a lane reads before it looks at their scores


@dataclass(frozen=True)
class Plan(QueryRows):
    """`key_lanes` lanes read one key together, each `columns` of it; a warp reads `keys_per_warp` at a time."""

    decision: Decision

    @property
    def threads(self) -> int:
        return self.decision.warps * WARP

    # ---- a row of keys or values among lanes

    @cached_property
    def vector(self) -> int:
        """Elements of one load: the widest that leaves a lane few columns."""
        widest = VECTOR_BYTES // itemsize_of(self.problem.dtype)
        choices = [v for v in (8, 4, 2) if v <= widest]
        return next((v for v in choices if self.problem.d // _lanes(self.problem.d // v) <= _MOST_COLUMNS), 2)

    @property
    def key_lanes(self) -> int:
        """Lanes that read one key together."""
        return _lanes(self.problem.d // self.vector)

    @property
    def columns(self) -> int:
        """Of a lane."""
        return self.problem.d // self.key_lanes

    @property
    def keys_per_warp(self) -> int:
        return WARP // self.key_lanes

    @property
    def step(self) -> int:
        """Keys that a block reads before it looks at their scores."""
        return self.decision.keys * self.decision.warps * self.keys_per_warp

    def column(self, e: str) -> str:
        """The column of element `e` of a lane: vectors of neighbouring lanes are neighbours."""
        first = f"{e} // {self.vector} * {self.key_lanes * self.vector}"
        return f"({first} + lane % {self.key_lanes} * {self.vector} + {e} % {self.vector})"

    # ---- what a thread holds (see `_online_softmax.Held`)

    @cached_property
    def row_count(self) -> int:
        """As many rows of a KV head as its registers hold; the others read the keys again."""
        most = max(1, _HELD // self.columns)
        return max(r for r in range(1, self.group + 1) if self.group % r == 0 and r <= most)

    @property
    def piles(self) -> int:
        """Blocks of threads of one KV head and one part of its keys."""
        return self.group // self.row_count

    @property
    def column_count(self) -> int:
        return self.decision.keys

    @property
    def row_lanes(self) -> int:
        return 1  # lanes that read other keys meet at the end only

    @property
    def out_count(self) -> int:
        return self.columns

    @property
    def out_vector(self) -> int:
        return 1

    @property
    def edge(self) -> str:
        return "T.bool(True)"

    def score(self, r: int, c: str) -> str:
        return f"{r * self.column_count} + {c}"

    def out(self, r: int, u: str) -> str:
        return f"{r * self.columns} + {u}"

    def member(self, r: int) -> str:
        """Place of row `r` among those of its KV head, as int32."""
        return f"(pile * {self.row_count} + {r})"

    def query(self, r: int) -> str:
        return f"({self.member(r)} % {self.s})"

    def head(self, r: int) -> str:
        return f'(kv * T.int64({self.problem.ratio}) + T.cast({self.member(r)} // {self.s}, "int64"))'

    def key(self, c: str) -> str:
        return f"(first + {c} * {self.decision.warps * self.keys_per_warp})"

    # ---- limits

    @property
    def shared_bytes(self) -> int:
        return 4 * self.decision.warps * self.row_count * (self.problem.d + 2)

    @property
    def registers(self) -> int:
        """What a thread should need."""
        loaded = 2 * self.decision.keys * self.columns * itemsize_of(self.problem.dtype) // 4
        return self.row_count * (2 * self.columns + self.decision.keys + 4) + loaded + 40


def _lanes(vectors: int) -> int:
    """The most lanes of a warp, a power of two, that divide `vectors` among them."""
    lanes = 1
    while lanes < WARP and vectors % (2 * lanes) == 0:
        lanes *= 2
    return lanes
