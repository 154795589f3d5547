"""What tells one decoder from another, as data: sizes, the parts of a layer, and how its tensors are called."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .mixer_kinds import Mixer


@dataclass(frozen=True)
class Names:
    """Tensor names without `.weight` and `.bias`; those of a layer follow `layer`, and "" is a part that is not there.

    `joined` is one tensor for q, k and v: first all queries, then keys, then values, or, with `grouped`, for every KV
    head its queries, its key and its value. `gate_up` is one tensor for both, the gate first.
    """

    embedding: str = "model.embed_tokens"
    project_in: str = ""  # between an embedding of another width and the layers
    project_out: str = ""
    positions: str = ""
    embedding_norm: str = ""
    layer: str = "model.layers.{}"
    attention_norm: str = "input_layernorm"
    attention: str = "self_attn"  # also what operator calls of the attention are called in reports
    joined: str = ""
    grouped: bool = False
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    query_norm: str = ""
    key_norm: str = ""
    sinks: str = ""  # whole: a score of every head beside those of keys
    head_gate: str = ""  # a gate of every head, whose sigmoid the head's result is multiplied by
    output_norm: str = ""  # of what heads give, in front of the attention's output projection
    output: str = "self_attn.o_proj"
    attention_post_norm: str = ""  # between the attention's output and the residual
    ffn_norm: str = "post_attention_layernorm"  # "": a parallel feed-forward reads what attention reads
    ffn: str = "mlp"
    gate_up: str = ""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down_norm: str = ""  # of the hidden layer, in front of the projection down
    down: str = "mlp.down_proj"
    ffn_post_norm: str = ""
    norm: str = "model.norm"  # behind the last layer
    head: str = "lm_head"
    layout: str = "nk"  # of the layers' matrices


@dataclass(frozen=True)
class Rope:
    """Rotation of the first 2 * len(frequencies) channels of a head by position * frequency."""

    frequencies: tuple[float, ...]  # angle per position of every pair
    interleaved: bool = False  # pairs (2i, 2i + 1), else (i, i + half)
    factor: float = 1.0  # of both tables: what some scalings do to the temperature


@dataclass(frozen=True)
class Alibi:
    """Scores that fall with the distance, by head (arXiv:2108.12409)."""

    scale: float = 1.0  # of what is added
    rounded: bool = False  # slopes, and slope times position, to bfloat16, as the model was trained


@dataclass(frozen=True)
class Layer:
    """What may differ from layer to layer."""

    rope: Rope | None = None
    window: int | None = None  # keys that a query sees, itself included
    mixer: Mixer | None = None  # what is there in place of attention, with a state that is no cache
    beside: bool = False  # the mixer stands beside attention, and both are added
    attends: bool = True  # False: there is neither, and the first norm is the feed-forward's
    feeds: bool = True  # has a feed-forward
    head_dim: int | None = None  # sizes that are not those of the model
    kv_heads: int | None = None
    feed_forward: int | None = None
    scale: float | None = None  # of scores, which is not that of the model
    sparsity: float | None = None  # standard deviations above the mean from which on the gate of the feed-forward opens
    keys_of: int | None = None  # an earlier layer, whose keys and values are read: it has none of its own
    values_are_keys: bool = False  # as they are projected, in front of norm and rotation

    @property
    def projected(self) -> int:
        """How many of keys and values have a projection of their own."""
        return 0 if self.keys_of is not None else 1 if self.values_are_keys else 2


@dataclass(frozen=True)
class ExpertNames:
    """Tensor names of a mixture within a layer. Experts are tensors each, or one of three dimensions together.

    `{}` is the number of an expert; `stacked_gate_up` [experts, 2 width, hidden] has the gate first. The stacked ones
    and `correction` are whole names, the others are without `.weight`.
    """

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"
    stacked_gate_up: str = "mlp.experts.gate_up_proj"
    stacked_gate: str = ""  # where gate and up of all experts are two tensors
    stacked_up: str = ""
    stacked_down: str = "mlp.experts.down_proj"
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate_up: str = ""  # one tensor for both, the gate first
    shared_switch: str = "mlp.shared_expert_gate"
    to_latent: str = ""
    from_latent: str = ""
    router_scale: str = ""  # whole: of every channel that the router reads, behind a norm without weight
    expert_scale: str = ""  # whole: of what every expert gives
    feed_forward_post_norm: str = ""  # of a mixture in parallel: behind the feed-forward, in front of the experts
    norm: str = ""
    post_norm: str = ""


@dataclass(frozen=True)
class Mixture:
    """A feed-forward of many experts, of which every token is sent to `top`."""

    experts: int
    top: int
    width: int  # of the hidden layer of one expert
    scores: str = "softmax"  # or "sigmoid" or "sparsemixer", of the router's logits
    tolerance: float = 0.0  # of "sparsemixer"
    normalised: bool = True  # weights of the chosen experts are divided by their sum
    scale: float = 1.0  # of the weights
    correction: bool = False  # added to the scores where experts are chosen, not in their weights
    correction_of_groups: bool = False  # stored as [1, experts]
    bias: bool = False  # of the router and the experts
    gated: bool = True  # experts, and the one for all, have a gate
    latent: int = 0  # what rows are projected to in front of the experts, and back from behind them; 0: they are not
    flat: bool = False  # stacked weights are [experts * width, hidden], those down as well
    turned: bool = False  # stacked weights are [experts, k, n], of gates and projections up by turns
    groups: int = 1  # of neighbours; experts are chosen from `top_groups` of them
    top_groups: int = 1
    best: int = 1  # experts of a group whose scores are its own
    clamped: tuple[float, float] | None = None  # (alpha, limit) of a gate that is bounded, see `mixture`
    shared: int = 0  # width of an expert that every token is sent to, 0: there is none
    shared_switch: bool = False  # whose result is multiplied by a sigmoid of the token
    parallel: bool = False  # beside the feed-forward that a layer has anyway, between norms of its own
    dense: tuple[int, ...] = ()  # layers that have one feed-forward instead
    names: tuple[ExpertNames, ...] = (ExpertNames(),)  # the first of which the checkpoint has the router


@dataclass(frozen=True)
class Latent:
    """Attention over one vector of every token, from which all heads make their keys and values (arXiv:2405.04434).

    A head's query has `plain` channels, whose keys and values come of the first `rank` numbers of the vector, and
    `turned` ones, whose key is the rest of it, one for all heads. The names are of tensors within a layer.
    """

    rank: int
    plain: int
    turned: int
    value: int  # of a head
    query_rank: int | None = None  # between two projections of queries; None: there is one
    bias: bool = False  # of the projections down, not of a single one of queries
    eps: float = 1e-6
    query: str = "self_attn.q_proj"
    query_down: str = "self_attn.q_a_proj"
    query_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    down: str = "self_attn.kv_a_proj_with_mqa"
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"

    @property
    def width(self) -> int:
        """Numbers of a token in the cache."""
        return self.rank + self.turned


@dataclass(frozen=True)
class LayerEmbeddings:
    """A vector of every token for each layer, which its end reads: of a table, and of the embedding.

    The names are whole without `.weight`; the last three are of tensors within a layer.
    """

    width: int
    vocabulary: int
    table: str = "embed_tokens_per_layer"
    projection: str = "per_layer_model_projection"
    norm: str = "per_layer_projection_norm"
    gate: str = "per_layer_input_gate"
    output: str = "per_layer_projection"
    post_norm: str = "post_per_layer_input_norm"


@dataclass(frozen=True)
class Streams:
    """Residual streams beside one another, of which a layer reads one, and a branch of low rank beside attention.

    The first two names are whole, `{}` is the number of a stream; the others are of tensors within a layer.
    """

    count: int
    active: int
    rank: int
    scaled: bool  # what the active one gives to the layer's embeddings is multiplied by a weight
    spread: str = "altup_projections.{}"
    united: str = "altup_unembed_projections.{}"
    mixing: str = "altup"
    branch: str = "laurel"


@dataclass(frozen=True)
class DecoderConfig:
    """A causal language model. None is what the model has not got, or the usual value where a size is open."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int  # the longest context
    kv_heads: int | None = None  # as many as heads
    head_dim: int | None = None  # hidden over heads
    embedding_width: int | None = None  # hidden; of another width, two projections lead in and out
    pattern: tuple[Layer, ...] = (Layer(),)  # repeated over the layers
    position_offset: int | None = None  # the row of the table of positions that position 0 reads; None: no table
    alibi: Alibi | None = None
    norm: str = "rms"  # or "layer"
    norm_weight: bool = True
    norm_bias: bool = True  # of a layer norm
    norm_plus_one: bool = False  # norms multiply by one more than their weight
    eps: float = 1e-5
    norm_behind: bool = False  # norms stand behind the residual's addition, not in front of what is added
    parallel: bool = False  # attention and feed-forward read the same residual stream
    # "head": RMS over every head, "all": over all heads at once; "layer": a layer norm of every head, "each": one
    # without bias whose weights are every head's own.
    query_key_norm: str | None = None
    value_norm: bool = False  # RMS over every head of values, without a weight
    norm_turned: bool = False  # those norms see queries and keys that positions have turned
    query_gate: bool = False  # behind every head's query, of whose sigmoid the head's result is a multiple
    clip: float | None = None  # of queries, keys and values, before all else
    query_key_value_bias: bool = False
    joined_blocks: int = 1  # above 1, `Names.joined` has of so many blocks of heads their queries, values, then keys
    output_bias: bool = False
    ffn_bias: bool = False
    head_bias: bool = False
    activation: str = "silu"
    gated: bool = True
    learned_activation: str = ""  # whole, within a layer: where the numbers of xIELU are, which is then the activation
    latent: Latent | None = None  # then `kv_heads` is 1 and `head_dim` its width: what the attention reads
    mixture: Mixture | None = None  # of experts; `feed_forward` is the width of layers without
    scale: float | None = None  # of scores; head_dim ** -0.5
    softcap: float | None = None  # of scores
    attention_scale: float | None = None  # of what attention gives
    gate_scale: float | None = None  # of the gate's weight
    down_scale: float | None = None  # of what the feed-forward gives
    logit_softcap: float | None = None
    embedding_scale: float | None = None
    residual_scale: float | None = None  # of what a layer adds to the residual stream
    layer_embeddings: LayerEmbeddings | None = None
    streams: Streams | None = None
    layer_scale: str = ""  # whole, within a layer: one number, of all that the layer hands on
    logit_scale: float | None = None
    tied: bool = True  # the head is the embedding's table
    last_only: bool = False  # main gives logits of the last position alone
    names: Names = Names()

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head_size

    @property
    def turned_width(self) -> int:
        """Channels of what positions turn."""
        return self.latent.turned if self.latent else self.head_size

    @property
    def kept(self) -> tuple[str, ...]:
        """What the caches of a layer have of a token."""
        return ("key",) if self.latent else ("key", "value")

    @property
    def longest(self) -> int:
        """Positions that activations are planned for: longer prompts are given in chunks, or declared with --shape."""
        return min(self.positions, 2048)

    def mixture_of(self, index: int) -> Mixture | None:
        """The mixture that layer `index` has, None for one feed-forward."""
        return None if self.mixture is None or index in self.mixture.dense else self.mixture

    def layer(self, index: int) -> Layer:
        return self.pattern[index % len(self.pattern)]

    def at(self, index: int) -> DecoderConfig:
        """The configuration with the sizes of layer `index`, and its scale."""
        kind = self.layer(index)
        own = {name: getattr(kind, name) for name in ("head_dim", "kv_heads", "feed_forward", "scale")}
        found = {name: value for name, value in own.items() if value is not None}
        return replace(self, **found) if found else self

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers with keys and values of their own."""
        kinds = [self.layer(i) for i in range(self.layers)]
        attend = [kind.attends and (kind.mixer is None or kind.beside) for kind in kinds]
        return tuple(i for i, kind in enumerate(kinds) if attend[i] and kind.keys_of is None)
