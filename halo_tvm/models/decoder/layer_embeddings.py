"""Vectors of tokens for each layer, beside the residual stream: the per-layer embeddings of Gemma 3n and Gemma 4.

    vector of layer i = (table[token] * sqrt(width) + norm(projection(x) / sqrt(hidden))) / sqrt(2), its i-th part
    x' = x + norm(output(act(gate(x)) * vector)) at the end of the layer

A token reads one row of the table, so that most of such a model's weights rest in memory that no step touches.
"""

from __future__ import annotations

from tvm import relax

from ...relay_ops.parts.activation import ACTIVATIONS
from ..builder import ModelBuilder
from . import weights
from .config import DecoderConfig


def by_layer(c: DecoderConfig, m: ModelBuilder, x: relax.Var) -> relax.Var:
    """The vectors [batch, tokens, layers, width] of tokens whose embedding, as layers read it, is x."""
    kind = c.layer_embeddings
    assert kind is not None
    whole = c.layers * kind.width
    batch, tokens, _ = x.ty.shape.values

    def scaled(y: relax.Var, by: float) -> relax.Var:
        return m.emit(relax.op.multiply(y, relax.const(by, "float32")))

    def parted(y: relax.Var) -> relax.Var:
        return m.emit(relax.op.reshape(y, (batch, tokens, c.layers, kind.width)))

    m.layer = kind.table
    table = m.weight(f"{kind.table}.weight", (kind.vocabulary, whole))
    ids = m.inputs["input_ids"]
    if kind.vocabulary < c.vocabulary:  # tokens that the table lacks have the vector of the first one
        beyond, first = (relax.const(token, "int64") for token in (kind.vocabulary, 0))
        ids = m.emit(relax.op.minimum(ids, beyond))
        ids = m.emit(relax.op.where(m.emit(relax.op.equal(ids, beyond)), first, ids))
    stored = m.op("embedding", ids, table, layout="nk", n=kind.vocabulary)
    m.layer = kind.projection
    projected = parted(scaled(m.linear(x, kind.projection, c.hidden, whole, bias=False), c.hidden**-0.5))
    normed = weights.norm(c, m, projected, kind.norm, kind.width)
    return scaled(m.emit(relax.op.add(normed, parted(scaled(stored, kind.width**0.5)))), 2**-0.5)


def added(c: DecoderConfig, m: ModelBuilder, x: relax.Var, vectors: relax.Var, index: int) -> relax.Var:
    """x at the end of layer `index`, with what its `vectors` bring."""
    return m.emit(relax.op.add(brought(c, m, x, vectors, index), x))


def brought(c: DecoderConfig, m: ModelBuilder, x: relax.Var, vectors: relax.Var, index: int) -> relax.Var:
    """What the `vectors` of layer `index` bring to x."""
    kind, layer = c.layer_embeddings, c.names.layer.format(index)
    assert kind is not None
    m.layer = f"{layer}.{kind.gate}"
    gate = m.linear(x, f"{layer}.{kind.gate}", c.hidden, kind.width, bias=False)
    gate = m.emit(ACTIVATIONS[c.activation].relax(gate))
    own = m.emit(relax.op.strided_slice(vectors, axes=[2], begin=[index], end=[index + 1]))
    own = m.emit(relax.op.reshape(own, gate.ty.shape))
    m.layer = f"{layer}.{kind.output}"
    out = m.linear(m.emit(relax.op.multiply(gate, own)), f"{layer}.{kind.output}", kind.width, c.hidden, bias=False)
    return weights.norm(c, m, out, f"{layer}.{kind.post_norm}", c.hidden)
