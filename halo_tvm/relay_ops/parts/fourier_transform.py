"""What becomes of a row of numbers in a discrete Fourier transform, and the angles that its passes turn numbers by."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

_LARGEST_FACTOR = 13
_SHORTEST, _LONGEST = 16, 1 << 16  # of transforms that are worth it, and whose numbers fit a core's caches


@dataclass(frozen=True)
class Transform:
    """What becomes of rows of `given` numbers of 1 or 2 parts, of which `used` are read and others are 0.

    They are transformed to `outputs` numbers of `results` parts; one part of half a spectrum is a real signal.
    """

    length: int
    given: int
    used: int
    parts: int
    outputs: int
    results: int
    inverse: bool

    @property
    def is_halved(self) -> bool:
        """Whether a real signal is transformed as half as many complex numbers."""
        return self.length % 2 == 0 and 1 in (self.parts, self.results)

    @property
    def numbers(self) -> int:
        return self.length // 2 if self.is_halved else self.length

    @property
    def factors(self) -> tuple[int, ...] | None:
        """Of the numbers, fours first; None where a prime is too large."""
        rest, found = self.numbers, []
        for factor in (4, 2, *range(3, _LARGEST_FACTOR + 1, 2)):
            while rest % factor == 0:
                rest //= factor
                found.append(factor)
        return tuple(found) if rest == 1 else None

    @property
    def is_served(self) -> bool:
        """Whether `transformed` does it, and in less time than a product with a matrix of waves."""
        back = self.results == 1 and not self.is_halved  # an odd number of half a spectrum
        return _SHORTEST <= self.length <= _LONGEST and self.factors is not None and not back

    @property
    def attributes(self) -> dict[str, object]:
        """As an operator's call has them."""
        return dataclasses.asdict(self)

    @property
    def table_size(self) -> int:
        return 2 * (self._angles_of_passes + self.numbers + 1)

    @property
    def _angles_of_passes(self) -> int:
        done, count = 1, 0
        for factor in self.factors or ():
            count, done = count + (factor - 1) * done, done * factor
        return count

    def table(self) -> np.ndarray:
        """Cosines and sines of parts of a turn: for each pass p k / (l r), k < l, and k / length, k <= numbers."""
        angles, done = [], 1
        for factor in self.factors or ():
            p, k = np.arange(1, factor)[None, :], np.arange(done)[:, None]
            angles.append((p * k / (done * factor)).reshape(-1))
            done *= factor
        angles.append(np.arange(self.numbers + 1) / self.length)
        turns = 2 * np.pi * np.concatenate(angles)
        return np.stack([np.cos(turns), -np.sin(turns)], 1).reshape(-1).astype(np.float32)
