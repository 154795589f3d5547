"""A configuration as its model is stored in GGUF: names of tensors by their roles, and what converters made of them."""

from __future__ import annotations

from dataclasses import fields, replace

from ...models.decoder import (
    ChannelStates,
    DecoderConfig,
    DeltaRule,
    ExpertNames,
    HeadStates,
    Layer,
    Mixture,
    Names,
    ShortConvolution,
)
from ._metadata import Metadata

ROLES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "embedding_norm": "token_embd_norm",
    "layer": "blk.{}",
    "attention_norm": "attn_norm",
    "attention": "attn",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "sinks": "attn_sinks.weight",
    "output_norm": "attn_sub_norm",
    "output": "attn_output",
    "attention_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn": "ffn",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down_norm": "ffn_sub_norm",
    "down": "ffn_down",
    "ffn_post_norm": "post_ffw_norm",
    "norm": "output_norm",
    "head": "output",
}
_SHORT = ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj")
_EXPERTS = ExpertNames(
    router="ffn_gate_inp",
    correction="exp_probs_b.bias",
    stacked_gate="ffn_gate_exps.weight",
    stacked_up="ffn_up_exps.weight",
    stacked_gate_up="",
    stacked_down="ffn_down_exps.weight",
    shared_gate="ffn_gate_shexp",
    shared_up="ffn_up_shexp",
    shared_down="ffn_down_shexp",
    shared_switch="ffn_gate_inp_shexp",
    to_latent="ffn_latent_down",
    from_latent="ffn_latent_up",
)
_JOINED_EXPERTS = replace(_EXPERTS, stacked_gate="", stacked_gate_up="ffn_gate_up_exps.weight")
# Of a mixture beside a feed-forward (Gemma 4), where the definition has them.
_BESIDE = {
    "router_scale": "ffn_gate_inp.scale",
    "expert_scale": "ffn_down_exps.scale",
    "feed_forward_post_norm": "post_ffw_norm_1",
    "norm": "pre_ffw_norm_2",
    "post_norm": "post_ffw_norm_2",
}
_LATENT = {
    "query": "attn_q",
    "query_down": "attn_q_a",
    "query_norm": "attn_q_a_norm",
    "query_up": "attn_q_b",
    "down": "attn_kv_a_mqa",
    "norm": "attn_kv_a_norm",
    "up": "attn_kv_b",
}
_EMBEDDINGS = {
    "table": "per_layer_token_embd",
    "projection": "per_layer_model_proj",
    "norm": "per_layer_proj_norm",
    "gate": "inp_gate",
    "output": "proj",
    "post_norm": "post_norm",
}
STATES = "ssm"  # what the definition calls a state space, or linear attention, within a layer


def as_stored(c: DecoderConfig, m: Metadata, *, interleaved: bool) -> DecoderConfig:
    """`c` with the names of GGUF; `interleaved`: channels that turn together are neighbours."""
    attends = c.attending[0] if c.attending else 0

    def of_attention(*names: str) -> bool:
        return any(f"blk.{attends}.{name}" in m.file.tensors for name in names)

    names = {role.name: getattr(c.names, role.name) for role in fields(Names)}
    changed = {role: word for role, word in ROLES.items() if names[role]}
    changed |= {"joined": "attn_qkv" if of_attention("attn_qkv.weight") else "", "layout": "nk"}
    changed["gate_up"] = "ffn_up" if c.gated and not m.has("blk.{}.ffn_gate.weight") else ""
    if m.has("blk.{}.attn_norm_2.weight"):  # Falcon: attention reads the second one
        changed |= {"attention_norm": "attn_norm_2", "ffn_norm": "attn_norm"}
    if names["ffn_norm"] and not names["attention_post_norm"] and m.has("blk.{}.post_attention_norm.weight"):
        changed["ffn_norm"] = "post_attention_norm"
    if not m.has("output_norm.weight") and m.has("token_embd_norm.weight") and not names["embedding_norm"]:
        changed["norm"] = "token_embd_norm"
    pattern = tuple(_mixer_as_stored(layer, m) for layer in c.pattern)
    if interleaved:
        turned = {layer.rope: replace(layer.rope, interleaved=True) for layer in pattern if layer.rope}
        pattern = tuple(replace(layer, rope=turned[layer.rope] if layer.rope else None) for layer in pattern)
    return replace(
        c,
        names=replace(c.names, grouped=False, **changed),
        mixture=c.mixture and _mixture_as_stored(c.mixture, m),
        latent=c.latent and replace(c.latent, **_LATENT),  # type: ignore[arg-type]
        layer_embeddings=c.layer_embeddings and replace(c.layer_embeddings, **_EMBEDDINGS),  # type: ignore[arg-type]
        layer_scale=c.layer_scale and "layer_output_scale.weight",
        pattern=pattern,
        norm_plus_one=False,
        query_key_value_bias=of_attention("attn_qkv.bias", "attn_q.bias"),
        output_bias=of_attention("attn_output.bias"),
        ffn_bias=m.has("blk.{}.ffn_up.bias"),
        head_bias=m.has("output.bias"),
        tied=not m.has("output.weight"),
    )


def _mixture_as_stored(mixture: Mixture, m: Metadata) -> Mixture:
    names = _JOINED_EXPERTS if m.has("blk.{}.ffn_gate_up_exps.weight") else _EXPERTS
    beside = {role: word for role, word in _BESIDE.items() if getattr(mixture.names[0], role)}
    return replace(mixture, names=(replace(names, **beside),), correction_of_groups=False, turned=False)


def _mixer_as_stored(layer: Layer, m: Metadata) -> Layer:
    """A layer whose part in place of attention, if it has one, is called as in GGUF."""
    mixer = layer.mixer
    if isinstance(mixer, ShortConvolution):
        return replace(layer, mixer=replace(mixer, names=_SHORT))
    if isinstance(mixer, DeltaRule):
        return replace(layer, mixer=replace(mixer, name=STATES, joined=m.has("blk.{}.ssm_in.weight")))
    if isinstance(mixer, ChannelStates | HeadStates):
        return replace(layer, mixer=replace(mixer, name=STATES))
    return layer
