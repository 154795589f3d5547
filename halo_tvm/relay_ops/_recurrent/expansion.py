"""A recurrent layer as smaller operators: one linear for all time steps, then the recurrence.

Before -> after
    halo.lstm(x, w, r, bias, ...)   ->   gates = halo.linear(x, w')   [s, b, dirs * blocks * gates * block]
                                         halo.recurrence(gates, r', ...)
    the columns of all directions stand in one product, in the order in which the recurrence reads them:
    per direction and block of `block` hidden units, the gates one after another. Units beyond `hidden`
    in the last block have zero weights.
Every rearrangement is an operator on weights alone, so that `hoist_weights` turns it into recipes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ..linear import Linear
from .cell import Options
from .phases import phases_of
from .rounding import rounded_tensor

# Columns of one block: two AVX-512 registers per gate. An LSTM's four gates then keep eight sums in
# flight, which hides the latency of an FMA; more would not fit the registers of smaller machines.
BLOCK_BYTES = 128


def expand(bb: relax.BlockBuilder, options: Options, call: relax.Call, layer: str | None) -> relax.Expr:
    """The tuple (y, y_h[, y_c]) for a call of a recurrent layer."""
    given = dict(zip(options.names(), call.args))
    dtype = str(call.args[0].ty.dtype)
    if dtype == "float16":  # sums and states in float32; the results are rounded once
        given = {
            name: arg if name == "lengths" else bb.emit(relax.op.astype(arg, "float32")) for name, arg in given.items()
        }
    if "quantised" in options.flags:
        given["x"] = rounded_tensor(bb, given["x"])
    block = block_of(options.hidden, str(given["x"].ty.dtype))
    weights = _Weights(bb, options, block)
    bias, recurrent_bias = weights.biases(given.get("bias"))
    columns = options.directions * weights.blocks * options.cell.gates * block
    w = weights.input(given["w"])
    if dtype == "float64":  # halo.linear sums in float32
        gates = bb.emit(relax.op.matmul(given["x"], bb.emit(relax.op.permute_dims(w))))
        gates = bb.emit(relax.op.add(gates, bias[0])) if bias else gates
    else:
        gates = bb.emit(Linear.call(given["x"], w, *bias, layout="nk", n=columns, layer=layer))
    args = {"recurrent_bias": recurrent_bias, "peepholes": weights.peepholes(given.get("peepholes"))}
    args |= {name: given.get(name) for name in ("lengths", "initial_h", "initial_c")}
    from ..recurrence import Recurrence  # the two need each other: its arguments, our order

    result = bb.emit(Recurrence.of(gates, weights.recurrent(given["r"]), args, options, block, layer))
    if dtype == "float16":
        fields = [bb.emit(relax.TupleGetItem(result, n)) for n in range(1 + options.cell.states)]
        return relax.Tuple([bb.emit(relax.op.astype(field, dtype)) for field in fields])
    return result


def block_of(hidden: int, dtype: str) -> int:
    """Hidden units of one block."""
    whole = BLOCK_BYTES // (8 if dtype == "float64" else 4)
    return whole if hidden > whole // 2 else whole // 2


class _Weights:
    """The weights of one layer, rearranged by operators."""

    def __init__(self, bb: relax.BlockBuilder, options: Options, block: int) -> None:
        self._bb, self._options, self._block = bb, options, block
        self.blocks = -(-options.hidden // block)

    def _reshape(self, x: relax.Expr, *shape: int) -> relax.Var:
        return self._bb.emit(relax.op.reshape(x, list(shape)))

    def _permute(self, x: relax.Expr, *axes: int) -> relax.Var:
        return self._bb.emit(relax.op.permute_dims(x, list(axes)))

    def _blocked(self, x: relax.Expr, groups: int, rest: Sequence[int]) -> relax.Expr:
        """[d, groups * hidden, *rest] -> [d, groups, blocks, block, *rest], zeros behind the hidden units."""
        o = self._options
        x = self._reshape(x, o.directions, groups, o.hidden, *rest)
        missing = self.blocks * self._block - o.hidden
        if missing:
            widths = [0, 0, 0, 0, 0, missing] + [0, 0] * len(rest)
            x = self._bb.emit(relax.op.nn.pad(x, widths))
        return self._reshape(x, o.directions, groups, self.blocks, self._block, *rest)

    def input(self, w: relax.Expr) -> relax.Var:
        """[d, gates * hidden, i] -> [d * blocks * gates * block, i]."""
        o, depth = self._options, int(w.ty.shape.values[2])
        blocked = self._permute(self._blocked(w, o.cell.gates, [depth]), 0, 2, 1, 3, 4)
        return self._reshape(blocked, o.directions * self.blocks * o.cell.gates * self._block, depth)

    def recurrent(self, r: relax.Expr) -> relax.Var:
        """[d, gates * hidden, k] -> [d, blocks, k * gates * block], the gates of each phase together."""
        o = self._options
        blocked = self._permute(self._blocked(r, o.cell.gates, [o.hidden]), 0, 2, 4, 1, 3)
        parts = []
        phases = phases_of(o)
        for phase in phases:
            part = blocked
            if len(phases) > 1:
                part = self._bb.emit(
                    relax.op.strided_slice(blocked, axes=[3], begin=[phase.first], end=[phase.first + phase.count])
                )
            parts.append(self._reshape(part, o.directions, self.blocks, o.hidden * phase.count * self._block))
        return parts[0] if len(parts) == 1 else self._bb.emit(relax.op.concat(parts, axis=2))

    def biases(self, bias: relax.Expr | None) -> tuple[list[relax.Expr], relax.Expr | None]:
        """The bias of the linear, and what GRU keeps beside it: the recurrent bias of its hidden gate."""
        if bias is None:
            return [], None
        o = self._options
        halves = self._reshape(bias, o.directions, 2, o.rows)
        kept = None
        if "linear_before_reset" in o.flags:
            each = self._reshape(halves, o.directions, 2, o.cell.gates, o.hidden)
            kept = self._flat(self._reshape(self._slice(each, (1, 2), (2, 3)), o.directions, o.hidden), 1)
            both = self._bb.emit(relax.op.sum(self._slice(each, (0, 0), (2, 2)), axis=[1]))
            inner = self._reshape(self._slice(each, (0, 2), (1, 3)), o.directions, 1, o.hidden)
            total = self._bb.emit(relax.op.concat([both, inner], axis=1))
        else:
            total = self._bb.emit(relax.op.sum(halves, axis=[1]))
        blocked = self._permute(self._blocked(total, o.cell.gates, []), 0, 2, 1, 3)
        return [self._reshape(blocked, o.directions * self.blocks * o.cell.gates * self._block)], kept

    def _slice(self, x: relax.Expr, begin: tuple[int, int], end: tuple[int, int]) -> relax.Var:
        """Halves and gates begin..end of [d, 2, gates, hidden]."""
        return self._bb.emit(relax.op.strided_slice(x, axes=[1, 2], begin=list(begin), end=list(end)))

    def _flat(self, x: relax.Expr, groups: int) -> relax.Expr:
        """[d, groups * hidden] -> [d, groups, blocks * block]."""
        return self._reshape(self._blocked(x, groups, []), self._options.directions, groups, self.blocks * self._block)

    def peepholes(self, p: relax.Expr | None) -> relax.Expr | None:
        return None if p is None else self._flat(p, 3)
