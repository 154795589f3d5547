"""The one feed-forward of a layer: an operator of its own, unless activation, gate or norm are more than that has."""

from __future__ import annotations

from tvm import relax

from ...relay_ops.parts.activation import ACTIVATIONS
from ..builder import ModelBuilder
from . import learned_activation, weights
from .config import DecoderConfig


def feed_forward(
    c: DecoderConfig, m: ModelBuilder, x: relax.Var, layer: str, sparsity: float | None = None
) -> relax.Var:
    """What it makes of x [batch, tokens, hidden]; with `sparsity` the gate opens that far above its mean (`Layer`)."""
    names = c.names
    if c.learned_activation:
        up = m.linear(x, f"{layer}.{names.up}", c.hidden, c.feed_forward, bias=c.ffn_bias)
        hidden = learned_activation.xielu(m, up, f"{layer}.{c.learned_activation}")
        return m.linear(hidden, f"{layer}.{names.down}", c.feed_forward, c.hidden, bias=c.ffn_bias)
    if sparsity is not None or names.down_norm:
        gate, up = (m.linear(x, f"{layer}.{n}", c.hidden, c.feed_forward, bias=False) for n in (names.gate, names.up))
        gate = gate if sparsity is None else _opened(m, gate, sparsity)
        hidden = m.emit(relax.op.multiply(m.emit(ACTIVATIONS[c.activation].relax(gate)), up))
        if names.down_norm:
            hidden = weights.norm(c, m, hidden, f"{layer}.{names.down_norm}", c.feed_forward)
        return m.linear(hidden, f"{layer}.{names.down}", c.feed_forward, c.hidden, bias=False)
    args = [*weights.gate_and_up(c, m, layer)]
    args += m.linear_weights(f"{layer}.{names.down}", c.feed_forward, c.hidden, names.layout, c.ffn_bias)
    return m.op("ffn", x, *args, activation=c.activation, gated=c.gated, bias=c.ffn_bias, layout=names.layout)


def _opened(m: ModelBuilder, gate: relax.Var, deviations: float) -> relax.Var:
    """What of a gate is that many standard deviations above its mean, from there on; else 0."""

    def mean(x: relax.Expr) -> relax.Var:
        return m.emit(relax.op.mean(x, axis=[2], keepdims=True))

    centred = m.emit(relax.op.subtract(gate, mean(gate)))
    spread = m.emit(relax.op.sqrt(mean(m.emit(relax.op.multiply(centred, centred)))))
    above = m.emit(relax.op.subtract(centred, m.emit(relax.op.multiply(spread, relax.const(deviations, "float32")))))
    return m.emit(relax.op.maximum(above, relax.const(0.0, "float32")))
