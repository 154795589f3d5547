"""The meaning of recurrent layers in NumPy, at the precision of the inputs, step by step."""

from __future__ import annotations

import numpy as np

from .activations import CELL_ACTIVATIONS
from .cell import Options
from .rounding import rounded_array


def reference(options: Options, *args: np.ndarray) -> tuple[np.ndarray, ...]:
    """y, y_h and, for an LSTM, y_c."""
    given = dict(zip(options.names(), args))
    if options.byte_weights:
        given |= {name: given[name] * given[f"{name}_scale"][:, :, None] for name in "wr"}
    x = rounded_array(given["x"]) if options.rounds else given["x"]
    s, b, _ = x.shape
    d, h = options.directions, options.hidden
    y = np.zeros((s, d, b, h), x.dtype)
    states = [given.get(f"initial_{kind}", np.zeros((d, b, h), x.dtype)).copy() for kind in "hc"[: options.cell.states]]
    lengths = np.clip(given["lengths"], 0, s) if "lengths" in given else np.full(b, s)
    for direction in range(d):
        backward = options.direction == "reverse" or direction == 1
        w, r = given["w"][direction], given["r"][direction]
        bias = given["bias"][direction] if "bias" in given else np.zeros(2 * options.rows, x.dtype)
        peepholes = given["peepholes"][direction] if "peepholes" in given else np.zeros(3 * h, x.dtype)
        for n in range(b):
            state = [kept[direction, n] for kept in states]
            times = range(int(lengths[n]))
            for t in reversed(times) if backward else times:
                wide = x[t, n] @ w.T + bias[: options.rows]
                state = _STEPS[options.cell.name](options, direction, wide, r, bias[options.rows :], peepholes, state)
                y[t, direction, n] = state[0]
            for kept, last in zip(states, state):
                kept[direction, n] = last if lengths[n] or "lengths" not in given else 0
    return (y, *states)


def _activate(options: Options, direction: int, place: int, x: np.ndarray) -> np.ndarray:
    name, alpha, beta = options.activation(direction, place)
    if options.clip and place < 2:
        x = np.clip(x, -options.clip, options.clip)
    return CELL_ACTIVATIONS[name].numpy(x, alpha, beta)


def _lstm(options, direction, wide, r, bias, peepholes, state):
    h, c = state
    heard = rounded_array(h) if options.rounds else h
    i, o, f, g = np.split(wide + heard @ r.T + bias, 4)
    p_i, p_o, p_f = np.split(peepholes, 3)
    i = _activate(options, direction, 0, i + p_i * c)
    f = 1 - i if "input_forget" in options.flags else _activate(options, direction, 0, f + p_f * c)
    c = f * c + i * _activate(options, direction, 1, g)
    if options.cell_clip:
        c = np.clip(c, -options.cell_clip, options.cell_clip)
    o = _activate(options, direction, 0, o + p_o * c)
    return [o * _activate(options, direction, 2, c), c]


def _gru(options, direction, wide, r, bias, _peepholes, state):
    (h,) = state
    z, reset, g = np.split(wide, 3)
    r_z, r_r, r_h = np.split(r, 3)
    b_z, b_r, b_h = np.split(bias, 3)
    z = _activate(options, direction, 0, z + h @ r_z.T + b_z)
    reset = _activate(options, direction, 0, reset + h @ r_r.T + b_r)
    after = reset * (h @ r_h.T + b_h) if "linear_before_reset" in options.flags else (reset * h) @ r_h.T + b_h
    return [(1 - z) * _activate(options, direction, 1, g + after) + z * h]


def _rnn(options, direction, wide, r, bias, _peepholes, state):
    return [_activate(options, direction, 0, wide + state[0] @ r.T + bias)]


_STEPS = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}
