"""A language model as a GGUF file, which llama.cpp and its kin run: the very same weights for a comparison.

The file has sizes and weights, and no tokenizer: it is run with token ids. Matrices are in one number format, embedding
and head in eight bits where that is one of four; norms, biases and positions stay float32.
References
    tensor names and the order of rotated channels as gguf-py and llama.cpp's converters have them
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..errors import UnsupportedModel, UsageError
from ..imported import ImportedModel
from ..importers import import_model
from ..importers.gguf.architectures import ARCHITECTURES, ROLES
from ..models import FAMILIES, PRESETS
from ..models.decoder import DecoderConfig
from ..params import ParamSource
from ._gguf_file import StoredTensor, Value, write_file
from ._gguf_numbers import BLOCK, FORMATS, NumberFormat

_FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2"}
_MADE = ("rotary.", "zeros.")  # tables that a definition computes


def export_gguf(model: str, path: Path, numbers: str = "F32", seed: int = 0) -> Path:
    """Write `model`, a directory or a built-in name, to `path`. Raises `UnsupportedModel` for what has no such file."""
    imported = import_model(model, seed=seed)
    architecture, config = _architecture(imported, model)
    metadata = _metadata(imported.name, architecture, config, FORMATS[numbers])
    write_file(path, metadata, tuple(_tensors(imported, architecture, config, numbers)))
    return path


def _architecture(imported: ImportedModel, model: str) -> tuple[str, DecoderConfig]:
    """The architecture of the file, and the configuration of the model."""
    if imported.source.get("kind") == "gguf":
        raise UsageError(
            f"expected a directory or a built-in name, found {imported.name}, a GGUF file already: take it"
        )
    family = str(imported.source.get("family") or "")
    if family not in _FAMILIES:
        found = family or f"{imported.name}, which is read as a graph"
        _refuse(f"a directory or built-in name of {', '.join(_FAMILIES)}", found, "export it as ONNX")
    if model in PRESETS:
        config = PRESETS[model][1]
    else:
        words = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        config = FAMILIES[family].from_huggingface(words)  # type: ignore[misc]
    return _FAMILIES[family], config


def _metadata(name: str, architecture: str, c: DecoderConfig, numbers: NumberFormat) -> dict[str, Value]:
    rms = c.norm == "rms"
    own: dict[str, Value] = {
        "block_count": c.layers,
        "context_length": c.positions,
        "embedding_length": c.hidden,
        "feed_forward_length": c.feed_forward,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.key_heads,
        "attention.key_length": c.head_size,
        "attention.value_length": c.head_size,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": float(c.eps),
        "vocab_size": c.vocabulary,
        **_rotation(c),
    }
    return {
        "general.architecture": architecture,
        "general.name": name,
        "general.file_type": numbers.file_type,
        "general.quantization_version": 2,
        **{f"{architecture}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "none",
    }


def _rotation(c: DecoderConfig) -> dict[str, Value]:
    """The base of the frequencies; `UnsupportedModel` where they differ by layer or have none, and for windows."""
    layers = {c.layer(index) for index in range(c.layers)}
    if len(layers) > 1 or any(layer.window is not None and layer.window < c.positions for layer in layers):
        _refuse("layers alike, without windows", f"{len(layers)} kinds of them", "export it as ONNX")
    (layer,) = layers
    if layer.rope is None:
        return {}
    size, found = 2 * len(layer.rope.frequencies), np.array(layer.rope.frequencies)
    base = math.exp(-math.log(found[-1]) * size / (size - 2)) if size > 2 else 1.0
    if not np.allclose(found, base ** (-np.arange(0, size, 2) / size), rtol=1e-4) or layer.rope.factor != 1.0:
        _refuse("frequencies of one base", "scaled ones", "export it as ONNX")
    return {"rope.freq_base": float(base), "rope.dimension_count": size}


def _tensors(imported: ImportedModel, architecture: str, c: DecoderConfig, numbers: str) -> Iterator[StoredTensor]:
    """Every tensor under its name in GGUF; `UnsupportedModel` with those that have none."""
    names = c.names
    left = {name: source for name, source in imported.params.sources.items() if not name.startswith(_MADE)}
    places = {getattr(names, role): (word, False) for role, word in ROLES.items() if role in _WHOLE}
    for i in range(c.layers):
        layer = names.layer.format(i)
        of_layer = [(getattr(names, role), word) for role, word in ROLES.items() if role not in _WHOLE]
        of_layer += [(names.joined, "attn_qkv")]
        places |= {f"{layer}.{name}": (f"blk.{i}.{word}", names.layout == "kn") for name, word in of_layer if name}
    for name, source in list(left.items()):
        stem, _, kind = name.rpartition(".")
        if stem not in places:
            continue
        del left[name]
        word, turned = places[stem]
        if word == "output" and c.tied:
            continue
        heads = {names.query: c.heads, names.key: c.key_heads} if ARCHITECTURES[architecture].interleaved else {}
        own = next((count for part, count in heads.items() if stem.endswith(f".{part}")), 0)
        yield _tensor(f"{word}.{kind}", source, turned, own, _format_of(word, source.shape, turned, c, numbers))
    if left:
        _refuse(
            "tensors that its file has names for", f"{len(left)} others ({', '.join(sorted(left)[:8])})", "report it"
        )


_WHOLE = ("embedding", "positions", "embedding_norm", "norm", "head")  # roles of tensors that belong to no layer


def _format_of(word: str, shape: tuple[int, ...], turned: bool, c: DecoderConfig, numbers: str) -> NumberFormat:
    """That of a matrix whose rows are whole blocks; the head's numbers are not below eight bits."""
    if len(shape) != 2 or word == "position_embd":
        return FORMATS["F32"]
    found = FORMATS[numbers]
    if found.bits < 8 and word in ("output", "token_embd"):
        found = FORMATS["Q8_0"]
    if found.in_blocks and shape[0 if turned else 1] % BLOCK:
        return FORMATS["F16"]
    return found


def _tensor(name: str, source: ParamSource, turned: bool, heads: int, numbers: NumberFormat) -> StoredTensor:
    shape = source.shape[::-1] if turned else source.shape

    def load() -> np.ndarray:
        x = np.ascontiguousarray(source.load().T if turned else source.load(), np.float32)
        if heads:  # channels that turn together become neighbours
            x = np.ascontiguousarray(x.reshape(heads, 2, shape[0] // heads // 2, -1).swapaxes(1, 2)).reshape(shape)
        return numbers.data(x)

    return StoredTensor(name, shape, numbers.code, int(math.prod(shape) * numbers.bits) // 8, load)


def _refuse(expected: str, found: str, remedy: str) -> NoReturn:
    raise UnsupportedModel(f"expected {expected} to write as GGUF, found {found}: {remedy}")
