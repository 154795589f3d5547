"""The tokenizer of a Marian translator (source.spm, vocab.json) in the JSON that the package `tokenizers` reads.

SentencePiece's model is a protocol buffer with a piece and its score in each of its first fields; vocab.json has the
ids of these pieces and of those of the target's model, which no text is cut into.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ._json import read_json
from ._pieces import GAP, NORMAL, added, unfit, whole

FILES = ("source.spm", "vocab.json")
_LARGEST = 64 << 20
_UNIGRAM = 1
_FOREIGN = -1000.0  # the score of a piece that the source's model has not: worse than any row of its own
_LANGUAGE = re.compile(r">>.+<<")  # what a text for a model of several target languages begins with


@dataclass(frozen=True)
class Piece:
    """A token, its score and its kind (`_pieces`)."""

    text: str
    score: float
    kind: int


@dataclass
class PieceModel:
    """A model of SentencePiece."""

    pieces: list[Piece] = field(default_factory=list)
    kind: int = _UNIGRAM
    rules: bytes = b""  # what characters become, as SentencePiece stores it
    front: bool = True  # a text begins with a space
    single_spaces: bool = True  # several are one, and none are at the ends
    suffix: bool = False  # spaces belong to the words in front of them

    @property
    def scores(self) -> dict[str, float]:
        """Of normal pieces."""
        return {piece.text: piece.score for piece in self.pieces if piece.kind == NORMAL}


def marian_tokenizer(folder: Path) -> bytes | None:
    """tokenizer.json of the model in `folder`; None where its files are not there, or each side has words of its own.

    Raises `UnsupportedModel` for files that are no such tokenizer.
    """
    if any(not (folder / name).is_file() for name in FILES) or (folder / "target_vocab.json").is_file():
        return None
    source, vocabulary = (folder / name for name in FILES)
    ids = read_json(vocabulary, "vocab.json of a Marian model")
    words = sorted(ids, key=lambda word: ids[word] if type(ids[word]) is int else -1)  # type: ignore[arg-type, return-value]
    if not words or [ids[word] for word in words] != list(range(len(words))):
        raise unfit(vocabulary, "ids from 0 on, each once")
    model = model_in(source)
    if model.kind != _UNIGRAM or not model.scores:
        raise unfit(source, "a unigram model")
    special = [word for word in ("</s>", "<unk>", "<pad>") if word in ids]
    apart = [(i, word) for i, word in enumerate(words) if word in special or _LANGUAGE.fullmatch(word)]
    end = [{"SpecialToken": {"id": "</s>", "type_id": 0}}] if "</s>" in ids else []
    text = {"Sequence": {"id": "A", "type_id": 0}}
    space = {"type": "Metaspace", "replacement": GAP, "prepend_scheme": "always", "split": True}
    rules = base64.b64encode(model.rules).decode()
    parts = {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *([{"type": "Precompiled", "precompiled_charsmap": rules}] if rules else []),
                {"type": "Strip", "strip_left": True, "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ],
        },
        "pre_tokenizer": space,
        "decoder": space,
        "model": {
            "type": "Unigram",
            "unk_id": ids.get("<unk>"),
            "vocab": [[w, 0.0 if w in special else model.scores.get(w, _FOREIGN)] for w in words],
            "byte_fallback": False,
        },
    }
    post_processor = {
        "type": "TemplateProcessing",
        "single": [text, *end],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}, *end],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [ids["</s>"]], "tokens": ["</s>"]}} if end else {},
    }
    listed = [added(i, word, special=word in special) for i, word in apart]
    return json.dumps(whole(listed, parts, post_processor)).encode()


def model_in(file: Path) -> PieceModel:
    """The model in `file`; `UnsupportedModel` for another file."""
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"more than {_LARGEST} bytes")
        return read_model(file.read_bytes())
    except (ValueError, IndexError, struct.error) as reason:
        raise unfit(file, f"a model of SentencePiece ({reason})") from reason


def read_model(raw: bytes) -> PieceModel:
    """The model in the bytes of a file; `ValueError`, `IndexError` or `struct.error` for other bytes."""
    model = PieceModel()
    for number, value in _fields(raw):
        if number not in (1, 2, 3) or not isinstance(value, bytes):
            continue
        found = dict(_fields(value))
        if number == 1:
            text, score, kind = found.get(1), found.get(2, b"\0\0\0\0"), found.get(3, NORMAL)
            if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
                raise ValueError("a piece without text, score and kind")
            model.pieces.append(Piece(text.decode("utf-8"), float(struct.unpack("<f", score)[0]), kind))
        elif number == 2:
            kind = found.get(3, _UNIGRAM)
            model.kind = kind if isinstance(kind, int) else 0
            model.suffix = bool(found.get(24, 0))
        else:
            rules = found.get(2, b"")
            model.rules = rules if isinstance(rules, bytes) else b""
            model.front, model.single_spaces = bool(found.get(3, 1)), bool(found.get(4, 1))
    return model


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of protocol buffers: numbers, and integers or bytes."""
    at = 0
    while at < len(raw):
        tag, at = _integer(raw, at)
        kind = tag & 7
        if kind == 0:
            value, at = _integer(raw, at)
            yield tag >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a field of the kind {kind}")
        size, at = _integer(raw, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(raw):
            raise ValueError("a field that leaves the file")
        yield tag >> 3, raw[at : at + size]
        at += size


def _integer(raw: bytes, at: int) -> tuple[int, int]:
    """A number in pieces of seven bits, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("an integer of more than ten bytes")
