"""Which stretches of kernels are worth running a few images at a time: bytes that stay near against work done again.

A tensor of the whole batch that is larger than the caches goes to memory when it is written, and comes back for every
kernel that reads it. Of few images it stays. Each part of the batch, in turn, launches every kernel of the stretch and
reads all its weights again, out of the last level of the caches.
All is counted in bytes of traffic with memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_HELD = 2  # times the second-level caches of all cores: what a tensor may have that the next kernel finds near
_NEAR = 4  # times these: of what the last level holds, a fourth of the time is lost
_PART_OF_NEAR = 0.75
_LAUNCH = 60_000  # bytes that memory gives in the time that a launch and its waking of threads takes: 4 us
_NEARER = 5  # times as fast as memory the last level of the caches is
_LEAST = 4 << 20  # bytes for which a run is cut


@dataclass
class Tensor:
    """A tensor of the whole batch: `maker` is the kernel that writes it, -1 where there is none in the function."""

    size: int
    maker: int = -1
    readers: list[int] = field(default_factory=list)
    leaves: bool = False  # the function returns it, or something that is no kernel reads it


@dataclass(frozen=True)
class Kernel:
    """One step of a function: what it reads and writes of the batch, and the bytes of what it reads beside that."""

    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    others: int
    first: int = 0  # the earliest start of a stretch that it can be in


@dataclass(frozen=True)
class Stretch:
    """The kernels first ... last, `images` of the batch at a time; `saved` are bytes of traffic."""

    first: int
    last: int
    images: int
    saved: float


def stretches(steps: Sequence[Kernel | None], count: int, cache: int) -> list[Stretch]:
    """Of `steps`, of which None can be in no stretch, those worth it for `count` images and caches of `cache` bytes."""
    found: list[Stretch] = []
    todo = list(_between(steps))
    while todo:
        first, last = todo.pop()
        each = (_best(steps, first, last, count, images, cache) for images in _divisors(count))
        best = max((s for s in each if s is not None), key=lambda s: s.saved, default=None)
        if best is not None:
            found.append(best)
            todo += [(first, best.first - 1), (best.last + 1, last)]
    return sorted(found, key=lambda s: s.first)


def _divisors(count: int) -> list[int]:
    """How many images a part may have: each part has as many."""
    return [d for d in range(1, count) if count % d == 0]


def _between(steps: Sequence[Kernel | None]) -> Iterator[tuple[int, int]]:
    """First and last of the kernels between those that can be in no stretch."""
    first = 0
    for place, step in enumerate([*steps, None]):
        if step is None:
            if place > first:
                yield first, place - 1
            first = place + 1


def _best(steps: Sequence[Kernel | None], first: int, last: int, count: int, images: int, cache: int) -> Stretch | None:
    """The stretch in first ... last that saves most with `images` at a time; None where none saves enough."""
    again = count // images - 1

    def saving(tensor: Tensor) -> float:
        if tensor.size <= _HELD * cache:
            return 0.0
        part = tensor.size * images // count
        return tensor.size * (1.0 if part <= cache else _PART_OF_NEAR if part <= _NEAR * cache else 0.0)

    best: Stretch | None = None
    for start in range(first, last + 1):
        if not any(map(saving, steps[start].writes)):  # type: ignore[union-attr]
            continue
        saved = 0.0
        entered: set[int] = set()
        for end in range(start, last + 1):
            kernel = steps[end]
            assert kernel is not None
            if kernel.first > start:
                break
            saved -= again * (_LAUNCH + kernel.others / _NEARER)
            for tensor in kernel.reads:
                if tensor.maker >= start or id(tensor) in entered:
                    saved += saving(tensor)
                entered.add(id(tensor))
                if tensor.maker >= start and tensor.readers[-1] == end and not tensor.leaves:
                    saved += saving(tensor)  # it was never written to memory
            if saved > (best.saved if best else _LEAST):
                best = Stretch(start, end, images, saved)
    return best
