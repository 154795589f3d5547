"""The recurrence on rearranged arguments in NumPy: the arrangement undone, then the layer's own reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...linear_w8a8 import GROUP
from .cell import Options
from .phases import phases_of
from .reference import reference as layer_reference


def reference(options: Options, block: int, given: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """y, y_h[, y_c]. Each step's input is a unit vector that picks the step's row of `gates` as weights."""
    gates = given["gates"]
    s, b, _ = gates.shape
    d, h, g = options.directions, options.hidden, options.cell.gates
    blocks = -(-h // block)
    wide = gates.reshape(s, b, d, blocks, g, block).transpose(2, 4, 3, 5, 0, 1).reshape(d, g, blocks * block, s, b)
    wide = wide[:, :, :h]
    results = []
    for n in range(b):
        args = {
            "x": np.eye(s, dtype=gates.dtype)[:, None],
            "w": wide[..., n].reshape(d, g * h, s),
            "r": _unpacked(options, block, given),
        }
        if "recurrent_bias" in given:
            args["bias"] = np.zeros((d, 2 * g * h), gates.dtype)
            args["bias"][:, -h:] = given["recurrent_bias"][:, 0, :h]
        for name in ("initial_h", "initial_c"):
            if name in given:
                args[name] = given[name][:, n : n + 1]
        if "lengths" in given:
            args["lengths"] = given["lengths"][n : n + 1]
        if "peepholes" in given:
            args["peepholes"] = given["peepholes"][:, :, :h].reshape(d, 3 * h)
        present = frozenset(args) - {"x", "w", "r"}
        rounds = {"quantised"} if options.rounds else set()
        here = replace(options, present=present, flags=options.flags | rounds)
        results.append(layer_reference(here, *(args[name] for name in here.names())))
    return tuple(np.concatenate(parts, axis=-2) for parts in zip(*results))


def _unpacked(options: Options, block: int, given: Mapping[str, np.ndarray]) -> np.ndarray:
    """[d, blocks, phases x (k x gates x block)] -> [d, gates * hidden, k]; bytes with four k behind each unit."""
    d, h, r = options.directions, options.hidden, given["r"]
    if options.byte_weights:
        groups, columns = options.groups, options.cell.gates * block
        r = r.reshape(d, -1, groups, columns, GROUP).transpose(0, 1, 2, 4, 3).reshape(d, -1, groups * GROUP, columns)
        r = (r * given["r_scale"].reshape(d, -1, 1, columns))[:, :, :h].reshape(d, -1, h * columns)
    blocks, offset, parts = r.shape[1], 0, []
    for phase in phases_of(options):
        size = h * phase.count * block
        part = r[:, :, offset : offset + size].reshape(d, blocks, h, phase.count, block)
        parts.append(part.transpose(0, 3, 1, 4, 2).reshape(d, phase.count, blocks * block, h)[:, :, :h])
        offset += size
    return np.concatenate(parts, axis=1).reshape(d, options.rows, h)
