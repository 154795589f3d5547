"""The threads of a launch, or of as many of its blocks as are run at a time: one lane each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ._fault import KernelFault

WARP = 32
_GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_BLOCK = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True)
class Launch:
    """Extents of a launch by tag ("blockIdx.x"); a tag that is not there counts one."""

    extents: Mapping[str, int]

    @property
    def blocks(self) -> int:
        return int(np.prod([self.extents.get(tag, 1) for tag in _GRID]))

    @property
    def threads(self) -> int:
        return int(np.prod([self.extents.get(tag, 1) for tag in _BLOCK]))

    def lanes(self) -> Lanes:
        """Every thread of every block."""
        return Lanes(self, np.arange(self.blocks, dtype=np.int32), self.threads)


@dataclass(frozen=True, eq=False)
class Lanes:
    """Lanes in order of block and thread; order among blocks and warps is what a barrier must not rely on."""

    launch: Launch
    block_ids: np.ndarray  # [blocks]
    threads: int

    @property
    def count(self) -> int:
        return len(self.block_ids) * self.threads

    @cached_property
    def block(self) -> np.ndarray:
        """Position of each lane's block among those that are run."""
        return np.repeat(np.arange(len(self.block_ids), dtype=np.int32), self.threads)

    @cached_property
    def thread(self) -> np.ndarray:
        """Number of each lane in its block, x fastest."""
        return np.tile(np.arange(self.threads, dtype=np.int32), len(self.block_ids))

    @cached_property
    def warp(self) -> np.ndarray:
        """Number of each lane's warp among those that are run."""
        return self.block * self.warps_per_block + self.thread // WARP

    @property
    def warps_per_block(self) -> int:
        return -(-self.threads // WARP)

    @property
    def warps(self) -> int:
        return len(self.block_ids) * self.warps_per_block

    def index(self, tag: str) -> np.ndarray:
        """The value of `blockIdx.*` or `threadIdx.*` in each lane."""
        tags = _GRID if tag in _GRID else _BLOCK
        flat = self.block_ids[self.block] if tag in _GRID else self.thread
        for before in tags[: tags.index(tag)]:
            flat = flat // self.launch.extents.get(before, 1)
        return (flat % self.launch.extents.get(tag, 1)).astype(np.int32)

    def active_mask(self, active: np.ndarray | None) -> np.ndarray:
        """The active lanes of each lane's warp, as the bits of a uint32 [lanes]."""
        bits = np.zeros((len(self.block_ids), self.warps_per_block * WARP), np.uint32)
        threads = True if active is None else active.reshape(-1, self.threads)
        bits[:, : self.threads] = np.where(threads, self._bit, 0)
        return np.bitwise_or.reduce(bits.reshape(-1, WARP), 1)[self.warp]

    def check_mask(self, mask: np.ndarray, active: np.ndarray | None, what: str) -> None:
        """A fault unless an active lane's mask names itself, and of the lanes that exist active ones only."""
        mask = np.broadcast_to(mask.astype(np.uint32), self.count)
        mine = self.active_mask(active)
        wrong = (mask & self.active_mask(None) & ~mine != 0) | (mask & np.tile(self._bit, len(self.block_ids)) == 0)
        if active is not None:
            wrong = wrong & active
        if wrong.any():
            first = np.flatnonzero(wrong)[0]
            raise KernelFault(
                f"{what} is for the lanes {mask[first]:#010x} of a warp, and {mine[first]:#010x} reach it: on a GPU "
                "that is undefined"
            )

    @cached_property
    def _bit(self) -> np.ndarray:
        """The bit of each thread of a block in masks of its warp."""
        return np.uint32(1) << (np.arange(self.threads) % WARP).astype(np.uint32)

    def whole_warps(self, active: np.ndarray | None, what: str) -> np.ndarray:
        """The warps all of whose lanes are active, as rows of 32 lanes; a fault when one is so only in part."""
        if self.threads % WARP:
            raise KernelFault(f"{what} needs whole warps, but a block has {self.threads} threads")
        rows = np.arange(self.count).reshape(-1, WARP)
        if active is None:
            return rows
        in_row = active.reshape(-1, WARP)
        if (in_row.any(1) != in_row.all(1)).any():
            raise KernelFault(f"{what} is reached by only some lanes of a warp")
        return rows[in_row.all(1)]
