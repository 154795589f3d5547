"""What some layers have in place of attention: a state that moves from token to token, of one size at every length.

Such a state is overwritten, so that nothing can be taken back, and it is float32 whatever the caches are.

States of layer i, each with a row for every sequence
    convolution_i [batch, kernel - 1, channels]    the inputs of a short convolution that later tokens see
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..builder import ModelBuilder
from .config import DecoderConfig, ShortConvolution


def states(c: DecoderConfig, mixer: ShortConvolution, index: int) -> Mapping[str, tuple[int, ...]]:
    """The states of layer `index` by name, without the axis of sequences."""
    return {f"convolution_{index}": (mixer.kernel - 1, c.hidden)}


def mix(
    m: ModelBuilder, c: DecoderConfig, mixer: ShortConvolution, x: relax.Var, index: int, lengths: relax.Var | None
) -> relax.Var:
    """What layer `index` makes of x [batch, tokens, hidden]; `lengths` is None for whole sequences without states."""
    layer = c.names.layer.format(index)
    names = [f"{layer}.{name}" for name in mixer.names]
    m.layer = names[0].rpartition(".")[0]
    joined = m.linear(x, names[0], c.hidden, 3 * c.hidden, bias=mixer.bias)
    before, behind, value = (
        m.emit(relax.op.strided_slice(joined, axes=[2], begin=[part * c.hidden], end=[(part + 1) * c.hidden]))
        for part in range(3)
    )
    gated = m.emit(relax.op.multiply(before, value))
    found = convolved(m, gated, names[1], c.hidden, mixer.kernel, index, lengths, bias=mixer.bias)
    return m.linear(m.emit(relax.op.multiply(behind, found)), names[2], c.hidden, c.hidden, bias=mixer.bias)


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
