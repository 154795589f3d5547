"""The tokenizer of a directory with tokenizer.model of SentencePiece and no tokenizer.json, as older ones of Llama."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ._byte_pairs import added_tokens, plain_tokens
from ._pieces import Json, added, apart, between, merging, whole, word_of
from ._sentence_piece import model_in

FILE = "tokenizer.model"
_BYTE_PAIRS = 2  # the kind of model
# Classes whose ids are those of the file; others move them, or add tokens of their own.
_CLASSES = tuple("Llama CodeLlama Gemma InternLM InternLM2 InternLM3 Yi Baichuan Aquila Persimmon".split())


def piece_tokenizer(folder: Path, about: Mapping[str, object]) -> bytes | None:
    """tokenizer.json of the model in `folder`, whose tokenizer_config.json says `about`.

    None where there is no such file, or it belongs to a tokenizer of another class, or is of no byte pairs. Raises
    `UnsupportedModel` for a file that is no model of SentencePiece.
    """
    file = folder / FILE
    named = about.get("tokenizer_class")
    kinds_of = [f"{name}Tokenizer{end}" for name in _CLASSES for end in ("", "Fast")]
    if not file.is_file() or (named is not None and named not in kinds_of):
        return None
    model = model_in(file)
    tokens = [piece.text for piece in model.pieces]
    if model.kind != _BYTE_PAIRS or model.suffix or len(set(tokens)) != len(tokens) or not tokens:
        return None
    kinds = np.array([piece.kind for piece in model.pieces])
    before: list[Json] = []
    if model.rules:
        before.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.rules).decode()})
    if model.single_spaces:
        replaced = ((r"\A +| +\z", ""), (" {2,}", " "))  # line breaks stay
        before += [{"type": "Replace", "pattern": {"Regex": old}, "content": new} for old, new in replaced]
    ids: dict[str, object] = {token: i for i, token in enumerate(tokens)}
    plain = plain_tokens(about)
    more = {i: added(i, word, special=word not in plain) for word, i in added_tokens(folder, ids, about, FILE).items()}
    named_ends = [word_of(about.get(key, usual)) for key, usual in (("bos_token", "<s>"), ("eos_token", "</s>"))]
    ends = [ids.get(word or "") for word in named_ends]
    asked = (about.get("add_bos_token", True) is True, about.get("add_eos_token") is True)
    begin, end = (token if wanted and type(token) is int else None for token, wanted in zip(ends, asked))
    scores = np.array([piece.score for piece in model.pieces], np.float32)
    parts = merging(tokens, scores, kinds, front=model.front, before=before)
    listed = [token for _, token in sorted({**apart(tokens, kinds), **more}.items())]
    return json.dumps(whole(listed, parts, between(tokens, begin, end))).encode()
