"""The tokenizer of GPT-2's kind (vocab.json, merges.txt) in the JSON that the package `tokenizers` reads.

Older directories, as OPT's, have these two files and no tokenizer.json. Texts are cut at GPT-2's words, their bytes
written as characters, and pairs joined in the order of merges.txt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ._json import read_json
from ._pieces import added, between, bpe, unfit, whole, word_of

FILES = ("vocab.json", "merges.txt")
_LARGEST = 64 << 20
_KINDS = ("gpt2", "opt", "gpt_neo", "gptj", "gpt_bigcode", "codegen")  # that say no class of their tokenizer
_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "CodeGenTokenizerFast")
_WORDS = ("bos_token", "eos_token", "unk_token", "pad_token")


def byte_pair_tokenizer(folder: Path, kind: object, about: Mapping[str, object]) -> bytes | None:
    """tokenizer.json of the model of a `kind` in `folder`, whose tokenizer_config.json says `about`.

    None where its files are not there, or belong to a tokenizer of another class. Raises `UnsupportedModel` for files
    that are no such tokenizer.
    """
    vocabulary, merges = (folder / name for name in FILES)
    named = about.get("tokenizer_class")
    if not (vocabulary.is_file() and merges.is_file()) or not (named in _CLASSES if named else kind in _KINDS):
        return None
    ids = read_json(vocabulary, "vocab.json of byte pairs")
    if not ids or sorted(map(_number, ids.values())) != list(range(len(ids))):
        raise unfit(vocabulary, "ids from 0 on, each once")
    pairs = _pairs(merges)
    lost = next((p for p in pairs if any(part not in ids for part in (*p, "".join(p)))), None)
    if lost is not None:
        raise unfit(merges, f"pairs of tokens that make a token ({' '.join(lost)[:40]!r} does not)")
    more = added_tokens(folder, ids, about, vocabulary.name)
    plain = plain_tokens(about)
    token = word_of(about.get("bos_token"))
    known = {**ids, **more}
    front = {_number(known[token]): token} if about.get("add_bos_token") is True and token in known else {}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    parts = {
        "normalizer": None,
        "pre_tokenizer": {**bytes_, "add_prefix_space": about.get("add_prefix_space") is True},
        "decoder": {**bytes_, "add_prefix_space": True},
        "model": bpe(ids, pairs),
    }
    listed = [added(i, word, special=word not in plain) for word, i in more.items()]
    return json.dumps(whole(listed, parts, between(front, next(iter(front), None), None))).encode()


def _pairs(file: Path) -> list[tuple[str, str]]:
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"more than {_LARGEST} bytes")
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as reason:
        raise unfit(file, f"a text of pairs ({reason})") from reason
    found = []
    for line in lines[1:] if lines[0].startswith("#version") else lines:
        parts = line.rstrip("\r").split(" ")
        if parts == [""]:
            continue
        if len(parts) != 2:
            raise unfit(file, f"two tokens a line, not {line[:40]!r}")
        found.append((parts[0], parts[1]))
    return found


def added_tokens(folder: Path, ids: Mapping[str, object], about: Mapping[str, object], file: str) -> dict[str, int]:
    """Tokens that no text is cut into, and those behind the vocabulary of `file`, in the order of their ids."""
    found: dict[str, int] = {}
    for word in filter(None, (word_of(about.get(name)) for name in _WORDS)):
        if word in ids:
            found[word] = _number(ids[word])
    more = folder / "added_tokens.json"
    listed = read_json(more, "added_tokens.json") if more.is_file() else {}
    decoder = about.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, Mapping) else ():
        content = word_of(token)
        if content is not None and str(number).isdecimal():
            listed = {**listed, content: int(number)}
    for word, number in listed.items():
        if _number(number) < 0 or ids.get(word, number) != number:
            raise unfit(folder / file, f"the id that {word[:40]!r} has as an added token")
        found[word] = _number(number)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def plain_tokens(about: Mapping[str, object]) -> set[str]:
    """The added tokens that tokenizer_config.json calls no special ones: their text is part of an answer's."""
    decoder = about.get("added_tokens_decoder")
    entries = decoder.values() if isinstance(decoder, Mapping) else ()
    plain = {word_of(entry) for entry in entries if isinstance(entry, Mapping) and entry.get("special") is False}
    return {word for word in plain if word is not None} - {word_of(about.get(name)) for name in _WORDS}


def _number(value: object) -> int:
    return value if type(value) is int else -1
