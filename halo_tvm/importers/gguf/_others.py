"""Tensors that a definition reads and a file has as others: under other names, in parts, turned, or as what follows.

References
    what llama.cpp's converters do to the tensors of a checkpoint
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from ...models.decoder import ChannelStates, DecoderConfig, DeltaRule, HeadStates, Latent
from ._stored import STATES


@dataclass(frozen=True)
class Other:
    """The tensors of the file that a tensor is made of: their names and shapes, and how.

    One alone that is not changed has another name.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    make: Callable[..., np.ndarray] | None = None


_STATES = {
    "in_proj.weight": "ssm_in.weight",
    "in_proj.bias": "ssm_in.bias",
    "conv1d.weight": "ssm_conv1d.weight",
    "conv1d.bias": "ssm_conv1d.bias",
    "x_proj.weight": "ssm_x.weight",
    "dt_proj.weight": "ssm_dt.weight",
    "dt_proj.bias": "ssm_dt.bias",
    "dt_bias": "ssm_dt.bias",
    "D": "ssm_d",
    "norm.weight": "ssm_norm.weight",
    "out_proj.weight": "ssm_out.weight",
    "out_proj.bias": "ssm_out.bias",
}
_DELTA = {
    "in_proj_qkvz.weight": "ssm_in.weight",
    "in_proj_qkv.weight": "attn_qkv.weight",
    "in_proj_z.weight": "attn_gate.weight",
    "in_proj_ba.weight": "ssm_ba.weight",
    "in_proj_b.weight": "ssm_beta.weight",
    "in_proj_a.weight": "ssm_alpha.weight",
    **{word: _STATES[word] for word in ("conv1d.weight", "dt_bias", "norm.weight", "out_proj.weight")},
}


def others(c: DecoderConfig, has: Collection[str]) -> dict[str, Other]:
    """By the names that the definition of `c` has for them, of the tensors that the file `has`."""
    found: dict[str, Other] = {}
    for i in range(c.layers):
        layer, mixer = f"blk.{i}", c.layer(i).mixer
        if isinstance(mixer, DeltaRule):
            found |= _of_delta(mixer, c.hidden, layer, has)
        elif isinstance(mixer, ChannelStates | HeadStates):
            found |= _of_states(mixer, layer)
        if c.latent and f"{layer}.attn_k_b.weight" in has:
            found[f"{layer}.attn_kv_b.weight"] = _up(c.latent, c.heads, layer)
        if f"{layer}.ffn_norm" in has:
            found[f"{layer}.ffn_norm.weight"] = Other((f"{layer}.ffn_norm",))
    return found


def beside(c: DecoderConfig, has: Collection[str]) -> set[str]:
    """Tensors that no answer needs: keys of layers that read an earlier one's, and what is there in parts, too."""
    shared = [i for i in range(c.layers) if c.layer(i).keys_of is not None]
    found = {f"blk.{i}.{name}.weight" for i in shared for name in ("attn_k", "attn_v", "attn_k_norm")}
    return found | {f"blk.{i}.attn_kv_b.weight" for i in range(c.layers) if f"blk.{i}.attn_k_b.weight" in has}


def _logarithm(falls: np.ndarray) -> np.ndarray:
    """What the rates -exp(x) are made of; of those that are none, no numbers."""
    with np.errstate(all="ignore"):
        found: np.ndarray = np.log(-falls)
    return found


def _of_states(mixer: ChannelStates | HeadStates, layer: str) -> dict[str, Other]:
    found = {f"{layer}.{STATES}.{name}": Other((f"{layer}.{word}",)) for name, word in _STATES.items()}
    if isinstance(mixer, HeadStates):  # the norm's weight is a row of each group
        groups = (mixer.groups, mixer.width // mixer.groups)
        found[f"{layer}.{STATES}.norm.weight"] = Other((f"{layer}.ssm_norm.weight",), (groups,), np.ravel)
    shape = (mixer.channels, mixer.states) if isinstance(mixer, ChannelStates) else (mixer.heads,)
    return found | {f"{layer}.{STATES}.A_log": Other((f"{layer}.ssm_a",), (shape,), _logarithm)}


def _of_delta(mixer: DeltaRule, hidden: int, layer: str, has: Collection[str]) -> dict[str, Other]:
    """Linear attention.

    Where `beta` and steps are one tensor (Qwen3-Next), each key head's are together. Where they are two (Qwen 3.5),
    heads of values take turns by key heads, which the definition has together.
    """
    found = {f"{layer}.{STATES}.{name}": Other((f"{layer}.{word}",)) for name, word in _DELTA.items()}
    found[f"{layer}.{STATES}.A_log"] = Other((f"{layer}.ssm_a",), ((mixer.heads,),), _logarithm)
    per = mixer.heads // mixer.key_heads
    joined = f"{layer}.ssm_ba.weight"
    if joined in has:
        for part, name in enumerate(("in_proj_b", "in_proj_a")):
            make = _part_of(mixer.key_heads, per, part)
            found[f"{layer}.{STATES}.{name}.weight"] = Other((joined,), ((2 * mixer.heads, hidden),), make)
        return found
    if per == 1:
        return found
    size, keys, values = mixer.head_size, 2 * mixer.keys, mixer.values
    sizes: dict[str, tuple[tuple[int, ...], int, int, int]] = {
        "in_proj_qkv.weight": ((mixer.channels, hidden), 0, keys, size),
        "in_proj_z.weight": ((values, hidden), 0, 0, size),
        "in_proj_b.weight": ((mixer.heads, hidden), 0, 0, 1),
        "in_proj_a.weight": ((mixer.heads, hidden), 0, 0, 1),
        "conv1d.weight": ((mixer.channels, mixer.kernel), 0, keys, size),
        "dt_bias": ((mixer.heads,), 0, 0, 1),
        "out_proj.weight": ((hidden, values), 1, 0, size),
    }
    for name, (shape, axis, first, width) in sizes.items():
        make = _together(mixer.key_heads, per, axis, first, width)
        found[f"{layer}.{STATES}.{name}"] = Other((f"{layer}.{_DELTA[name]}",), (shape,), make)
    order = _together(mixer.key_heads, per, 0, 0, 1)

    def rates(falls: np.ndarray) -> np.ndarray:
        return _logarithm(order(falls))

    return found | {f"{layer}.{STATES}.A_log": Other((f"{layer}.ssm_a",), ((mixer.heads,),), rates)}


def _part_of(key_heads: int, per: int, part: int) -> Callable[[np.ndarray], np.ndarray]:
    """Of a tensor whose rows are both parts of every key head, the rows of one part."""
    return lambda x: x.reshape(key_heads, 2, per, -1)[:, part].reshape(key_heads * per, -1)


def _together(key_heads: int, per: int, axis: int, first: int, size: int) -> Callable[[np.ndarray], np.ndarray]:
    """Heads of values along `axis` behind its `first` rows, `per` of a key head: those of one together again."""

    def together(x: np.ndarray) -> np.ndarray:
        heads = np.arange(key_heads * per).reshape(per, key_heads).T.reshape(-1)
        rows = (first + heads[:, None] * size + np.arange(size)).reshape(-1)
        return np.take(x, np.concatenate([np.arange(first), rows]), axis)

    return together


def _up(latent: Latent, heads: int, layer: str) -> Other:
    """The projections up to keys, which are turned, and to values, of every head one behind the other."""

    def joined(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.concatenate([keys.swapaxes(1, 2), values], 1).reshape(-1, latent.rank)

    shapes = ((heads, latent.rank, latent.plain), (heads, latent.value, latent.rank))
    return Other((f"{layer}.attn_k_b.weight", f"{layer}.attn_v_b.weight"), shapes, joined)
