"""The state of a model between calls: inputs that the last call gave as outputs of the same names."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..artifact import RANDOM_STATE, FunctionSpec
from ..errors import UsageError


class KeptState:
    """State of one loaded function. A call that passes a state itself neither reads nor changes what is kept.

    Where the function draws random numbers, it draws those of `seed`, else of a seed that nobody knows. `UsageError`
    for a seed where there is nothing to draw, or one that is no number of 63 bits.
    """

    def __init__(self, spec: FunctionSpec, seed: int | None = None) -> None:
        draws = RANDOM_STATE in spec.state
        if seed is not None and not draws:
            raise UsageError(
                "seed: expected a model that draws random numbers, found one that draws none; leave it out"
            )
        if seed is not None and not 0 <= seed < 1 << 63:
            raise UsageError(f"seed: expected a number from 0 to 2**63 - 1, found {seed}; give another")
        self._spec = spec
        self._turn = threading.Lock()
        self._start: dict[str, np.ndarray] = {}
        if draws:
            self._start[RANDOM_STATE] = np.array([secrets.randbits(63) if seed is None else seed, 0], np.int64)
        self._kept = dict(self._start)

    def reset(self) -> None:
        """Start again: the next call begins as the first did, and draws what the first drew."""
        with self._turn:
            self._kept = dict(self._start)

    def passed(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether the caller handles the state."""
        given = {t.name for t, _ in zip(self._spec.inputs, args)} | set(kwargs)
        return not given.isdisjoint(self._spec.state)

    def call(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        run: Callable[[Mapping[str, object]], Sequence[np.ndarray]],
    ) -> tuple[np.ndarray, ...]:
        """The outputs without the state of `run`, which gets `kwargs` with the kept state; one call at a time."""
        with self._turn:
            return self._keep(run(self._added(args, kwargs)))

    def _added(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """`kwargs` with the kept state, unless the other inputs have other sizes: then it starts again.

        Random numbers go on all the same.
        """
        shapes = {t.name: np.shape(a) for t, a in zip(self._spec.inputs, args)}  # type: ignore[call-overload]
        shapes |= {name: np.shape(value) for name, value in kwargs.items()}  # type: ignore[call-overload]
        sizes = {d: n for t in self._spec.inputs for d, n in zip(t.shape, shapes.get(t.name, ()))}
        for tensor in self._spec.inputs:
            kept = self._kept.get(tensor.name)
            if kept is not None and any(sizes.get(d, n) != n for d, n in zip(tensor.shape, kept.shape)):
                self._kept = {name: value for name, value in self._kept.items() if name in self._start}
                break
        return {**self._kept, **kwargs}

    def _keep(self, outputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Keep the state among `outputs`; the others are what the caller gets."""
        named = dict(zip((t.name for t in self._spec.outputs), outputs, strict=True))
        self._kept = {name: named.pop(name) for name in self._spec.state}
        return tuple(named.values())
