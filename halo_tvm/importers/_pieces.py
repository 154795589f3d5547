"""What readers of tokenizers make tokenizer.json of, the JSON that the package `tokenizers` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import UnsupportedModel

Json = dict[str, object]
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4  # kinds of tokens
GAP = "\u2581"  # SentencePiece's space
_LONGEST_PIECE = 64  # characters: a longer token is made of no merges, as none of real vocabularies needs them


def whole(added: Sequence[Json], parts: Mapping[str, object], post_processor: Mapping[str, object]) -> Json:
    """tokenizer.json."""
    head = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added)}
    return {**head, **parts, "post_processor": post_processor}


def added(index: int, text: str, *, special: bool) -> Json:
    """A token that no text is cut into, or that is cut out before all others."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, **plain, "special": special}


def apart(tokens: Sequence[str], kinds: np.ndarray) -> dict[int, Json]:
    """Those of `tokens` of the `kinds` int [n] that are not normal, by their numbers."""
    numbers = np.flatnonzero(np.isin(kinds, (UNKNOWN, CONTROL, USER))).tolist()
    return {i: added(i, tokens[i], special=bool(kinds[i] != USER)) for i in numbers}


def word_of(token: object) -> str | None:
    """A token of tokenizer_config.json, which newer files write as an object."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None


def unfit(file: Path, expected: str) -> UnsupportedModel:
    return UnsupportedModel(f"expected {file.name} to be {expected}, found another file: download the model again")


def between(tokens: Sequence[str] | Mapping[int, str], begin: int | None, end: int | None) -> Json:
    """The post-processor that puts tokens, by their numbers, in front of and behind every text."""

    def special(token: int | None) -> list[Json]:
        return [] if token is None else [{"SpecialToken": {"id": tokens[token], "type_id": 0}}]

    single = [*special(begin), {"Sequence": {"id": "A", "type_id": 0}}, *special(end)]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}, *special(end)]
    known = {tokens[t]: {"id": tokens[t], "ids": [t], "tokens": [tokens[t]]} for t in (begin, end) if t is not None}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}


def merging(
    tokens: Sequence[str], scores: np.ndarray, kinds: np.ndarray, *, front: bool, before: Sequence[Json] = ()
) -> Json:
    """SentencePiece's BPE: normalizer, decoder and model of tokens with float scores [n] and the kinds int [n].

    The merges follow from the scores: two tokens merge into a third, the best score first.
    `front`: a text begins with a space. `before` are normalizers in front of those for spaces.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merged: list[tuple[float, int, int, str, str]] = []
    for index in np.flatnonzero(kinds == NORMAL).tolist():
        piece = tokens[index]
        for at in range(1, len(piece) if len(piece) <= _LONGEST_PIECE else 0):
            left, right = piece[:at], piece[at:]
            if left in vocabulary and right in vocabulary:
                merged.append((-float(scores[index]), vocabulary[left], vocabulary[right], left, right))
    prepend = [{"type": "Prepend", "prepend": GAP}] if front else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if front else []
    unknown = np.flatnonzero(kinds == UNKNOWN)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": GAP}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, *prepend, replace]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": GAP}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": bpe(
            vocabulary,
            [(left, right) for *_, left, right in sorted(merged)],
            byte_fallback=True,
            fuse_unk=True,
            unk_token=tokens[int(unknown[0])] if len(unknown) else None,
        ),
    }


def bpe(vocabulary: Mapping[str, object], merges: Sequence[Sequence[str]], **changes: object) -> Json:
    """A model of byte pairs, with what `changes` of the usual options."""
    usual = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    none = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    return {"type": "BPE", **none, **usual, **changes, "vocab": vocabulary, "merges": [list(m) for m in merges]}
