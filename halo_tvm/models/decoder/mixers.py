"""What some layers have in place of attention: a state that moves from token to token, of one size at every length.

Such a state is overwritten, so that nothing can be taken back, and it is float32 whatever the caches are.

States of layer i, each with a row for every sequence
    convolution_i [batch, kernel - 1, channels]    the inputs of a short convolution that later tokens see
    state_i [batch, heads, states, head size]      of a state space; one by channel has one head of all channels. Of
                                                   linear attention the keys' size is that of states
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..builder import ModelBuilder
from .config import DecoderConfig
from .delta_rule import by_delta
from .gated_recurrence import by_gates
from .mixer_kinds import ChannelStates, DeltaRule, GatedRecurrence, Mixer, ShortConvolution
from .state_spaces import by_channel, by_head, convolved, parts


def states(c: DecoderConfig, mixer: Mixer, index: int) -> Mapping[str, tuple[int, ...]]:
    """The states of layer `index` by name, without the axis of sequences."""
    if isinstance(mixer, ShortConvolution):
        return {f"convolution_{index}": (mixer.kernel - 1, c.hidden)}
    size = (
        (1, mixer.channels) if isinstance(mixer, (ChannelStates, GatedRecurrence)) else (mixer.heads, mixer.head_size)
    )
    shape = (size[0], mixer.key_size if isinstance(mixer, DeltaRule) else mixer.states, size[1])
    return {f"convolution_{index}": (mixer.kernel - 1, mixer.channels), f"state_{index}": shape}


def mix(
    m: ModelBuilder, c: DecoderConfig, mixer: Mixer, x: relax.Var, index: int, lengths: relax.Var | None
) -> relax.Var:
    """What layer `index` makes of x [batch, tokens, hidden]; `lengths` is None for whole sequences without states."""
    layer = c.names.layer.format(index)
    if isinstance(mixer, ShortConvolution):
        return _short(m, c, mixer, x, index, lengths)
    m.layer = f"{layer}.{mixer.name}"
    if isinstance(mixer, ChannelStates):
        return by_channel(m, c.hidden, mixer, x, index, lengths)
    if isinstance(mixer, GatedRecurrence):
        return by_gates(m, c.hidden, mixer, x, index, lengths)
    if isinstance(mixer, DeltaRule):
        return by_delta(m, c.hidden, mixer, x, index, lengths)
    return by_head(m, c.hidden, mixer, x, index, lengths)


def _short(
    m: ModelBuilder, c: DecoderConfig, mixer: ShortConvolution, x: relax.Var, index: int, lengths: relax.Var | None
) -> relax.Var:
    names = [f"{c.names.layer.format(index)}.{name}" for name in mixer.names]
    m.layer = names[0].rpartition(".")[0]
    joined = m.linear(x, names[0], c.hidden, 3 * c.hidden, bias=mixer.bias)
    before, behind, value = parts(m, joined, (c.hidden,) * 3)
    gated = m.emit(relax.op.multiply(before, value))
    found = convolved(m, gated, names[1], c.hidden, mixer.kernel, index, lengths, bias=mixer.bias)
    return m.linear(m.emit(relax.op.multiply(behind, found)), names[2], c.hidden, c.hidden, bias=mixer.bias)
