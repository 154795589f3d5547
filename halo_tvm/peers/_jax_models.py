"""The built-in families in jax.numpy, weights by name. Imported only in the JAX worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

Weights = Mapping[str, jax.Array]
Config = Mapping[str, object]


def _linear(w: Weights, x: jax.Array, name: str, kn: bool = False) -> jax.Array:
    weight = w[f"{name}.weight"]
    return x @ (weight if kn else weight.T) + w[f"{name}.bias"]


def _norm(c: Config, w: Weights, x: jax.Array, name: str) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + c["eps"]) * w[f"{name}.weight"] + w[f"{name}.bias"]


def _activation(c: Config, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x) if c["activation"] == "relu" else jax.nn.gelu(x, approximate=c["activation"] == "gelu_tanh")


def _attend(c: Config, q: jax.Array, k: jax.Array, v: jax.Array, shown: jax.Array) -> jax.Array:
    """[b, s, h * d] each -> [b, s, h * d]"""
    b, s, width = q.shape
    q, k, v = (t.reshape(b, s, c["heads"], -1) for t in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // c["heads"]) ** -0.5
    p = jax.nn.softmax(jnp.where(shown, scores, jnp.finfo(jnp.float32).min), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(b, s, width)


def gpt2(c: Config, w: Weights, ids: jax.Array) -> jax.Array:
    s = ids.shape[1]
    causal = jnp.tril(jnp.ones((s, s), bool))[None, None]
    x = w["wte.weight"][ids] + w["wpe.weight"][:s]
    for i in range(c["layers"]):
        qkv = _linear(w, _norm(c, w, x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn", kn=True)
        x = x + _linear(w, _attend(c, *jnp.split(qkv, 3, axis=-1), causal), f"h.{i}.attn.c_proj", kn=True)
        y = _activation(c, _linear(w, _norm(c, w, x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc", kn=True))
        x = x + _linear(w, y, f"h.{i}.mlp.c_proj", kn=True)
    x = x[:, -1] if c["last_only"] else x
    return _norm(c, w, x, "ln_f") @ w["wte.weight"].T


def bert(c: Config, w: Weights, ids: jax.Array, mask: jax.Array, segments: jax.Array) -> jax.Array:
    table = "embeddings.{}_embeddings.weight"
    x = w[table.format("word")][ids] + w[table.format("position")][: ids.shape[1]]
    x = _norm(c, w, x + w[table.format("token_type")][segments], "embeddings.LayerNorm")
    shown = (mask != 0)[:, None, None, :]
    for i in range(c["layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = (_linear(w, x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        y = _linear(w, _attend(c, q, k, v, shown), f"{layer}.attention.output.dense")
        x = _norm(c, w, x + y, f"{layer}.attention.output.LayerNorm")
        y = _linear(w, _activation(c, _linear(w, x, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = _norm(c, w, x + y, f"{layer}.output.LayerNorm")
    return x


def mlp(c: Config, w: Weights, x: jax.Array) -> jax.Array:
    for i in range(c["layers"]):
        x = jax.nn.relu(_linear(w, x, f"layers.{i}"))
    return x


FAMILIES: dict[str, Callable[..., jax.Array]] = {"gpt2": gpt2, "bert": bert, "mlp": mlp}
