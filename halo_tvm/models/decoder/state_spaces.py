"""The graphs of selective state spaces, by channel (Mamba) and by head (Mamba 2).

References
    arXiv:2312.00752 (Mamba), arXiv:2410.05355 (Falcon-Mamba), arXiv:2405.21060 (Mamba 2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...relay_ops.parts.activation import ACTIVATIONS
from ..builder import ModelBuilder
from .mixer_kinds import ChannelStates, HeadStates

_TERMS = (15, 13, 11, 9, 7, 5, 3)  # powers of the series of artanh behind the first: the rest is below 1e-9


def by_channel(
    m: ModelBuilder, hidden: int, mixer: ChannelStates, x: relax.Var, index: int, lengths: relax.Var | None
) -> relax.Var:
    """Steps and both vectors are projected of what the convolution gives; the result is gated and projected back."""
    name, width, n = m.layer, mixer.channels, mixer.states
    batch, tokens, _ = x.ty.shape.values
    joined = m.linear(x, f"{name}.in_proj", hidden, 2 * width, bias=mixer.bias)
    value, gate = parts(m, joined, (width, width))
    value = convolved(
        m, value, f"{name}.conv1d", width, mixer.kernel, index, lengths, bias=mixer.convolution_bias, activation="silu"
    )
    found = parts(m, m.linear(value, f"{name}.x_proj", width, mixer.rank + 2 * n, bias=False), (mixer.rank, n, n))
    if mixer.norm_eps is not None:
        sizes = (mixer.rank, n, n)
        stems = mixer.norms or ("", "", "")
        weights = [
            m.weight(f"{name}.{stem}.weight", (size,), scale=0.1, offset=1.0) if stem else m.ones(size)
            for stem, size in zip(stems, sizes)
        ]
        found = [m.op("rms_norm", part, weight, eps=mixer.norm_eps) for part, weight in zip(found, weights)]
    low, to, of = found
    steps = softplus(m, m.linear(low, f"{name}.dt_proj", mixer.rank, width))
    log = m.source(f"{name}.A_log", (width, n), scale=0.5, offset=0.5)
    turned = m.recipe(f"{log}:turned", "permute_dims", [log], (n, width), axes=[1, 0])
    falls = m.recipe(f"{log}:falls", "falls", [turned], (n, width))
    falls = m.derived(f"{log}:head", "stack", [falls], (1, n, width), joined=1)
    through = m.source(f"{name}.D", (width,), scale=0.1, offset=1.0)
    through = m.derived(f"{through}:head", "stack", [through], (1, width), joined=1)

    def shaped(y: relax.Expr, size: int) -> relax.Var:
        return m.emit(relax.op.reshape(y, (batch, tokens, 1, size)))

    given = [shaped(value, width), shaped(steps, width), falls, shaped(to, n), shaped(of, n), through]
    y = m.emit(relax.op.reshape(scanned(m, given, index, lengths), (batch, tokens, width)))
    y = m.emit(relax.op.multiply(y, m.emit(ACTIVATIONS["silu"].relax(gate))))
    return m.linear(y, f"{name}.out_proj", width, hidden, bias=mixer.bias)


def by_head(
    m: ModelBuilder, hidden: int, mixer: HeadStates, x: relax.Var, index: int, lengths: relax.Var | None
) -> relax.Var:
    """Gate, values, both vectors and steps are projected together; a step is one number of every head."""
    name, width, heads, n = m.layer, mixer.width, mixer.heads, mixer.states
    batch, tokens, _ = x.ty.shape.values
    vectors = mixer.groups * n
    joined = m.linear(x, f"{name}.in_proj", hidden, width + mixer.channels + heads, bias=mixer.bias)
    if any(scale != 1.0 for scale in mixer.scales):
        sizes = (width, width, vectors, vectors, heads)
        scales = np.concatenate([np.full(size, scale, np.float32) for size, scale in zip(sizes, mixer.scales)])
        joined = m.emit(relax.op.multiply(joined, m.table("state_space.scales", scales)))
    gate, value, steps = parts(m, joined, (width, mixer.channels, heads))
    value = convolved(
        m,
        value,
        f"{name}.conv1d",
        mixer.channels,
        mixer.kernel,
        index,
        lengths,
        bias=mixer.convolution_bias,
        activation="silu",
    )
    value, to, of = parts(m, value, (width, vectors, vectors))
    bias = m.weight(f"{name}.dt_bias", (heads,), scale=0.3)
    steps = softplus(m, m.emit(relax.op.add(steps, bias)))
    least, most = mixer.limits
    if least > 0:
        steps = m.emit(relax.op.maximum(steps, relax.const(least, "float32")))
    if math.isfinite(most):
        steps = m.emit(relax.op.minimum(steps, relax.const(most, "float32")))
    log = m.source(f"{name}.A_log", (heads,), scale=0.5, offset=0.5)
    falls = m.derived(f"{log}:falls", "falls", [log], (heads,))
    through = m.weight(f"{name}.D", (heads,), scale=0.1, offset=1.0)

    def shaped(y: relax.Expr, *sizes: int) -> relax.Var:
        return m.emit(relax.op.reshape(y, (batch, tokens, *sizes)))

    pair = [shaped(y, mixer.groups, n) for y in (to, of)]
    y = shaped(scanned(m, [shaped(value, heads, mixer.head_size), steps, falls, *pair, through], index, lengths), width)
    y = _gated(m, mixer, y, gate)
    out = m.linear(y, f"{name}.out_proj", width, hidden, bias=mixer.output_bias)
    if mixer.output_scale not in (None, 1.0):
        out = m.emit(relax.op.multiply(out, relax.const(mixer.output_scale, "float32")))
    return out


def _gated(m: ModelBuilder, mixer: HeadStates, y: relax.Var, gate: relax.Var) -> relax.Var:
    """y * silu(gate), and a norm of every group in front of it or behind."""
    batch, tokens, width = y.ty.shape.values
    switch = m.emit(ACTIVATIONS["silu"].relax(gate))
    if mixer.norm_eps is None or mixer.gated_first:
        y = m.emit(relax.op.multiply(y, switch))
    if mixer.norm_eps is None:
        return y
    weight = m.weight(f"{m.layer}.norm.weight", (mixer.width,), scale=0.1, offset=1.0)
    if mixer.groups == 1:
        y = m.op("rms_norm", y, weight, eps=mixer.norm_eps)
    else:
        size = mixer.width // mixer.groups
        y = m.emit(relax.op.reshape(y, (batch, tokens, mixer.groups, size)))
        y = m.op("rms_norm", y, m.ones(size), eps=mixer.norm_eps)
        y = m.emit(relax.op.multiply(m.emit(relax.op.reshape(y, (batch, tokens, width))), weight))
    return y if mixer.gated_first else m.emit(relax.op.multiply(y, switch))


def softplus(m: ModelBuilder, x: relax.Var) -> relax.Var:
    """log(1 + exp(x)) to the last digits, also of small results: max(x, 0) + log(1 + t) of t = exp(-|x|).

    The logarithm is 2 artanh(z) of z = t / (2 + t), which is at most 1/3, by its series.
    """

    def number(value: float) -> relax.Expr:
        return relax.const(value, "float32")

    size = m.emit(relax.op.minimum(x, m.emit(relax.op.negative(x))))
    t = m.emit(relax.op.exp(size))
    z = m.emit(relax.op.divide(t, m.emit(relax.op.add(t, number(2.0)))))
    square = m.emit(relax.op.multiply(z, z))
    series = m.emit(relax.op.multiply(square, number(2.0 / _TERMS[0])))
    for power in _TERMS[1:]:
        series = m.emit(relax.op.multiply(m.emit(relax.op.add(series, number(2.0 / power))), square))
    log = m.emit(relax.op.multiply(m.emit(relax.op.add(series, number(2.0))), z))
    return m.emit(relax.op.add(m.emit(relax.op.maximum(x, number(0.0))), log))


def scanned(m: ModelBuilder, given: Sequence[relax.Var], index: int, lengths: relax.Var | None) -> relax.Var:
    """`halo.selective_scan` of what it reads, with the state of layer `index` where there are `lengths`."""
    if lengths is None:
        return m.op("selective_scan", *given)
    value, *rest = given
    kept = m.op("selective_scan", value, m.inputs[f"state_{index}"], lengths, *rest, has_state=True)
    return m.emit(relax.TupleGetItem(kept, 0))


def parts(m: ModelBuilder, x: relax.Var, sizes: Sequence[int]) -> list[relax.Var]:
    """x [batch, tokens, sum of sizes] cut along its last axis."""
    ends = np.cumsum(sizes).tolist()
    return [
        m.emit(relax.op.strided_slice(x, axes=[2], begin=[end - size], end=[end])) for size, end in zip(sizes, ends)
    ]


def convolved(
    m: ModelBuilder,
    x: relax.Var,
    name: str,
    channels: int,
    kernel: int,
    index: int,
    lengths: relax.Var | None,
    *,
    bias: bool,
    activation: str = "",
) -> relax.Var:
    """x [batch, tokens, channels] through the short convolution `name`, stored [channels, 1, kernel]."""
    stored = m.source(f"{name}.weight", (channels, 1, kernel), scale=kernel**-0.5)
    turned = m.recipe(f"{stored}:turned", "permute_dims", [stored], (1, kernel, channels), axes=[1, 2, 0])
    args = [m.derived(f"{stored}:steps", "group_part", [turned], (kernel, channels), index=0)]
    args += [m.weight(f"{name}.bias", (channels,), scale=0.1)] if bias else []
    attrs: dict[str, object] = {"has_bias": True} if bias else {}
    attrs |= {"activation": activation} if activation else {}
    if lengths is None:
        return m.op("causal_convolution", x, *args, **attrs)
    kept = m.op("causal_convolution", x, m.inputs[f"convolution_{index}"], lengths, *args, has_state=True, **attrs)
    return m.emit(relax.TupleGetItem(kept, 0))
