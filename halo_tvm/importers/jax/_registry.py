"""Which function converts which primitive of `jax.lax`. Each family of primitives is one file in `families/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._primitive import Primitive

Converter = Callable[["Primitive"], object]

CONVERTERS: dict[str, Converter] = {}


def converter(*names: str) -> Callable[[Converter], Converter]:
    """Register a function for primitives by name: `@converter("reduce_sum")`."""

    def register(function: Converter) -> Converter:
        for name in names:
            assert name not in CONVERTERS, f"two converters for {name}"
            CONVERTERS[name] = function
        return function

    return register
