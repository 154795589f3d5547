"""Tables of a flatbuffer in bytes that nobody vouches for: every offset is checked before it is followed.

Format: a table begins with the signed distance back to its vtable; that is two 16-bit sizes and one 16-bit offset
for each slot, 0 where the slot has its default. Vectors and texts begin with their 32-bit count.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MOST_ITEMS = 4_000_000  # read of one file: offsets may lead to one table many times


class Malformed(ValueError):
    """An offset or a count that leads out of the file."""


class Buffer:
    """The bytes of one file, and how much of them may still be visited."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._left = _MOST_ITEMS

    def number(self, at: int, code: str) -> int | float:
        """The number of struct's `code` at `at`."""
        size = struct.calcsize(f"<{code}")
        if at < 0 or at + size > len(self.data):
            raise Malformed(f"a number at {at} of {len(self.data)} bytes")
        value: int | float = struct.unpack_from(f"<{code}", self.data, at)[0]
        return value

    def offset(self, at: int) -> int:
        """Where the unsigned offset at `at` leads."""
        return at + int(self.number(at, "I"))

    def vector(self, at: int, size: int) -> tuple[int, int]:
        """Count and place of the first element of the vector at `at`, of elements of `size` bytes."""
        count = int(self.number(at, "I"))
        if at + 4 + count * size > len(self.data):
            raise Malformed(f"{count} elements at {at} of {len(self.data)} bytes")
        return count, at + 4

    def spend(self, items: int) -> None:
        """Account for `items` that are visited."""
        self._left -= items
        if self._left < 0:
            raise Malformed(f"more than {_MOST_ITEMS} items")


class Table:
    """One table; a slot is its number in the schema."""

    def __init__(self, buffer: Buffer, at: int) -> None:
        buffer.spend(1)
        self._buffer, self._at = buffer, at
        self._slots = at - int(buffer.number(at, "i"))
        self._size = int(buffer.number(self._slots, "H"))

    def _place(self, slot: int) -> int:
        """Where the value of `slot` lies; 0 where the table leaves it out."""
        entry = 4 + 2 * slot
        if entry + 2 > self._size:
            return 0
        offset = int(self._buffer.number(self._slots + entry, "H"))
        return self._at + offset if offset else 0

    def number(self, slot: int, code: str, default: int | float = 0) -> int | float:
        place = self._place(slot)
        return self._buffer.number(place, code) if place else default

    def integer(self, slot: int, code: str, default: int = 0) -> int:
        return int(self.number(slot, code, default))

    def table(self, slot: int) -> Table | None:
        place = self._place(slot)
        return Table(self._buffer, self._buffer.offset(place)) if place else None

    def tables(self, slot: int) -> list[Table]:
        place = self._place(slot)
        if not place:
            return []
        count, first = self._buffer.vector(self._buffer.offset(place), 4)
        self._buffer.spend(count)
        return [Table(self._buffer, self._buffer.offset(first + 4 * i)) for i in range(count)]

    def text(self, slot: int) -> str:
        place = self._place(slot)
        if not place:
            return ""
        count, first = self._buffer.vector(self._buffer.offset(place), 1)
        self._buffer.spend(count // 16)
        return bytes(self._buffer.data[first : first + count]).decode("utf-8", "replace")

    def array(self, slot: int, dtype: DTypeLike) -> NDArray[Any] | None:
        """The vector of numbers in `slot` as a view of the file; None where the table leaves it out."""
        place = self._place(slot)
        if not place:
            return None
        kind = np.dtype(dtype).newbyteorder("<")
        count, first = self._buffer.vector(self._buffer.offset(place), kind.itemsize)
        return np.frombuffer(self._buffer.data, kind, count, first)

    def integers(self, slot: int, dtype: DTypeLike = np.int32) -> tuple[int, ...]:
        """The vector of integers in `slot`; empty where the table leaves it out."""
        found = self.array(slot, dtype)
        if found is None:
            return ()
        self._buffer.spend(found.size)
        return tuple(int(v) for v in found)


def root(data: memoryview, identifier: bytes) -> Table:
    """The table that the file is; `Malformed` unless it carries `identifier`."""
    if len(data) < 8 or bytes(data[4:8]) != identifier:
        raise Malformed(f"no {identifier.decode()} behind its first offset")
    buffer = Buffer(data)
    return Table(buffer, buffer.offset(0))
