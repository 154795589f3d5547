"""Residual streams beside one another, of which a layer reads one: AltUp, with LAuReL beside attention (Gemma 3n).

Computation, of streams x_j in layer i
    r(x) = tanh(router(norm(x) / hidden))
    p_j = x_j + sum_k P(r(x_active))_jk x_k              what the layer is expected to give
    y = the layer of p_active                            x'_j = p_j + (y - p_active) (1 + C(r(y))_j)
    All but the first also get what the layer's embeddings bring to x'_active, times a weight.
    Streams begin as projections of the embedding, of its size, and end as the mean of projections.
References
    arXiv:2301.13310 (AltUp), arXiv:2411.07501 (LAuReL)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from ..builder import ModelBuilder
from . import weights
from .config import DecoderConfig, Streams

_LEAST = 1e-5  # of a mean square that is a divisor


def spread(c: DecoderConfig, m: ModelBuilder, x: relax.Var) -> list[relax.Var]:
    """The streams [batch, tokens, hidden] each, that begin with the embedding x."""
    kind = _of(c)
    return [x, *(_sized(c, m, x, x, kind.spread.format(i)) for i in range(kind.count - 1))]


def united(c: DecoderConfig, m: ModelBuilder, xs: Sequence[relax.Var]) -> relax.Var:
    """What the streams are together behind the last layer."""
    kind, total = _of(c), xs[0]
    for i, x in enumerate(xs[1:]):
        total = m.emit(relax.op.add(total, _sized(c, m, x, xs[0], kind.united.format(i))))
    return m.emit(relax.op.multiply(total, relax.const(1 / kind.count, "float32")))


def predicted(c: DecoderConfig, m: ModelBuilder, xs: Sequence[relax.Var], layer: str) -> list[relax.Var]:
    """What every stream is expected to be behind the layer."""
    kind = _of(c)
    routed = _routed(c, m, xs[kind.active], layer)
    shares = m.linear(routed, f"{layer}.{kind.mixing}.prediction_coefs", kind.count, kind.count**2, bias=False)
    found = []
    for j, x in enumerate(xs):
        for k, other in enumerate(xs):
            share = _column(m, shares, j * kind.count + k)
            x = m.emit(relax.op.add(x, m.emit(relax.op.multiply(other, share))))
        found.append(x)
    return found


def corrected(
    c: DecoderConfig, m: ModelBuilder, expected: Sequence[relax.Var], y: relax.Var, layer: str
) -> list[relax.Var]:
    """The streams behind a layer that has made y of the active one."""
    kind = _of(c)
    routed = _routed(c, m, y, layer)
    shares = m.linear(routed, f"{layer}.{kind.mixing}.correction_coefs", kind.count, kind.count, bias=False)
    shares = m.emit(relax.op.add(shares, relax.const(1.0, "float32")))
    news = m.emit(relax.op.subtract(y, expected[kind.active]))
    return [
        m.emit(relax.op.add(x, m.emit(relax.op.multiply(news, _column(m, shares, j))))) for j, x in enumerate(expected)
    ]


def active(c: DecoderConfig, m: ModelBuilder, xs: Sequence[relax.Var], layer: str) -> relax.Var:
    """What the embeddings of the layer read."""
    kind = _of(c)
    if not kind.scaled:
        return xs[kind.active]
    by = m.weight(f"{layer}.{kind.mixing}.correct_output_scale", (c.hidden,), scale=0.1, offset=1.0)
    return m.emit(relax.op.multiply(xs[kind.active], by))


def beside_attention(c: DecoderConfig, m: ModelBuilder, onto: relax.Var, read: relax.Var, layer: str) -> relax.Var:
    """The residual stream `onto`, with attention in it, and the branch of what attention has `read`, over sqrt(2)."""
    kind = _of(c)
    stem = f"{layer}.{kind.branch}"
    m.layer = stem
    low = m.linear(read, f"{stem}.linear_left", c.hidden, kind.rank, bias=False)
    wide = m.linear(low, f"{stem}.linear_right", kind.rank, c.hidden, bias=False)
    branch = m.emit(relax.op.add(read, weights.norm(c, m, wide, f"{stem}.post_laurel_norm", c.hidden)))
    return m.emit(relax.op.multiply(m.emit(relax.op.add(onto, branch)), relax.const(math.sqrt(0.5), "float32")))


def _of(c: DecoderConfig) -> Streams:
    assert c.streams is not None, "a decoder with streams"
    return c.streams


def _routed(c: DecoderConfig, m: ModelBuilder, x: relax.Var, layer: str) -> relax.Var:
    """How much of each stream x asks for, [batch, tokens, count]."""
    kind = _of(c)
    m.layer = f"{layer}.{kind.mixing}"
    normed = weights.norm(c, m, x, f"{m.layer}.router_norm", c.hidden)
    normed = m.emit(relax.op.multiply(normed, relax.const(1 / c.hidden, "float32")))
    return m.emit(relax.op.tanh(m.linear(normed, f"{m.layer}.modality_router", c.hidden, kind.count, bias=False)))


def _column(m: ModelBuilder, x: relax.Var, index: int) -> relax.Var:
    return m.emit(relax.op.strided_slice(x, axes=[2], begin=[index], end=[index + 1]))


def _sized(c: DecoderConfig, m: ModelBuilder, x: relax.Var, like: relax.Var, name: str) -> relax.Var:
    """The projection `name` of x, of the size of `like`."""
    m.layer = name
    y = m.linear(x, name, c.hidden, c.hidden, bias=False)
    size = m.emit(relax.op.maximum(_mean_square(m, y), relax.const(_LEAST, "float32")))
    wanted = m.emit(relax.op.sqrt(m.emit(relax.op.divide(_mean_square(m, like), size))))
    return m.emit(relax.op.multiply(y, wanted))


def _mean_square(m: ModelBuilder, x: relax.Var) -> relax.Var:
    return m.emit(relax.op.mean(m.emit(relax.op.multiply(x, x)), axis=[2], keepdims=True))
