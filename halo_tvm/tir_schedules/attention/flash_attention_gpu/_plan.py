"""The decision of the rule, and the sizes and places that follow from it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from ....dimensions import itemsize_of
from ....targets import WARP
from ...code.threads import VECTOR_BYTES
from .._problem import Problem
from ..flash_attention.plan import blocks

_TILE = 16  # rows and depth of a product on tensor cores
_OTHERS = 40  # registers for addresses, statistics and operands on their way
_KEPT_QUERIES = 32  # registers; more of them are read again from shared memory for every block of keys


@dataclass(frozen=True)
class Decision:
    """Tile sizes of one block of threads."""

    block_q: int  # queries
    block_k: int  # keys per step of the online softmax
    warps: int


@dataclass(frozen=True)
class Plan:
    """Sizes, and what a thread holds: rows of scores and results (see `_online_softmax.Held`)."""

    problem: Problem
    decision: Decision

    @property
    def operand(self) -> str:
        """What tensor cores take the operands as, in PTX's words; "": they are multiplied in float32."""
        wide = "tf32" if self.problem.tf32 else ""
        return {"float16": "fp16", "bfloat16": "bf16"}.get(self.problem.dtype, wide)

    @property
    def on_tensor_cores(self) -> bool:
        return bool(self.operand)

    @property
    def depth(self) -> int:
        """Of one product on tensor cores: 32 bytes, of which ldmatrix brings a thread as many as a chunk has."""
        return 2 * self.chunk

    @property
    def threads(self) -> int:
        return self.decision.warps * WARP

    @property
    def query_blocks(self) -> str:
        return blocks(self.problem.s, self.decision.block_q)

    @property
    def chunk(self) -> int:
        """Elements of one asynchronous copy."""
        return VECTOR_BYTES // itemsize_of(self.problem.dtype)

    @property
    def stride(self) -> int:
        """Elements from one row of a tile in shared memory to the next.

        16 bytes more than a row: eight rows then begin in eight different groups of banks.
        """
        return self.problem.d + self.chunk

    @property
    def score_stride(self) -> int:
        return self.decision.block_k + self.chunk

    @cached_property
    def tiles(self) -> dict[str, int]:
        """Where the tiles of queries, keys, values and weights begin in shared memory, and its "end", in elements.

        They are one allocation: of several TVM would let one take the place of another that nobody reads any
        more, while copies into that are still on their way.
        """
        decision = self.decision
        sizes = [decision.block_q * self.stride, decision.block_k * self.stride, decision.block_k * self.stride]
        sizes.append(0 if self.on_tensor_cores else decision.block_q * self.score_stride)
        return dict(zip(("q", "k", "v", "p", "end"), itertools.accumulate(sizes, initial=0)))

    @property
    def memory(self) -> str:
        """The name of that allocation: kernels in one source whose dynamic shared memory has one name must agree on
        its type."""
        return f"tiles_{self.problem.dtype}"

    @property
    def shared_bytes(self) -> int:
        return self.tiles["end"] * itemsize_of(self.problem.dtype)

    @property
    def registers(self) -> int:
        """What a thread should need."""
        d, block_k = self.problem.d, self.decision.block_k
        if self.on_tensor_cores:
            kept = self._query_registers if self.keeps_queries else 0
            return self.stack * (d // 2 + block_k // 2) + kept + _OTHERS
        return d // 2 + block_k // 2 + 20 + _OTHERS

    # ---- a warp's part: 16 rows, on tensor cores perhaps 32

    @property
    def rows_per_warp(self) -> int:
        return self.decision.block_q // self.decision.warps

    @property
    def stack(self) -> int:
        """Tiles of 16 rows."""
        return self.rows_per_warp // _TILE

    @property
    def keeps_queries(self) -> bool:
        """Whether a thread holds its operands of the queries in registers."""
        return self.on_tensor_cores and self._query_registers <= _KEPT_QUERIES

    @property
    def _query_registers(self) -> int:
        return self.stack * self.problem.d * itemsize_of(self.problem.dtype) // 8

    @property
    def row_count(self) -> int:
        return 2 * self.stack if self.on_tensor_cores else 4

    @property
    def row_lanes(self) -> int:
        return 4 if self.on_tensor_cores else 8

    @property
    def column_count(self) -> int:
        return self.decision.block_k // self.row_lanes

    def row(self, r: int) -> str:
        """Where row `r` of a thread is in the block."""
        first = f"warp * {self.rows_per_warp} + lane // {self.row_lanes}"
        return f"({first} + {r * 8 if self.on_tensor_cores else r * 4})"

    def column(self, c: str) -> str:
        """Which key of a step column `c` of a thread is."""
        if self.on_tensor_cores:
            return f"({c} // 2 * 8 + lane % 4 * 2 + {c} % 2)"
        return f"({c} * 8 + lane % 8)"

    def query(self, r: int) -> str:
        return f"(q0 + {self.row(r)})"

    def head(self, r: int) -> str:
        return "head"

    def key(self, c: str) -> str:
        return f"(first + {self.column(c)})"

    @property
    def edge(self) -> str:
        decision, problem = self.decision, self.problem
        edge = f"whole < first + {decision.block_k}"
        if problem.window:
            edge = f"T.Or({edge}, first <= q0 + {decision.block_q - 1 - problem.window} + shift)"
        return edge

    def score(self, r: int, c: str) -> str:
        if self.on_tensor_cores:
            return f"{r // 2 * 2 * self.column_count + r % 2 * 2} + {c} // 2 * 4 + {c} % 2"
        return f"{r * self.column_count} + {c}"

    # ---- results: `out_count` vectors of `out_vector` columns of each row

    @property
    def out_vector(self) -> int:
        return 4 if not self.on_tensor_cores and self.problem.d % 32 == 0 else 2

    @property
    def out_count(self) -> int:
        return self.problem.d // (self.row_lanes * self.out_vector)

    def out_column(self, u: str) -> str:
        """The first column of vector `u`."""
        return f"({u} * {self.row_lanes * self.out_vector} + lane % {self.row_lanes} * {self.out_vector})"

    def out(self, r: int, u: str) -> str:
        if self.on_tensor_cores:
            return f"{r // 2 * 4 * self.out_count + r % 2 * 2} + {u} * 4"
        return f"{(r * self.out_count) * self.out_vector} + {u} * {self.out_vector}"
