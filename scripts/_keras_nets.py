"""Transformers of Keras as SavedModels, random weights: what `framework_nets.py` makes a table of.

Each function gives (a Keras model of open batch and length, operators that it is configured with).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _jax_nets import HEADS, LAYERS, LONGEST, ROWS, TEXTS, WIDTH, Net


def encoder() -> tuple[Any, dict[str, int]]:
    """Ids of 0 are padding, which nobody attends to."""
    from keras import Model, layers, ops

    ids, x = _embedded()
    shown = layers.Lambda(lambda t: ops.not_equal(t, 0)[:, None, :])(ids)
    for _ in range(LAYERS):
        y = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x, attention_mask=shown)
        x = layers.LayerNormalization()(x + y)
        y = layers.Dense(WIDTH)(layers.Dense(160, activation="gelu")(x))
        x = layers.LayerNormalization()(x + y)
    return Model(ids, x), {"attention": LAYERS, "ffn": LAYERS, "layer_norm": 2 * LAYERS, "embedding": 2}


def causal_decoder() -> tuple[Any, dict[str, int]]:
    from keras import Model, layers

    ids, x = _embedded()
    for _ in range(LAYERS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(WIDTH)(layers.Dense(160, activation="relu")(y))
    x = layers.Dense(ROWS)(layers.LayerNormalization()(x))
    return Model(ids, x), {"attention": LAYERS, "ffn": LAYERS, "layer_norm": 2 * LAYERS + 1, "embedding": 2}


def grouped_query_decoder() -> tuple[Any, dict[str, int]]:
    """Two queries to a key, RMS norms, gated feed-forward networks."""
    from keras import Model, layers

    ids, x = _embedded()
    for _ in range(LAYERS):
        y = layers.RMSNormalization()(x)
        x = x + layers.GroupQueryAttention(WIDTH // HEADS, HEADS, HEADS // 2)(y, y, use_causal_mask=True)
        y = layers.RMSNormalization()(x)
        gate = layers.Dense(160, activation="silu", use_bias=False)(y)
        x = x + layers.Dense(WIDTH, use_bias=False)(gate * layers.Dense(160, use_bias=False)(y))
    x = layers.Dense(ROWS, use_bias=False)(layers.RMSNormalization()(x))
    return Model(ids, x), {"attention": LAYERS, "ffn": LAYERS, "rms_norm": 2 * LAYERS + 1, "embedding": 2}


def _embedded() -> tuple[Any, Any]:
    """Ids, and the sum of their rows and of their positions' rows."""
    import keras
    from keras import layers, ops

    ids = keras.Input((None,), dtype="int32", name="ids")
    places = layers.Lambda(lambda t: ops.arange(ops.shape(t)[1])[None])(ids)
    return ids, layers.Embedding(ROWS, WIDTH)(ids) + layers.Embedding(LONGEST, WIDTH)(places)


def through_tensorflow(build: Callable[[], tuple[Any, dict[str, int]]]) -> Net:
    """The net, written as a SavedModel and read back."""
    import keras

    from halo_tvm.importers import import_model

    keras.utils.set_random_seed(0)
    net, counts = build()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "net"
        net.export(str(saved), format="tf_saved_model", verbose=False)
        return import_model(str(saved), shapes=(f"ids=1..8x1..{LONGEST}",)), counts, TEXTS


NETS: dict[str, Callable[[], tuple[Any, dict[str, int]]]] = {
    "Keras encoder": encoder,
    "Keras causal decoder": causal_decoder,
    "Keras grouped-query decoder": grouped_query_decoder,
}
