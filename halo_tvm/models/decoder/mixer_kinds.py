"""What a layer may have in place of attention, or beside it, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShortConvolution:
    """A gated convolution over the last tokens, by channel (LFM2)."""

    kernel: int
    bias: bool = False  # of the convolution and of both projections
    names: tuple[str, str, str] = ("conv.in_proj", "conv.conv", "conv.out_proj")


@dataclass(frozen=True)
class ChannelStates:
    """A selective state space by channel (Mamba): a short convolution, then a scan whose steps have a low rank."""

    channels: int
    states: int  # of every channel
    kernel: int
    rank: int  # of the steps
    bias: bool = False  # of the projections in and out
    convolution_bias: bool = True
    norm_eps: float | None = None  # of norms of the steps and both vectors (Falcon-Mamba, Jamba)
    norms: tuple[str, str, str] | None = None  # names of those norms; None: they have no weights
    name: str = "mixer"  # of the layer's part


@dataclass(frozen=True)
class HeadStates:
    """A selective state space by head (Mamba 2): a short convolution, a scan, a gate and perhaps a norm of groups."""

    heads: int
    head_size: int
    groups: int  # of heads that share their vectors
    states: int
    kernel: int
    bias: bool = False  # of the projection in
    output_bias: bool = False
    convolution_bias: bool = True
    limits: tuple[float, float] = (0.0, float("inf"))  # of the steps
    norm_eps: float | None = 1e-5  # None: there is no norm
    gated_first: bool = True  # the gate stands in front of the norm
    scales: tuple[float, ...] = ()  # of what is projected: gate, values, both vectors, steps
    output_scale: float | None = None
    name: str = "mixer"

    @property
    def width(self) -> int:
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        """What the convolution sees: values and both vectors of every group."""
        return self.width + 2 * self.groups * self.states


@dataclass(frozen=True)
class DeltaRule:
    """Linear attention by the gated delta rule, behind a short convolution (Qwen3-Next, Qwen 3.5).

    The projections are two tensors, each key head's parts together (`joined`): queries, keys, values and gates, then
    `beta` and steps; or four: queries, keys and values, then gates, `beta` and steps.
    """

    key_heads: int
    key_size: int
    heads: int  # of values
    head_size: int
    kernel: int
    norm_eps: float
    joined: bool
    name: str = "linear_attn"

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        """What the convolution sees: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True)
class GatedRecurrence:
    """A linear recurrence by channel with gates of falls and inputs, behind a short convolution (Griffin's RG-LRU)."""

    channels: int
    heads: int  # pieces of the channels: a gate's matrix leads from each to itself alone
    kernel: int
    activation: str  # of the branch that the result is multiplied by
    name: str = "temporal_block"
    states: int = 1  # of every channel

    @property
    def head_size(self) -> int:
        return self.channels // self.heads


Mixer = ShortConvolution | ChannelStates | HeadStates | DeltaRule | GatedRecurrence
