"""Recurrent layers: halo.lstm, halo.gru and halo.rnn, one operator a layer, in one or both directions."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ...relay_ops import OPERATORS
from ...relay_ops.parts.recurrent.cell import CELLS, DIRECTIONS, SCALES
from .broadcast import same_sizes
from .builder import Builder, expr_shape


def recurrent_layer(
    builder: Builder,
    kind: str,
    x: relax.Expr,
    w: relax.Expr,
    r: relax.Expr,
    optional: Mapping[str, relax.Expr],
    *,
    direction: str = "forward",
    **attrs: object,
) -> tuple[relax.Expr, ...]:
    """A layer of `kind` lstm, gru or rnn over x [s, b, i] -> (y [s, dirs, b, h], one state [dirs, b, h] or two).

    w [dirs, gates * h, i] and r [dirs, gates * h, h] have their gates in the order of relay_ops; `optional` holds
    bias, lengths, initial_h, initial_c, peepholes and scales of weights in int8 as far as there are any, `attrs` what
    the operator takes.
    """
    cell, directions = CELLS[kind], DIRECTIONS[direction]
    for what, given, rank in (("weights", w, 3), ("recurrent weights", r, 3), ("an input", x, 3)):
        found = len(expr_shape(given))
        builder.refuse_unless(found == rank, f"expected {what} of rank {rank}, found {found}")
    hidden = expr_shape(r)[2]
    builder.refuse_unless(isinstance(hidden, int), f"expected a known hidden size, found {hidden}")
    # Weights have known sizes; of rows that are made of open ones it is found out when they come.
    width = next((d for d in (expr_shape(w)[2], expr_shape(x)[2]) if isinstance(d, int)), None)
    builder.refuse_unless(width is not None, f"expected a known width of rows, found {expr_shape(x)[2]}")
    x = same_sizes(builder, x, [None, None, width], "rows")
    batch, rows = expr_shape(x)[1], cell.gates * hidden
    sizes = {
        "bias": [directions, 2 * rows],
        "lengths": [batch],
        "peepholes": [directions, 3 * hidden],
        "initial_h": [directions, batch, hidden],
        "initial_c": [directions, batch, hidden],
        **dict.fromkeys(SCALES, [directions, rows]),
    }
    args = [
        x,
        same_sizes(builder, w, [directions, rows, width], "weights"),
        same_sizes(builder, r, [directions, rows, hidden], "recurrent weights"),
    ]
    for name in cell.optional:
        if name in optional:
            args.append(same_sizes(builder, optional[name], sizes[name], name))
            attrs[f"has_{name}"] = True
    attrs |= {"hidden": hidden, "direction": direction, "layer": builder.name}
    result = builder.block.emit(OPERATORS[kind].call(*args, **attrs))
    return tuple(builder.block.emit(relax.TupleGetItem(result, n)) for n in range(1 + cell.states))
