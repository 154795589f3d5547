"""A GGUF file, of one shard or several -> a built-in definition with its weights, its tokenizer and chat template.

Weights stay in the file until the artifact is written: every tensor is a lazy `ParamSource` that turns the file's
integers into float32.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from ...errors import UnsupportedModel, UsageError
from ...imported import ImportedModel
from ...models.decoder import DecoderConfig
from ...params import ParamSource
from .._digest import sha256_of
from .._language import TOKENIZER
from ._codebooks import books
from ._others import Other, beside, others
from ._tokenizer import NoTokenizer, tokenizer_json
from ._types import TYPES
from .architectures import architecture_of
from .container import Gguf, Value, floats, read_gguf

_SHOWN = 8  # tensor names in one message
_DERIVED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # tables are made of them
_WORDS = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
_LARGEST_TEMPLATE = 1 << 20
# Tokens that end an answer by their text, as llama.cpp has it, whatever the metadata says.
_END_TEXTS = frozenset(
    """
    <|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <|eom_id|> <EOT> _<EOT>
    <end_of_utterance> <|return|> <|call|> <|flush|> <|calls|>
    """.split()
)
_CALLS = frozenset(["<|call|>", "<|calls|>"])


def import_gguf(path: Path) -> ImportedModel:
    """Read the model in `path`; `UnsupportedModel` for a damaged file, and where no definition serves it."""
    if not path.is_file():
        raise UsageError(f"expected a GGUF file, found no file {str(path)!r}: check the path")
    file = read_gguf(path)
    _check_types(path, file)
    family, config = architecture_of(file)
    weights = GgufWeights(path, file, config)
    source: dict[str, object] = {"kind": "gguf", "name": path.name, "sha256": _fingerprint(file)}
    source |= {"shards": len(file.files)} if len(file.files) > 1 else {}
    imported = family.build(path.stem, config, weights, source)
    weights.check(str(file.metadata["general.architecture"]))
    language, texts, reason = _language(file.metadata, config.vocabulary)
    report = {**imported.report, **({"tokenizer": reason} if reason else {})}
    return replace(imported, language=language, files=texts, report=report)


def _check_types(path: Path, file: Gguf) -> None:
    """`UnsupportedModel` with all number formats that cannot be read; `MissingPackage` where a package would do it."""
    others = Counter(t.kind.name for t in file.tensors.values() if t.kind.floats is None)
    if others:
        known = ", ".join(kind.name for kind in TYPES.values() if kind.floats)
        found = ", ".join(f"{count} of {kind}" for kind, count in sorted(others.items()))
        raise UnsupportedModel(
            f"expected tensors of {known} in {path.name}, found {found}: give the model in one of those formats"
        )
    if any(t.kind.books for t in file.tensors.values()):
        books()


class GgufWeights:
    """The tensors of a file by the names that the definition of a configuration has, made float32 when asked for."""

    def __init__(self, path: Path, file: Gguf, config: DecoderConfig) -> None:
        self.path = path
        self.file = file
        self._layers = config.layers
        self._others = others(config, file.tensors)
        self._read: set[str] = set(beside(config, file.tensors))
        self._missing: list[str] = []

    def has(self, name: str) -> bool:
        return all(stored in self.file.tensors for stored in self._other(name).names)

    def _other(self, name: str) -> Other:
        return self._others.get(name, Other((name,)))

    def source(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> ParamSource:
        """The tensor `name`; `scale` and `offset` concern random weights only."""
        other, tensors = self._other(name), self.file.tensors
        missing = [stored for stored in other.names if stored not in tensors]
        if missing:
            self._missing += missing
            return ParamSource(shape, "float32", lambda: np.zeros(shape, np.float32))  # `check` refuses the model
        self._read.update(other.names)
        for stored, expected in zip(other.names, other.shapes or (shape,)):
            if _without_ones(tensors[stored].shape) != _without_ones(expected):  # which converters leave out, or add
                self._refuse(stored, expected)
        if other.make is None:
            (stored,) = other.names
            grid = tensors[stored].kind.grid if len(shape) == 2 else None  # of experts the integers are made anew
            factor = self._scale(stored)

            def numbers() -> np.ndarray:
                found = floats(self.file, stored).reshape(shape)
                return found if factor == 1 else found * factor

            return ParamSource(shape, "float32", numbers, grid)
        make, shapes = other.make, other.shapes

        def made() -> np.ndarray:
            parts = (floats(self.file, stored).reshape(size) for stored, size in zip(other.names, shapes))
            return np.ascontiguousarray(make(*parts)).reshape(shape)

        return ParamSource(shape, "float32", made)

    def _scale(self, name: str) -> np.float32:
        """What the numbers of a weight are multiplied by, where that is a tensor of its own: BitNet's, NVFP4's."""
        stem, kind = name.rpartition(".")[::2]
        scale = self.file.tensors.get(f"{stem}.scale")
        if kind != "weight" or scale is None or _without_ones(scale.shape):
            return np.float32(1)
        self._read.add(f"{stem}.scale")
        return np.float32(floats(self.file, f"{stem}.scale").reshape(-1)[0])

    def _refuse(self, name: str, expected: tuple[int, ...]) -> NoReturn:
        raise UnsupportedModel(
            f"expected tensor {name!r} of shape {list(expected)}, found {list(self.file.tensors[name].shape)} in "
            f"{self.path.name}: its metadata and its tensors do not belong together"
        )

    def check(self, architecture: str) -> None:
        """`UnsupportedModel` with all tensors that are missing or unknown; blocks behind all layers guess further."""
        blocks = self.file.metadata.get(f"{architecture}.block_count")
        behind = tuple(f"blk.{i}." for i in range(self._layers, blocks)) if isinstance(blocks, int) else ()
        known = {*self._read, *_DERIVED}
        unknown = [name for name in self.file.tensors if name not in known and not name.startswith(behind)]
        if self._missing or unknown:
            found = " and ".join(
                f"{len(names)} {what} ({', '.join(sorted(names)[:_SHOWN])})"
                for what, names in (("missing", self._missing), ("unknown", unknown))
                if names
            )
            raise UnsupportedModel(
                f"expected the tensors of a {architecture} model in {self.path.name}, found {found} among "
                f"{len(self.file.tensors)}: the file is incomplete, or a variant without definition"
            )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)


def _fingerprint(file: Gguf) -> str:
    """SHA-256 of the file; of several shards, over the digests of all."""
    digests = [sha256_of(path) for path in file.files]
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def _language(metadata: Mapping[str, Value], vocabulary: int) -> tuple[dict[str, object], dict[str, bytes], str | None]:
    """What the manifest says about the language model, the tokenizer's file, and why there is none."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    words = {}
    for key, word in _WORDS.items():
        index = _token(metadata, key, vocabulary)
        if index is not None and isinstance(tokens, tuple) and index < len(tokens):
            words[word] = tokens[index]
    template = metadata.get("tokenizer.chat_template")
    usable = isinstance(template, str) and len(template) <= _LARGEST_TEMPLATE
    language: dict[str, object] = {
        "end": [end for end in _ends(metadata) if end < vocabulary],
        "tokenizer": TOKENIZER,
        "chat_template": template if usable else None,
        "words": words,
    }
    try:
        return language, {TOKENIZER: tokenizer_json(metadata).encode()}, None
    except NoTokenizer as reason:
        return {**language, "tokenizer": None}, {}, f"{reason}: give --tokenizer DIR"


def _ends(metadata: Mapping[str, Value]) -> list[int]:
    """Tokens that end an answer: of the text, of a turn, of a message; and those that are known by their text."""
    named = (_token(metadata, word, 1 << 31) for word in ("eos", "eot", "eom"))
    texts = metadata.get("tokenizer.ggml.tokens")
    known = {text: token for token, text in enumerate(texts) if text in _END_TEXTS} if isinstance(texts, tuple) else {}
    found = dict.fromkeys([*(token for token in named if token is not None), *known.values()])
    if "<|end|>" in known and _has_parts(known):
        del found[known["<|end|>"]]
    return list(found)


def _has_parts(known: Collection[str]) -> bool:
    """Whether <|end|> stands between the parts of one answer, as gpt-oss and Solar Open have it."""
    return {"<|return|>", "<|call|>"} <= set(known) or ("<|flush|>" in known and not _CALLS.isdisjoint(known))


def _token(metadata: Mapping[str, Value], word: str, vocabulary: int) -> int | None:
    token = metadata.get(f"tokenizer.ggml.{word}_token_id")
    known = isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocabulary
    return token if known else None  # type: ignore[return-value]
