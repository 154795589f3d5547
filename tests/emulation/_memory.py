"""Memory of a launch: bytes with typed views, and who touched them since the last barrier."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ._fault import KernelFault
from ._lanes import Lanes

_PIECE = 2  # bytes whose users are told apart; bytes of int8 each by itself
_NOBODY, _MANY = -1, -2
_UNDER_WAY = np.iinfo(np.int32).max  # when a copy wrote that has not landed: after every barrier
_NARROW = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "bool": np.bool_,
}


def numpy_dtype(dtype: str) -> tuple[np.dtype, int]:
    """NumPy's dtype of one lane of a TVM dtype, and its lanes: ("float16", 4) for "float16x4"."""
    base, _, lanes = dtype.partition("x")
    return np.dtype(_NARROW.get(base, base)), int(lanes or 1)


class Clock:
    """Barriers so far: when each block and each warp last had one."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.now = 0
        self.of_block = np.zeros(len(lanes.block_ids), np.int32)
        self.of_warp = np.zeros(lanes.warps, np.int32)
        self.barriers = 0

    def block_barrier(self, active: np.ndarray | None) -> None:
        """All threads of the active blocks meet."""
        self.barriers += 1
        self.now += 1
        if active is None:
            self.of_block[:] = self.now
            return
        by_block = active.reshape(-1, self.lanes.threads)
        if (by_block.any(1) != by_block.all(1)).any():
            raise KernelFault("a barrier is reached by only some threads of a block: the others would wait for ever")
        self.of_block[by_block.all(1)] = self.now

    def warp_barrier(self, active: np.ndarray | None) -> None:
        """The lanes of the active warps meet."""
        self.now += 1
        self.of_warp[self.lanes.warp if active is None else self.lanes.warp[active]] = self.now

    def ordered(self, other: np.ndarray, when: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """Whether what lane `other` did at `when` is before what lane `mine` does now."""
        block, warp = self.lanes.block, self.lanes.warp
        return (block[other] == block[mine]) & (
            (when < self.of_block[block[mine]]) | ((warp[other] == warp[mine]) & (when < self.of_warp[warp[mine]]))
        )


class Memory:
    """`copies` times the same bytes: one for all, or one per block, warp or lane."""

    def __init__(self, name: str, scope: str, data: np.ndarray, owner: np.ndarray | None, clock: Clock | None) -> None:
        self.name, self.scope = name, scope
        self.data = data  # [copies, bytes]
        self.owner = owner  # copy of each lane; None: the only one
        self.clock = clock  # None: memory of one lane or of the host, which nobody else touches
        if clock is not None:
            shape = data.shape
            self.writer = np.full(shape, _NOBODY, np.int32)
            self.written = np.zeros(shape, np.int32)
            self.reader = np.full(shape, _NOBODY, np.int32)
            self.read = np.zeros(shape, np.int32)

    @classmethod
    def fresh(cls, name: str, scope: str, size_bytes: int, copies: int, owner: np.ndarray | None, clock: Clock | None):
        """Memory that nobody wrote: every float a NaN, every integer -1."""
        return cls(name, scope, np.full((copies, size_bytes), 0xFF, np.uint8), owner, clock)

    def with_clock(self, clock: Clock) -> Memory:
        """The same bytes, watched during a launch."""
        return Memory(self.name, self.scope, self.data, None, clock)

    def load(self, dtype: np.dtype, index: np.ndarray, active: np.ndarray | None, byte_offset: int = 0) -> np.ndarray:
        """Elements at `index` [] or [lanes] or [lanes, n]; what inactive lanes get is of no meaning."""
        view, rows, at = self._locate(dtype, index, active, byte_offset)
        if not view.size:
            return np.zeros(at.shape, dtype)  # of lanes that are not active: the others would be outside
        if self.clock is not None:
            self._note_read(dtype, rows, at, active)
        return view[rows, at]

    def store(
        self, dtype: np.dtype, index: np.ndarray, value: np.ndarray, active: np.ndarray | None, byte_offset: int = 0
    ) -> None:
        """`value` [] or [lanes] or [lanes, n] into the elements at `index`, by the active lanes."""
        view, _, at = self._locate(dtype, index, active, byte_offset)
        lanes = self._lanes(active)
        value = np.asarray(value, dtype)
        if at.ndim == 2 and value.ndim == 1:
            value = value[:, None]
        shape = (self.lane_count, *np.broadcast_shapes(at.shape[1:], value.shape[1:]))
        at, value = np.broadcast_to(at, shape)[lanes], np.broadcast_to(value, shape)[lanes]
        rows = self._rows(lanes, at)
        if self.clock is not None:
            self._note_write(dtype, view, rows, at, value, lanes, self.clock.now)
        view[rows, at] = value
        if self.clock is not None and _differs(view[rows, at], value).any():
            raise KernelFault(f"two threads write different values to one element of {self.name} in one statement")

    def reserve(self, index: np.ndarray, active: np.ndarray | None) -> None:
        """Active lanes will change the bytes at `index` [lanes or 1, n]: nobody may use them until they have."""
        dtype = np.dtype(np.uint8)
        view, _, at = self._locate(dtype, index, active, 0)
        if self.clock is None:
            return
        lanes = self._lanes(active)
        at = np.broadcast_to(at, (self.lane_count, *at.shape[1:]))[lanes]
        rows = self._rows(lanes, at)
        self._note_write(dtype, view, rows, at, ~view[rows, at], lanes, _UNDER_WAY)

    @property
    def lane_count(self) -> int:
        if self.clock is not None:
            return self.clock.lanes.count
        return 1 if self.owner is None else len(self.owner)

    def _lanes(self, active: np.ndarray | None) -> np.ndarray:
        return np.arange(self.lane_count) if active is None else np.flatnonzero(active)

    def _rows(self, lanes: np.ndarray, at: np.ndarray) -> np.ndarray:
        rows = np.zeros(len(lanes), np.intp) if self.owner is None else self.owner[lanes]
        return rows.reshape(-1, *[1] * (at.ndim - 1))

    def _locate(
        self, dtype: np.dtype, index: np.ndarray, active: np.ndarray | None, byte_offset: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The typed view, copies and elements; a fault for an active lane outside."""
        whole = (self.data.shape[1] - byte_offset) // dtype.itemsize
        view = self.data[:, byte_offset : byte_offset + whole * dtype.itemsize].view(dtype)
        at = np.asarray(index, np.int64)
        outside = (at < 0) | (at >= whole)
        if outside.any():
            meant = (
                True if active is None else active.any() if not at.ndim else active.reshape(-1, *[1] * (at.ndim - 1))
            )
            wrong = outside & meant
            if wrong.any():
                first = np.broadcast_to(at, wrong.shape)[wrong].flat[0]
                raise KernelFault(f"element {first} of {self.name} is touched, which has {whole} of {dtype}")
            at = np.where(outside, 0, at)
        rows: np.ndarray = np.zeros((), np.intp) if self.owner is None else self.owner
        if rows.ndim and at.ndim == 2:
            rows = rows[:, None]
        return view, rows, at

    def _pieces(self, dtype: np.dtype, at: np.ndarray) -> np.ndarray:
        """First bytes of the pieces of each element: [..., pieces]."""
        return at[..., None] * dtype.itemsize + np.arange(0, dtype.itemsize, _PIECE)

    def _note_read(self, dtype: np.dtype, rows: np.ndarray, at: np.ndarray, active: np.ndarray | None) -> None:
        lanes = self._lanes(active)
        at = np.broadcast_to(at, (self.lane_count, *at.shape[1:]))[lanes]
        pieces = self._pieces(dtype, at)
        copies = self._rows(lanes, pieces)
        mine = np.broadcast_to(lanes.reshape(-1, *[1] * (pieces.ndim - 1)), pieces.shape)
        writer, written = self.writer[copies, pieces], self.written[copies, pieces]
        if (written == _UNDER_WAY).any():
            raise KernelFault(f"a thread reads from {self.name} ({self.scope}) what a copy may not have brought yet")
        others = (writer >= 0) & (writer != mine)
        if others.any() and (others & ~self.clock.ordered(writer, written, mine)).any():
            raise KernelFault(
                f"a thread reads what another wrote to {self.name} ({self.scope}) with no barrier between them"
            )
        reader, now = self.reader[copies, pieces], self.clock.now
        current = (reader != _NOBODY) & (self.read[copies, pieces] >= self._last_barrier(mine))
        self.reader[copies, pieces] = np.where(current & (reader != mine), _MANY, mine)
        # Several lanes reading one element in this very statement are many, too.
        copies, pieces = np.broadcast_arrays(copies, pieces)
        shared = self.reader[copies, pieces] != mine
        self.reader[copies[shared], pieces[shared]] = _MANY
        self.read[copies, pieces] = now

    def _last_barrier(self, mine: np.ndarray) -> np.ndarray:
        return self.clock.of_block[self.clock.lanes.block[mine]]

    def _note_write(
        self,
        dtype: np.dtype,
        view: np.ndarray,
        rows: np.ndarray,
        at: np.ndarray,
        value: np.ndarray,
        lanes: np.ndarray,
        when: int,
    ) -> None:
        pieces = self._pieces(dtype, at)
        copies = self._rows(lanes, pieces)
        mine = np.broadcast_to(lanes.reshape(-1, *[1] * (pieces.ndim - 1)), pieces.shape)
        changed = np.broadcast_to(_differs(view[rows, at], value)[..., None], pieces.shape)
        writer, written = self.writer[copies, pieces], self.written[copies, pieces]
        meets = (writer >= 0) & (writer != mine)
        late = meets & ~self.clock.ordered(np.maximum(writer, 0), written, mine)
        if (late & changed).any():
            raise KernelFault(f"two threads write to one element of {self.name} ({self.scope}) with no barrier between")
        reader, read = self.reader[copies, pieces], self.read[copies, pieces]
        one = (reader >= 0) & (reader != mine) & ~self.clock.ordered(np.maximum(reader, 0), read, mine)
        many = (reader == _MANY) & (read >= self._last_barrier(mine))
        if ((one | many) & changed).any():
            raise KernelFault(
                f"a thread overwrites an element of {self.name} ({self.scope}) that another reads, with no barrier "
                "between them"
            )
        self.writer[copies, pieces] = mine
        self.written[copies, pieces] = when


@dataclass(frozen=True, eq=False)
class Pointer:
    """Where an access begins: elements of `dtype` from `offset` (of each lane) on."""

    memory: Memory
    dtype: np.dtype
    offset: np.ndarray
    byte_offset: int = 0


def _differs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where values differ; NaNs are equal."""
    return ~((a == b) | ((a != a) & (b != b)))
