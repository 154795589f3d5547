"""What the variables of a jaxpr become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from ..meaning.constant import Constant
from ..meaning.sizes import Dim


@dataclass(frozen=True, eq=False)
class Derived(Constant):
    """A weight by one recipe of `params` from another: what it is made of stays the source."""

    base: Constant | None = None
    recipe: str = ""
    attrs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Spread:
    """A tensor of `shape` that repeats `small`, as NumPy broadcasts it.

    jax writes every broadcast out; operators that broadcast by themselves read `small`.
    """

    small: relax.Expr | Constant
    shape: tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class Opaque:
    """An array of a type that only jax knows, as of keys of random numbers: it folds, becomes pairs or is refused."""

    array: Any


Value = relax.Expr | Constant | Spread | Opaque
