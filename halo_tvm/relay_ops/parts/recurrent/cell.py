"""The three cells as data, and the options of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...linear_w8a8 import GROUP
from .activations import CELL_ACTIVATIONS

SCALES = ("w_scale", "r_scale")  # of weights in 8 bits, both or neither
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@dataclass(frozen=True)
class Cell:
    """What distinguishes a cell.

    `defaults` are its activations, `optional` its arguments behind x, w and r, in order.
    """

    name: str
    gates: int
    defaults: tuple[str, ...]
    optional: tuple[str, ...]
    flags: tuple[str, ...] = ()
    states: int = 1  # 2: a hidden and a cell state

    @property
    def limits(self) -> tuple[str, ...]:
        """The attributes that bound values to [-limit, limit]."""
        return ("clip", "cell_clip") if self.states == 2 else ("clip",)


CELLS = {
    "lstm": Cell(
        "lstm",
        4,
        ("sigmoid", "tanh", "tanh"),
        ("bias", "lengths", "initial_h", "initial_c", "peepholes", *SCALES),
        ("input_forget", "quantised"),
        states=2,
    ),
    "gru": Cell(
        "gru",
        3,
        ("sigmoid", "tanh"),
        ("bias", "lengths", "initial_h"),
        ("linear_before_reset",),
    ),
    "rnn": Cell("rnn", 1, ("tanh",), ("bias", "lengths", "initial_h")),
}


@dataclass(frozen=True)
class Options:
    """The attributes of a call, checked and with every default filled in."""

    cell: Cell
    hidden: int
    direction: str
    activations: tuple[tuple[str, float, float], ...]  # (name, alpha, beta), the backward direction's behind
    clip: float  # 0: none
    cell_clip: float  # likewise
    present: frozenset[str]  # optional arguments that are given
    flags: frozenset[str] = field(default_factory=frozenset)

    @property
    def directions(self) -> int:
        return DIRECTIONS[self.direction]

    @property
    def rows(self) -> int:
        """Rows of w and r in one direction."""
        return self.cell.gates * self.hidden

    @property
    def byte_weights(self) -> bool:
        """Whether w and r are int8 with scales of their columns."""
        return "r_scale" in self.present

    @property
    def groups(self) -> int:
        """How many products of bytes a sum over the state takes."""
        return -(-self.hidden // GROUP)

    @property
    def rounds(self) -> bool:
        """Whether the input and the state are rounded to 8 bits: wherever weights were."""
        return self.byte_weights or "quantised" in self.flags

    def activation(self, direction: int, place: int) -> tuple[str, float, float]:
        """Activation `place` (f, g, h of the cell's equations) of a direction."""
        return self.activations[direction * len(self.cell.defaults) + place]

    def names(self) -> list[str]:
        """The arguments in order."""
        return ["x", "w", "r", *(name for name in self.cell.optional if name in self.present)]


def options_of(cell: Cell, attrs: Mapping[str, object]) -> Options:
    """The options of a call of halo.<cell>; ValueError for what does not fit."""
    known = {"hidden", "direction", "activations", "alpha", "beta", "layer", *cell.limits, *cell.flags}
    known |= {f"has_{name}" for name in cell.optional}
    unknown = sorted(set(attrs) - known)
    if unknown or "hidden" not in attrs:
        raise ValueError(
            f"halo.{cell.name}: attributes hidden and some of {', '.join(sorted(known - {'hidden'}))} expected, "
            f"got {', '.join(attrs) or 'none'}: " + (f"leave out {', '.join(unknown)}" if unknown else "add hidden")
        )
    direction = str(attrs.get("direction", "forward"))
    if direction not in DIRECTIONS:
        raise ValueError(
            f"halo.{cell.name}: direction must be one of {', '.join(DIRECTIONS)}, got {direction!r}: correct it"
        )
    hidden = int(attrs["hidden"])
    clip, cell_clip = (float(attrs.get(limit, 0.0)) for limit in ("clip", "cell_clip"))
    if hidden < 1 or min(clip, cell_clip) < 0:
        raise ValueError(
            f"halo.{cell.name}: hidden must be at least 1 and {' and '.join(cell.limits)} at least 0 (0 for none), "
            f"got {hidden} and {min(clip, cell_clip)}: correct them"
        )
    present = frozenset(name for name in cell.optional if attrs.get(f"has_{name}"))
    if present & set(SCALES) and not present >= set(SCALES):
        raise ValueError(f"halo.{cell.name}: {' and '.join(SCALES)} expected, or neither, got one: add the other")
    return Options(
        cell,
        hidden,
        direction,
        _activations(cell, DIRECTIONS[direction], attrs),
        clip,
        cell_clip,
        present,
        frozenset(name for name in cell.flags if attrs.get(name)),
    )


def _activations(cell: Cell, directions: int, attrs: Mapping[str, object]) -> tuple[tuple[str, float, float], ...]:
    names = [str(name) for name in attrs.get("activations", ())] or list(cell.defaults * directions)
    count = len(cell.defaults) * directions
    alphas, betas = list(attrs.get("alpha", ())), list(attrs.get("beta", ()))
    lengths = {len(names), len(alphas) or count, len(betas) or count}
    if lengths != {count} or any(name not in CELL_ACTIVATIONS for name in names):
        raise ValueError(
            f"halo.{cell.name}: {count} activations of {', '.join(CELL_ACTIVATIONS)} expected, alpha and beta one for "
            f"each or none, got {', '.join(names)} with {len(alphas)} and {len(betas)}: correct them"
        )
    found = []
    for place, name in enumerate(names):
        default = CELL_ACTIVATIONS[name]
        alpha = float(alphas[place]) if alphas else default.alpha or 0.0
        found.append((name, alpha, float(betas[place]) if betas else default.beta or 0.0))
    return tuple(found)
