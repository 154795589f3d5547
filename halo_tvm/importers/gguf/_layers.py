"""How many layers a file's model has, and which of them slide, as its metadata says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...models.decoder import DecoderConfig
from .container import Value

_GUESSING = "nextn_predict_layers"
_WINDOW = "attention.sliding_window"
_PATTERN = "attention.sliding_window_pattern"
_MOST_LAYERS = 1 << 10
_MOST_GUESSING = 16  # layers
WITHOUT_WINDOWS = ("qwen2", "qwen3")  # model types whose windows llama.cpp does not compute either


def guessing_layers(own: Mapping[str, Value]) -> int:
    """Blocks behind the last layer that guess further tokens: `block_count` counts them, no answer needs them."""
    count, blocks = own.get(_GUESSING, 0), own.get("block_count", 0)
    if isinstance(count, int) and isinstance(blocks, int) and 0 <= count < min(blocks, _MOST_GUESSING + 1):
        return count
    return 0


def has_windows(own: Mapping[str, Value]) -> bool:
    """Whether some layers slide; a window of 0 is none, which converters of Phi-4 write."""
    return bool(np.any(np.asarray(own.get(_WINDOW, 0)) != 0))


def layer_types(own: Mapping[str, Value], layers: object) -> list[str] | None:
    """What each layer is, in the words of config.json; None: nothing says it.

    A number n means that all but every n-th layer slide.
    """
    said, slides = own.get(_PATTERN), np.array([])
    if isinstance(said, np.ndarray | tuple):
        slides = np.asarray(said)
    elif isinstance(said, int) and isinstance(layers, int) and 0 < layers <= _MOST_LAYERS:
        slides = np.array([said == 0 or (i + 1) % said != 0 for i in range(layers)])
    if not len(slides):
        return None
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def unused_windows(own: Mapping[str, Value], kind: str, c: DecoderConfig) -> str | None:
    """The window that `own` has and the definition of model type `kind` does not compute, as a text; None: it does.

    A definition with windows reads which layers slide; a window as long as the context changes nothing.
    """
    if (
        kind.startswith(WITHOUT_WINDOWS)
        or not has_windows(own)
        or any(c.layer(i).window is not None for i in range(c.layers))
    ):
        return None
    window, types = own[_WINDOW], layer_types(own, c.layers)
    nothing = types is not None and "sliding_attention" not in types[: c.layers]
    return None if nothing or (isinstance(window, int) and window >= c.positions) else f"{_WINDOW} {window!r:.60}"
