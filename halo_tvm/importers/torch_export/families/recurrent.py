"""torch's recurrent layers: LSTM, GRU and RNN, several layers deep, each a halo operator.

torch       params: per layer and direction w_ih [gates * h, i], w_hh [gates * h, h], then b_ih, b_hh [gates * h]
            gates of an LSTM i, f, g, o; of a GRU r, z, n       hx, and (h, c) of an LSTM: [layers * dirs, b, h]
relay_ops   gates of an LSTM i, o, f, c; of a GRU z, r, h
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import fx
from tvm import relax

from ...meaning.builder import expr_dtype, expr_shape
from ...meaning.constant import Constant
from ...meaning.recurrence import recurrent_layer
from .._call import Call
from .._registry import converter, target_name

# Where relay_ops' gates are among torch's.
_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@converter(*(f"{kind}.input" for kind in _KINDS), *(f"halo_tvm.{kind}.default" for kind in _KINDS))
def recurrent(c: Call) -> tuple[relax.Expr, ...]:
    kind = c.op.split("_")[0]
    c.refuse_unless(not (c["train"] and c["dropout"]), "expected inference, found dropout between layers in training")
    x, dtype = c.tensor("input"), c.dtype
    wide = "float32" if dtype == "bfloat16" else dtype
    states = c["hx"] if kind == "lstm" else [c["hx"]]
    directions = 2 if c["bidirectional"] else 1
    each = 4 if c["has_biases"] else 2
    params = list(c["params"])
    layers = int(c["num_layers"])
    c.refuse_unless(
        len(params) == layers * directions * each,
        "expected layers without projections (proj_size=0), found an LSTM that projects its state: leave proj_size out",
    )
    x = c.cast(c.permute(x, [1, 0, 2]) if c["batch_first"] else x, wide)
    options: dict[str, object] = {"direction": "bidirectional" if directions == 2 else "forward"}
    if kind == "gru":
        options["linear_before_reset"] = True
    if c.op == "rnn_relu":
        options["activations"] = ["relu"] * directions
    zero = _is_zero(c.nodes["hx"])
    ends: list[list[relax.Expr]] = [[] for _ in states]
    for layer in range(layers):
        own = params[layer * directions * each : (layer + 1) * directions * each]
        w, r, *biases = (_packed(c, kind, own[i::each], wide) for i in range(each))
        given = {}
        if biases:  # [dirs, rows] each -> [dirs, 2 * rows]
            given["bias"] = _joined(c, biases)
        if not zero:
            first = layer * directions
            for name, state in zip(("initial_h", "initial_c"), states):
                part = relax.op.strided_slice(state, axes=[0], begin=[first], end=[first + directions])
                given[name] = c.cast(c.emit(part), wide)
        y, *after = recurrent_layer(c, kind, x, w, r, given, **options)
        length, _, batch, hidden = expr_shape(y)
        side_by_side = y if directions == 1 else c.permute(y, [0, 2, 1, 3])
        x = c.emit(relax.op.reshape(side_by_side, [length, batch, directions * hidden]))
        for end, state in zip(ends, after):
            end.append(state)
    finals = [c.emit(relax.op.concat(end, 0)) if layers > 1 else end[0] for end in ends]
    x = c.permute(x, [1, 0, 2]) if c["batch_first"] else x
    return tuple(c.cast(out, dtype) for out in (x, *finals))


def _packed(c: Call, kind: str, parts: Sequence[relax.Expr], dtype: str) -> relax.Expr:
    """One tensor [dirs, ...] of a weight of each direction, gates in the order of relay_ops."""
    order, known = _ORDERS[kind], [c.known(part) for part in parts]
    shape = tuple(expr_shape(parts[0]))
    if all(value is not None and value.dtype == dtype for value in known):

        def load() -> np.ndarray:
            gates = (np.split(value.load(), len(order)) for value in known)
            return np.stack([np.concatenate([split[g] for g in order]) for split in gates])

        return c.weight(Constant((len(parts), *shape), dtype, load, f"{known[0].name}.gates"))
    moved = []
    for part in parts:
        rows = shape[0] // len(order)
        gates = [c.emit(relax.op.strided_slice(part, axes=[0], begin=[g * rows], end=[(g + 1) * rows])) for g in order]
        joined = c.emit(relax.op.concat(gates, 0)) if len(gates) > 1 else part
        moved.append(c.cast(c.emit(relax.op.expand_dims(joined, 0)), dtype))
    return c.emit(relax.op.concat(moved, 0)) if len(moved) > 1 else moved[0]


def _joined(c: Call, biases: Sequence[relax.Expr]) -> relax.Expr:
    """Two vectors [dirs, rows] as one [dirs, 2 * rows]."""
    known = [c.known(bias) for bias in biases]
    directions, rows = expr_shape(biases[0])
    if all(value is not None for value in known):
        name = f"{known[0].name}.both"
        value = Constant(
            (directions, 2 * rows),
            expr_dtype(biases[0]),
            lambda: np.concatenate([value.load() for value in known], axis=1),
            name,
        )
        return c.weight(value)
    return c.emit(relax.op.concat(list(biases), 1))


def _is_zero(hx: object) -> bool:
    """Whether the program makes the first state out of zeros."""
    nodes = hx if isinstance(hx, list | tuple) else [hx]

    def zero(node: fx.Node) -> bool:
        name = target_name(node.target) if node.op == "call_function" else ""
        filled = name == "aten.full.default" and node.args[1] == 0
        return filled or name.startswith(("aten.zeros.", "aten.zeros_like.", "aten.new_zeros."))

    return all(isinstance(node, fx.Node) and zero(node) for node in nodes)
