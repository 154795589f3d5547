"""The tokenizer of a GGUF file in the JSON that the package `tokenizers` reads.

Byte-level BPE has its merges in the file, and its pre-tokenizer by a name; those of SentencePiece's BPE follow from the
scores of its tokens, but for Gemma 4, which has them in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from .._pieces import GAP, NORMAL, UNKNOWN, Json, apart, between, bpe, merging, whole
from .container import Value


class NoTokenizer(Exception):
    """Why the tokenizer cannot be rebuilt, as a sentence."""


def tokenizer_json(metadata: Mapping[str, Value]) -> str:
    """tokenizer.json; `NoTokenizer` where the file's tokenizer is of another kind or misshapen."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, tuple) or not tokens:
        raise NoTokenizer(f"expected tokenizer.ggml.tokens as texts, found {type(tokens).__name__}")
    if len(set(tokens)) != len(tokens):
        raise NoTokenizer(f"expected tokens of different texts, found {len(tokens) - len(set(tokens))} of them twice")
    kinds = metadata.get("tokenizer.ggml.token_type")
    if kinds is None:
        kinds = np.full(len(tokens), NORMAL)
    if not isinstance(kinds, np.ndarray) or kinds.shape != (len(tokens),) or kinds.dtype.kind not in "iu":
        raise NoTokenizer(f"expected tokenizer.ggml.token_type as {len(tokens)} integers, found others")
    if kind == "gpt2":
        parts = _byte_level(metadata, tokens)
    elif kind == "llama":
        parts = _sentence_piece(metadata, tokens, kinds)
    elif kind == "gemma4":
        parts = _gemma(metadata, tokens, kinds)
    else:
        raise NoTokenizer(f"expected a tokenizer of the kind gpt2 or llama, or gemma4, found {kind!r:.60}")
    listed = list(apart(tokens, kinds).values())
    return json.dumps(whole(listed, parts, between(tokens, *_ends(metadata, tokens, spm=kind != "gpt2"))))


def _ends(metadata: Mapping[str, Value], tokens: Sequence[str], *, spm: bool) -> tuple[int | None, int | None]:
    """The tokens that stand in front of and behind every text."""
    found: list[int | None] = []
    begins = spm or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    for word, usual in (("bos", begins), ("eos", False)):
        token = metadata.get(f"tokenizer.ggml.{word}_token_id")
        known = isinstance(token, int) and not isinstance(token, bool) and 0 <= token < len(tokens)
        found.append(int(token) if known and metadata.get(f"tokenizer.ggml.add_{word}_token", usual) else None)  # type: ignore[arg-type]
    return found[0], found[1]


def _byte_level(metadata: Mapping[str, Value], tokens: Sequence[str]) -> Json:
    usual = _OF_ARCHITECTURES.get(str(metadata.get("general.architecture")), "default")
    name = metadata.get("tokenizer.ggml.pre", usual)
    if not isinstance(name, str) or name not in _PRE_TOKENIZERS:
        raise NoTokenizer(f"expected a pre-tokenizer among {', '.join(sorted(_PRE_TOKENIZERS))}, found {name!r:.60}")
    pre, whole = _PRE_TOKENIZERS[name], name in _WHOLE_WORDS
    return {
        "normalizer": {"type": "NFC"} if name in _COMPOSED else None,
        "pre_tokenizer": pre[0] if len(pre) == 1 else {"type": "Sequence", "pretokenizers": list(pre)},
        "decoder": {**_BYTES, "add_prefix_space": True},
        "model": bpe(*_merges(metadata, tokens), ignore_merges=whole),
    }


def _merges(metadata: Mapping[str, Value], tokens: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Tokens with their numbers, and which two merge into a third."""
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, tuple):
        raise NoTokenizer(f"expected tokenizer.ggml.merges as texts, found {type(merges).__name__}")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    wrong = next((p for p in pairs if len(p) != 2 or any(t not in vocabulary for t in (*p, "".join(p)))), None)
    if wrong is not None:
        raise NoTokenizer(f"expected merges of two tokens into a third, found {' '.join(wrong)!r:.60}")
    return vocabulary, pairs


def _gemma(metadata: Mapping[str, Value], tokens: Sequence[str], kinds: np.ndarray) -> Json:
    """SentencePiece's tokens, without a space in front of a text; bytes stand for what is no token."""
    unknown = np.flatnonzero(kinds == UNKNOWN)
    back: list[Json] = [{"type": "Replace", "pattern": {"String": GAP}, "content": " "}]
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": GAP},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [*back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": bpe(
            *_merges(metadata, tokens),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=tokens[int(unknown[0])] if len(unknown) else None,
        ),
    }


def _sentence_piece(metadata: Mapping[str, Value], tokens: Sequence[str], kinds: np.ndarray) -> Json:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.shape != (len(tokens),) or scores.dtype.kind != "f":
        raise NoTokenizer(f"expected tokenizer.ggml.scores as {len(tokens)} numbers, found others")
    front = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return merging(tokens, scores, kinds, front=front)


# Pre-tokenizers by the names that llama.cpp's converters give them.
_BYTES: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_ALPHABET: Json = {**_BYTES, "use_regex": False}
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_DIGITS: Json = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _words(digits: str) -> tuple[Json, ...]:
    """Contractions, words with one sign in front, numbers of so many `digits`, signs, and spaces."""
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return _split(rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{rest}"), _ALPHABET


_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(short: str, digits: str) -> tuple[Json, ...]:
    """Words that end where capitals follow small letters, with what is cut `short` behind them; else as `_words`."""
    words = rf"[{_UPPER}]*[{_LOWER}]+{short}|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{short}|{digits}"
    return _split(rf"[^\r\n\p{{L}}\p{{N}}]?{words}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"), _ALPHABET


_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK: tuple[Json, ...] = (
    _split(r"\p{N}{1,3}"),
    _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    _split(_SIGNS + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    _ALPHABET,
)
# Letters with a case, then full-width signs; ideographs and their kin.
_FORMER_DEEPSEEK = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_QWEN35 = _SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Hangul, full-width signs, Bopomofo, ideographs and kana, each apart.
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_PHRASES = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_EXAONE = (
    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_PHRASES}"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_JAIS = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}|\s"
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = (
    r"\p{Han}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]*[{_LOWER}{_NOT_HAN}]+{_SHORT}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]+[{_LOWER}{_NOT_HAN}]*{_SHORT}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PLAIN = (
    *("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "gigachat", "jina-es", "jina-de", "jina-v2-es"),
    *("exaone4", "a.x-4.0", "mellum", "modern-bert", "trillion", "granite-docling"),
)
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_LLAMA = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "midm-2.0", "pixtral")
_THREE_DIGITS = (*_LLAMA, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4")
_QWEN = ("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan", "kormo", "solar-open", "grok-2")
_OF_O200K = ("gpt-4o", "llama4", "kanana2", "minimax-m2")
_PRE_TOKENIZERS: dict[str, tuple[Json, ...]] = {
    **dict.fromkeys(_PLAIN, (_BYTES,)),
    **dict.fromkeys(_SINGLE_DIGITS, (_DIGITS, _BYTES)),
    **dict.fromkeys(_THREE_DIGITS, _words(r"\p{N}{1,3}")),
    **dict.fromkeys(_QWEN, _words(r"\p{N}")),
    **dict.fromkeys(_OF_O200K, _cased(f"{_SHORT}?", r"\p{N}{1,3}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK),
    "deepseek-llm": (*map(_split, (r"[\r\n]", *_FORMER_DEEPSEEK, r"\s+$", _IDEOGRAPHS, r"\p{N}")), _ALPHABET),
    "deepseek-coder": (*map(_split, (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")), _ALPHABET),
    "exaone-moe": (_split(_EXAONE), _ALPHABET),
    "jais-2": (_split(_JAIS), _ALPHABET),
    "kimi-k2": (_split(_KIMI), _ALPHABET),
    "qwen35": (_split(_QWEN35), _ALPHABET),
    "youtu": (_split(_YOUTU), *_cased(f"{_SHORT}?", r"\p{N}")),
    "seed-coder": (_split(_SEED), _ALPHABET),
    # What llama.cpp takes where a file says nothing.
    "default": (
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(_GPT2),
        _split(r"\p{N}+"),
        _split("[0-9][0-9][0-9]"),
        _ALPHABET,
    ),
    "tekken": _cased("", r"\p{N}"),
    "bloom": (_split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), _ALPHABET),
    "falcon": (
        {"type": "Punctuation", "behavior": "Contiguous"},
        _BYTES,
        {"type": "Digits", "individual_digits": False},
        _split("[0-9][0-9][0-9]"),
    ),
}
# A word that is a token is not merged to it; and a text begins with a token, unless add_bos_token says otherwise.
_WHOLE_WORDS = (*_LLAMA, "tekken")
_COMPOSED = ("qwen2", "qwen35", "deepseek-r1-qwen", "megrez")
# Of older files, which do not name it, of architectures with one tokenizer.
_OF_ARCHITECTURES = {
    **dict.fromkeys(("gpt2", "gptneox", "mamba"), "gpt-2"),
    **dict.fromkeys(("qwen2", "qwen2moe"), "qwen2"),
    **dict.fromkeys(("starcoder", "starcoder2"), "starcoder"),
    **{name: name for name in ("bloom", "command-r", "falcon", "mpt", "olmo")},
    "deepseek2": "deepseek-llm",
    "phi2": "phi-2",
}
