"""Test cases of the recurrent layers: each option, odd sizes, padded sequences."""

from __future__ import annotations

import numpy as np

from .cell import CELLS, DIRECTIONS, SCALES

Case = dict[str, object]
SHAPES = {"forward": (3, 1, 5, 7), "reverse": (4, 3, 6, 33), "bidirectional": (5, 4, 3, 16)}


def cases(name: str) -> tuple[Case, ...]:
    """Cases of halo.<name>."""
    cell = CELLS[name]
    found: list[Case] = []
    for direction, (s, b, i, h) in SHAPES.items():
        found.append(case(name, s, b, i, h, direction))
        plain = [kind for kind in cell.optional if kind not in SCALES]
        found.append(case(name, s, b, i, h, direction, *plain, clip=0.8))
        found += [case(name, s, b, i, h, direction, *plain, **{limit: 0.3}) for limit in cell.limits[1:]]
        if len(plain) < len(cell.optional):
            found.append(case(name, s, b, i, h, direction, *cell.optional, clip=0.8))
        found += [case(name, s, b, i, h, direction, "bias", "initial_h", **{flag: True}) for flag in cell.flags]
    found += [case(name, 3, 2, 4, 9, "forward", "bias", activations=names) for names in _activations(name)]
    return tuple(found)


def case(name: str, s: int, b: int, i: int, h: int, direction: str, *optional: str, **attrs: object) -> Case:
    """One case with the optional arguments `optional`."""
    cell, d = CELLS[name], DIRECTIONS[direction]
    rows = cell.gates * h
    lengths = np.array([(s - 2 * n) % (s + 1) for n in range(b)], "int32")
    shapes = {
        "bias": (d, 2 * rows),
        "lengths": lengths,
        "initial_h": (d, b, h),
        "initial_c": (d, b, h),
        "peepholes": (d, 3 * h),
        **{kind: np.full((d, rows), 0.01, "float32") for kind in SCALES},
    }
    rng = np.random.default_rng(s * h)
    w, r = ((0.3 * rng.standard_normal(shape)).astype("float32") for shape in ((d, rows, i), (d, rows, h)))
    if "r_scale" in optional:
        w, r = ((100 * weight).astype("int8") for weight in (w, r))
    given = [kind for kind in cell.optional if kind in optional]
    return {
        "args": [(s, b, i), w, r, *(shapes[kind] for kind in given)],
        "attrs": {"hidden": h, "direction": direction, **{f"has_{kind}": True for kind in given}, **attrs},
    }


def _activations(name: str) -> list[tuple[str, ...]]:
    kinds = [
        ("hard_sigmoid", "softsign", "elu"),
        ("affine", "leaky_relu", "scaled_tanh"),
        ("softplus", "relu", "tanh"),
        ("thresholded_relu", "sigmoid", "softsign"),
    ]
    return [kind[: len(CELLS[name].defaults)] for kind in kinds]
