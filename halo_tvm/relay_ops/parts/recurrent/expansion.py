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

from ...linear import Linear
from ...linear_integer import LinearInteger
from ...linear_w8a8 import GROUP
from .cell import Options
from .phases import phases_of
from .rounding import quantised_tensor, rounded_tensor

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
    if options.rounds and not options.byte_weights:
        given["x"] = rounded_tensor(bb, given["x"])
    block = block_of(options.hidden, str(given["x"].ty.dtype))
    weights = _Weights(bb, options, block)
    bias, recurrent_bias = weights.biases(given.get("bias"))
    columns = options.directions * weights.blocks * options.cell.gates * block
    w = weights.input(given["w"])
    if options.byte_weights:
        gates = _gates_of_bytes(bb, given["x"], w, weights.columns(given["w_scale"]), bias)
    elif dtype == "float64":  # halo.linear sums in float32
        gates = bb.emit(relax.op.matmul(given["x"], bb.emit(relax.op.permute_dims(w))))
        gates = bb.emit(relax.op.add(gates, bias[0])) if bias else gates
    else:
        gates = bb.emit(Linear.call(given["x"], w, *bias, layout="nk", n=columns, layer=layer))
    args = {"recurrent_bias": recurrent_bias, "peepholes": weights.peepholes(given.get("peepholes"))}
    args |= {name: given.get(name) for name in ("lengths", "initial_h", "initial_c")}
    if options.byte_weights:
        sums = bb.emit(relax.op.sum(bb.emit(relax.op.astype(given["r"], "float32")), axis=[2]))
        args |= {"r_scale": weights.recurrent_columns(given["r_scale"]), "r_sums": weights.recurrent_columns(sums)}
    from ...recurrence import Recurrence  # the two need each other: its arguments, our order

    result = bb.emit(Recurrence.of(gates, weights.recurrent(given["r"]), args, options, block, layer))
    if dtype == "float16":
        fields = [bb.emit(relax.TupleGetItem(result, n)) for n in range(1 + options.cell.states)]
        return relax.Tuple([bb.emit(relax.op.astype(field, dtype)) for field in fields])
    return result


def _gates_of_bytes(
    bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr, scale: relax.Expr, bias: Sequence[relax.Expr]
) -> relax.Expr:
    """The input's product in integers: x [s, b, i] rounded as a whole, w [n, i] int8, `scale` of its rows [n]."""
    q, x_scale, zero = quantised_tensor(bb, x)
    columns = int(w.ty.shape.values[0])
    total = bb.emit(LinearInteger.call(q, zero, bb.emit(relax.op.permute_dims(w)), layout="kn", n=columns))
    both = bb.emit(relax.op.multiply(scale, x_scale))
    gates = bb.emit(relax.op.multiply(bb.emit(relax.op.astype(total, "float32")), both))
    return bb.emit(relax.op.add(gates, bias[0])) if bias else gates


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
        """[d, gates * hidden, k] -> [d, blocks, k * gates * block], the gates of each phase together.

        Bytes: k in groups, [d, blocks, ceil(k / 4) * gates * block * 4], zeros behind the last.
        """
        o = self._options
        if o.byte_weights:
            return self._recurrent_bytes(r)
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

    def _recurrent_bytes(self, r: relax.Expr) -> relax.Expr:
        o = self._options
        depth = o.groups * GROUP
        if depth > o.hidden:
            r = self._bb.emit(relax.op.nn.pad(r, [0, 0, 0, 0, 0, depth - o.hidden]))
        split = self._blocked(r, o.cell.gates, [depth])  # [d, g, blocks, block, k]
        split = self._reshape(split, o.directions, o.cell.gates, self.blocks, self._block, o.groups, GROUP)
        split = self._permute(split, 0, 2, 4, 1, 3, 5)
        return self._reshape(split, o.directions, self.blocks, depth * o.cell.gates * self._block)

    def columns(self, values: relax.Expr) -> relax.Expr:
        """[d, gates * hidden] -> [d * blocks * gates * block], as the columns of the input's product."""
        blocked = self._permute(self._blocked(values, self._options.cell.gates, []), 0, 2, 1, 3)
        return self._reshape(blocked, self._options.directions * self.blocks * self._options.cell.gates * self._block)

    def recurrent_columns(self, values: relax.Expr) -> relax.Expr:
        """[d, gates * hidden] -> [d, blocks, gates * block], as the columns of `recurrent`."""
        return self._reshape(
            self.columns(values), self._options.directions, self.blocks, self._options.cell.gates * self._block
        )

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
        return [self.columns(total)], kept

    def _slice(self, x: relax.Expr, begin: tuple[int, int], end: tuple[int, int]) -> relax.Var:
        """Halves and gates begin..end of [d, 2, gates, hidden]."""
        return self._bb.emit(relax.op.strided_slice(x, axes=[1, 2], begin=list(begin), end=list(end)))

    def _flat(self, x: relax.Expr, groups: int) -> relax.Expr:
        """[d, groups * hidden] -> [d, groups, blocks * block]."""
        return self._reshape(self._blocked(x, groups, []), self._options.directions, groups, self.blocks * self._block)

    def peepholes(self, p: relax.Expr | None) -> relax.Expr | None:
        return None if p is None else self._flat(p, 3)
