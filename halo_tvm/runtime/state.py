"""The state of a model between calls: inputs that the last call gave as outputs of the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..artifact import FunctionSpec


class KeptState:
    """State of one loaded function. A call that passes a state itself neither reads nor changes what is kept."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._kept: dict[str, np.ndarray] = {}

    def reset(self) -> None:
        """Start again: the next call begins as the first did."""
        self._kept.clear()

    def passed(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether the caller handles the state."""
        given = {t.name for t, _ in zip(self._spec.inputs, args)} | set(kwargs)
        return not given.isdisjoint(self._spec.state)

    def added(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """`kwargs` with the kept state, unless the other inputs have other sizes: then it starts again."""
        shapes = {t.name: np.shape(a) for t, a in zip(self._spec.inputs, args)}  # type: ignore[call-overload]
        shapes |= {name: np.shape(value) for name, value in kwargs.items()}  # type: ignore[call-overload]
        sizes = {d: n for t in self._spec.inputs for d, n in zip(t.shape, shapes.get(t.name, ()))}
        for tensor in self._spec.inputs:
            kept = self._kept.get(tensor.name)
            if kept is not None and any(sizes.get(d, n) != n for d, n in zip(tensor.shape, kept.shape)):
                self.reset()
                break
        return {**self._kept, **kwargs}

    def keep(self, outputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Keep the state among `outputs`; the others are what the caller gets."""
        named = dict(zip((t.name for t in self._spec.outputs), outputs, strict=True))
        self._kept = {name: named.pop(name) for name in self._spec.state}
        return tuple(named.values())
