"""Nets of JAX's libraries by their configuration, random weights: what `framework_nets.py` makes a table of.

Each function gives (model imported at open sizes, operators that it is configured with, shapes to run it at).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Net = tuple[Any, dict[str, int], list[tuple[int, ...]]]
WIDTH, HEADS, LAYERS, ROWS, LONGEST = 64, 4, 3, 97, 128
RANGES = {"b": (1, 8), "s": (1, LONGEST)}
IDS = ("b, s", "int32")
TEXTS = [(1, 1), (2, 7), (5, 33)]  # batch and length
PICTURES = [(1, 3, 32, 32), (3, 3, 32, 32)]
ROWS_OF_NUMBERS = [(1, 1, 6), (2, 9, 6), (4, 50, 6)]


def flax_bert() -> Net:
    counts = {"attention": LAYERS, "ffn": LAYERS, "layer_norm": 2 * LAYERS + 1, "embedding": 2}  # types are all 0
    return _transformers("Bert", {"vocab_size": ROWS, "max_position_embeddings": LONGEST}), counts, TEXTS


def flax_gpt2() -> Net:
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LONGEST, "vocab_size": ROWS}
    counts = {"attention": LAYERS, "ffn": LAYERS, "layer_norm": 2 * LAYERS + 1, "embedding": 2}
    return _transformers("GPT2", sizes), counts, TEXTS


def flax_vit() -> Net:
    counts = {"attention": LAYERS, "ffn": LAYERS, "layer_norm": 2 * LAYERS + 1}
    return _transformers("ViT", {"image_size": 32, "patch_size": 8}), counts, PICTURES


def _transformers(kind: str, sizes: dict[str, int]) -> Any:
    """A Flax model of transformers below 5; later ones have none."""
    import transformers

    import halo_tvm

    usual = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 160}
    config = getattr(transformers, f"{kind}Config")(**(sizes if kind == "GPT2" else usual | sizes))
    net = getattr(transformers, f"Flax{kind}Model")(config, seed=0)
    given, ranges = (("b, 3, 32, 32", "float32"), {"b": (1, 8)}) if kind == "ViT" else (IDS, RANGES)
    return halo_tvm.import_jax(lambda p, x: net(x, params=p, train=False)[0], net.params, given, ranges=ranges)


def nnx_decoder() -> Net:
    """Causal, with RMS norms and a head tied to its table."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    import halo_tvm

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
            self.norms = nnx.List([nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)])
            self.up, self.down = nnx.Linear(WIDTH, 160, rngs=rngs), nnx.Linear(160, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            x = x + self.attention(self.norms[0](x), mask=mask)
            return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))

    class Decoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.tokens, self.positions = nnx.Embed(ROWS, WIDTH, rngs=rngs), nnx.Embed(LONGEST, WIDTH, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
            self.last = nnx.RMSNorm(WIDTH, rngs=rngs)

        def __call__(self, ids: jax.Array) -> jax.Array:
            x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[1]))[None]
            for block in self.blocks:
                x = block(x, nnx.make_causal_mask(ids))
            return self.tokens.attend(self.last(x))

    net = Decoder(nnx.Rngs(0))
    net.eval()
    counts = {"attention": LAYERS, "ffn": LAYERS, "rms_norm": 2 * LAYERS + 1, "embedding": 2}
    return halo_tvm.import_jax(net, None, IDS, ranges=RANGES), counts, TEXTS


def equinox_encoder() -> Net:
    """Of one text, under vmap for a batch."""
    import equinox
    import jax
    import jax.numpy as jnp

    import halo_tvm

    nn, keys = equinox.nn, iter(jax.random.split(jax.random.key(0), 50))

    class Block(equinox.Module):
        attention: nn.MultiheadAttention
        norms: list[nn.LayerNorm]
        up: nn.Linear
        down: nn.Linear

        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(HEADS, WIDTH, use_output_bias=True, key=next(keys))
            self.norms = [nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)]
            self.up, self.down = nn.Linear(WIDTH, 160, key=next(keys)), nn.Linear(160, WIDTH, key=next(keys))

        def __call__(self, x: jax.Array) -> jax.Array:
            x = jax.vmap(self.norms[0])(x + self.attention(x, x, x))
            return jax.vmap(lambda row: self.norms[1](row + self.down(jax.nn.gelu(self.up(row), False))))(x)

    tables = [nn.Embedding(ROWS, WIDTH, key=next(keys)), nn.Embedding(LONGEST, WIDTH, key=next(keys))]
    net = (tables, [Block() for _ in range(LAYERS)])

    def encode(net: tuple, ids: jax.Array) -> jax.Array:
        (tokens, positions), blocks = net
        x = jax.vmap(tokens)(ids) + jax.vmap(positions)(jnp.arange(ids.shape[0]))
        for block in blocks:
            x = block(x)
        return x

    model = halo_tvm.import_jax(
        lambda net, ids: jax.vmap(lambda row: encode(net, row))(ids), net, IDS, ranges=RANGES, name="equinox"
    )
    return model, {"attention": LAYERS, "ffn": LAYERS, "layer_norm": 2 * LAYERS, "embedding": 2}, TEXTS


def nnx_lstm() -> Net:
    from flax import nnx

    import halo_tvm

    layer = nnx.RNN(nnx.OptimizedLSTMCell(6, 20, rngs=nnx.Rngs(0)))
    return halo_tvm.import_jax(layer, None, ("b, s, 6", "float32"), ranges=RANGES), {"lstm": 1}, ROWS_OF_NUMBERS


def linen_gru() -> Net:
    import jax
    import numpy as np
    from flax import linen

    import halo_tvm

    layer = linen.RNN(linen.GRUCell(20))
    variables = layer.init(jax.random.key(0), np.zeros((1, 3, 6), np.float32))
    return halo_tvm.import_jax(layer, variables, ("b, s, 6", "float32"), ranges=RANGES), {"gru": 1}, ROWS_OF_NUMBERS


NETS: dict[str, Callable[[], Net]] = {
    "Flax BERT (transformers)": flax_bert,
    "Flax GPT-2 (transformers)": flax_gpt2,
    "Flax ViT (transformers)": flax_vit,
    "nnx causal decoder": nnx_decoder,
    "Equinox encoder": equinox_encoder,
    "nnx LSTM": nnx_lstm,
    "linen GRU": linen_gru,
}
