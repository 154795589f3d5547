"""The texts around a language model: its tokenizer, its chat template and the tokens that end an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import UnsupportedModel, UsageError
from ..imported import ImportedModel
from ._byte_pairs import byte_pair_tokenizer
from ._json import read_json
from ._piece_tokenizer import piece_tokenizer
from ._pieces import word_of
from ._sentence_piece import marian_tokenizer

TOKENIZER = "tokenizer.json"
_LARGEST_TOKENIZER = 128 << 20
_LARGEST_TEMPLATE = 1 << 20
_TRANSLATORS = ("mbart", "m2m_100")  # NLLB's are of the latter type
_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Za-z]{2,4}|__[a-z]{2,3}__")  # fr_XX, fra_Latn, __fr__

# Of a decoder of random weights: it goes on with token ids.
NO_TEXTS: Mapping[str, object] = {"end": [], "tokenizer": None, "chat_template": None, "words": {}}


def language_of(
    folder: Path, config: Mapping[str, object], *, answers: bool = False
) -> tuple[dict[str, object], dict[str, Path | bytes]]:
    """What the manifest says about the language model in `folder`, and the files that go into its artifact.

    It `answers` a text with tokens of their own (an encoder-decoder), or goes on with it.
    """
    about = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    tokenizer = folder / TOKENIZER
    files: dict[str, Path | bytes] = {TOKENIZER: tokenizer} if tokenizer.is_file() else {}
    if not files:
        kind = config.get("model_type")
        if kind == "marian":
            made = marian_tokenizer(folder)
        else:
            made = byte_pair_tokenizer(folder, kind, about) or piece_tokenizer(folder, about)
        files = {} if made is None else {TOKENIZER: made}
    elif tokenizer.stat().st_size > _LARGEST_TOKENIZER:
        raise UnsupportedModel(
            f"expected a tokenizer of at most {_LARGEST_TOKENIZER >> 20} MiB, found {tokenizer.stat().st_size} bytes: "
            "not such a file"
        )
    end = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = [] if end is None else end if isinstance(end, list) else [end]
    if any(not isinstance(token, int) or isinstance(token, bool) for token in ends):
        raise UnsupportedModel(f"expected eos_token_id as an integer or a list of them, found {end!r:.80}: correct it")
    return {
        "end": ends,
        **(_of_answers(config, generation) if answers else _of_texts(generation)),
        **({"speech": _of_speech(config, generation)} if config.get("model_type") == "whisper" else {}),
        **({"languages": _languages(tokenizer)} if config.get("model_type") in _TRANSLATORS else {}),
        "tokenizer": TOKENIZER if files else None,
        **_templates(folder, about),
        "words": _words(folder, about),
    }, files


def _of_texts(generation: Mapping[str, object]) -> Mapping[str, object]:
    """Of a decoder: the tokens that it never chooses, where some are named."""
    never = generation.get("suppress_tokens") or []
    return {"never": _tokens("suppress_tokens", never if isinstance(never, list) else [never])} if never else {}


def _of_answers(config: Mapping[str, object], generation: Mapping[str, object]) -> Mapping[str, object]:
    """Of an encoder-decoder: the tokens that every answer begins with, and those that none has."""

    def found(*names: str) -> object:
        given = (where[name] for name in names for where in (generation, config) if where.get(name) is not None)
        return next(given, None)

    start = [found("decoder_start_token_id", "bos_token_id", "pad_token_id"), found("forced_bos_token_id")]
    bad = found("bad_words_ids") or []
    words = bad if isinstance(bad, list) else [bad]
    never = [word[0] for word in words if isinstance(word, list) and len(word) == 1]  # words of several stay possible
    never += suppressed if isinstance(suppressed := found("suppress_tokens"), list) else []
    times = generation.get("no_timestamps_token_id")
    most = config.get("vocab_size")
    if type(times) is int and type(most) is int and 0 <= times < most:  # tokens of times are not words
        never += range(times, most)
    tokens: dict[str, list[object]] = {"start": [token for token in start if token is not None], "never": never}
    return {name: _tokens(f"tokens of a {name}", ids) for name, ids in tokens.items()}


def _tokens(what: str, ids: list[object]) -> list[object]:
    if any(not isinstance(token, int) or isinstance(token, bool) or token < 0 for token in ids):
        raise UnsupportedModel(f"expected {what} as integers, found {ids!r:.80}: correct the config")
    return ids


def _of_speech(config: Mapping[str, object], generation: Mapping[str, object]) -> Mapping[str, object]:
    """The tokens by which a model that hears is asked for words: languages by short names, tasks, words without times.

    Files that name none have them where `forced_decoder_ids` puts them: language, task, no times.
    """
    forced = generation.get("forced_decoder_ids") or config.get("forced_decoder_ids") or []
    pairs = forced if isinstance(forced, list) else []
    places = {p[0]: p[1] for p in pairs if isinstance(p, list) and len(p) == 2 and p[1] is not None}
    languages = {word.strip("<|>"): token for word, token in _named(generation, "lang_to_id").items()}
    tasks = _named(generation, "task_to_id")
    if not languages and len(places) > 2:
        languages, tasks = {"en": places.get(1)}, {"transcribe": places.get(2)}
    plain = generation.get("no_timestamps_token_id", places[max(places)] if places else None)
    first = generation.get("begin_suppress_tokens", config.get("begin_suppress_tokens")) or []
    found = {"languages": languages, "tasks": tasks, "plain": plain, "first_never": first}
    tokens = [*languages.values(), *tasks.values(), *(first if isinstance(first, list) else [first])]
    if any(type(token) is not int or token < 0 for token in [*tokens, *([] if plain is None else [plain])]):
        raise UnsupportedModel(f"expected tokens of speech as integers, found {found!r:.160}: correct the config")
    return found


def _languages(tokenizer: Path) -> Mapping[str, int]:
    """The tokens that say in which language a translator answers, by the names of its tokenizer without underscores."""
    if not tokenizer.is_file():
        return {}
    added = read_json(tokenizer, "a tokenizer", _LARGEST_TOKENIZER).get("added_tokens")
    tokens = [token for token in added if isinstance(token, Mapping)] if isinstance(added, list) else []
    named = {str(token.get("content")): token.get("id") for token in tokens}
    return {word.strip("_"): i for word, i in named.items() if _LANGUAGE.fullmatch(word) and type(i) is int and i >= 0}


def _named(where: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = where.get(key)
    return {str(k): v for k, v in found.items()} if isinstance(found, Mapping) else {}


def with_texts_of(folder: Path, model: ImportedModel) -> ImportedModel:
    """`model` with the tokenizer and chat template in `folder`; tokens that end an answer only where it says some."""
    if model.language is None:
        raise UsageError(
            f"expected a language model beside --tokenizer, found {model.name}, which has no text: leave it out"
        )
    language, files = language_of(folder, {})
    if not files:
        raise UsageError(f"expected {TOKENIZER} in {folder}, found none: give the directory of a tokenizer")
    end = language["end"] or model.language["end"]
    language.pop("never", None)  # which is the model's
    return replace(model, language={**model.language, **language, "end": end}, files=files)


def _optional(file: Path) -> dict[str, object]:
    return read_json(file, f"{file.name} of a Hugging Face model") if file.is_file() else {}


def _words(folder: Path, about: Mapping[str, object]) -> dict[str, str]:
    """The special tokens that a template may name: all of tokenizer_config.json, and those of the model alone.

    Older directories have them in a file of their own, which goes before.
    """
    own = {} if "added_tokens_decoder" in about else _optional(folder / "special_tokens_map.json")
    named: dict[str, object] = {}
    for where in (about, own):
        for more in (where, where.get("extra_special_tokens"), where.get("model_specific_special_tokens")):
            named |= more if isinstance(more, Mapping) else {}  # without names they are a list
    words = {name: word_of(value) for name, value in named.items() if name.endswith("_token")}
    return {name: word for name, word in words.items() if word is not None}


def _templates(folder: Path, about: Mapping[str, object]) -> dict[str, str | None]:
    """The chat template: a file of its own, or in tokenizer_config.json alone or as the one called default.

    That of conversations with tools stands apart where there is one.
    """
    found = about.get("chat_template")
    several = found if isinstance(found, list) else []
    named = {t.get("name"): t.get("template") for t in several if isinstance(t, Mapping)}
    usual = _template(folder / "chat_template.jinja", named.get("default") if several else found)
    tools = _template(folder / "additional_chat_templates" / "tool_use.jinja", named.get("tool_use"))
    return {"chat_template": usual, "tool_template": tools}


def _template(file: Path, written: object) -> str | None:
    """The template in `file`, else the one that is `written`; longer ones count as none."""
    if file.is_file() and file.stat().st_size <= _LARGEST_TEMPLATE:
        return file.read_text(encoding="utf-8")
    return written if isinstance(written, str) and len(written) <= _LARGEST_TEMPLATE else None
