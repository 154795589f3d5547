"""What an artifact's manifest says about the language model in it, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...artifact import Manifest
from ...errors import ArtifactCorrupt, UsageError

NEEDED = ("prefill", "decode")  # of a decoder that goes on from its prompt
READ = ("encode", "cross")  # what reads the text that a decoder answers
ANSWERING = (*READ, "decode")  # of an encoder-decoder
WHOLE = "main"  # gives logits of every position
TOGETHER = "decode_slots"  # takes one token for each of several sequences


@dataclass(frozen=True)
class LanguageSpec:
    """Texts and numbers around the functions of a language model."""

    context: int  # the longest that its positions allow
    vocabulary: int
    end: tuple[int, ...] = ()  # tokens that end an answer
    tokenizer: str | None = None  # a file of the artifact
    chat_template: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)  # special tokens that a template may name: bos_token, ...
    start: tuple[int, ...] = ()  # of an encoder-decoder: the tokens that every answer begins with, which are not said
    never: tuple[int, ...] = ()  # tokens that are not chosen
    source: int | None = None  # of an encoder-decoder: tokens of the text that it reads, at most


def needed(manifest: Manifest) -> tuple[str, ...]:
    """The functions that a language model of this kind speaks with."""
    return ANSWERING if any(name in manifest.functions for name in READ) else NEEDED


def speaks(manifest: Manifest) -> bool:
    """Whether the artifact holds a language model with all functions that it needs."""
    return manifest.language is not None and all(name in manifest.functions for name in needed(manifest))


def spec_of(path: Path, manifest: Manifest) -> LanguageSpec:
    """The language model of the artifact at `path`; `UsageError` where there is none."""
    if not speaks(manifest) or manifest.language is None:
        names = needed(manifest)
        known = manifest.language is not None
        add = "".join(f" --function {name}" for name in names)
        raise UsageError(
            f"{path} was expected to hold a language model with the functions {', '.join(names)}, found "
            f"{', '.join(manifest.functions)}: compile "
            + (f"it with{add}" if known else "the directory of a language model with this version")
        )
    found = manifest.language
    decode = manifest.functions["decode"]
    try:
        words = found.get("words", {})
        spec = LanguageSpec(
            context=decode.ranges["capacity"][1],
            vocabulary=int(decode.outputs[0].shape[-1]),
            end=_tokens(found["end"]),
            tokenizer=_text(found.get("tokenizer")),
            chat_template=_text(found.get("chat_template")),
            words={str(k): str(v) for k, v in words.items()},  # type: ignore[attr-defined]
            start=_tokens(found.get("start", ())),
            never=_tokens(found.get("never", ())),
            source=_longest_source(manifest),
        )
        if spec.source is not None and not spec.start:
            raise ValueError("no token that an answer begins with")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactCorrupt(
            f"{path}: expected a description of a language model, found {error!r}: compile the model again"
        ) from error
    if spec.tokenizer is not None and spec.tokenizer not in manifest.files:
        raise ArtifactCorrupt(
            f"{path}: expected the file {spec.tokenizer!r} among those of the manifest, found none: compile again"
        )
    return spec


def _tokens(value: object) -> tuple[int, ...]:
    return tuple(int(token) for token in value)  # type: ignore[attr-defined]


def _longest_source(manifest: Manifest) -> int | None:
    encode = manifest.functions.get("encode")
    if encode is None:
        return None
    length = encode.inputs[0].shape[1]
    return encode.ranges[length][1] if isinstance(length, str) else int(length)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} where a text belongs")
