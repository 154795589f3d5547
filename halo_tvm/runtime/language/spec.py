"""What an artifact's manifest says about the language model in it, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...artifact import FunctionSpec, Manifest
from ...errors import ArtifactCorrupt, UnknownName, UsageError

NEEDED = ("prefill", "decode")  # of a decoder that goes on from its prompt
READ = ("encode", "cross")  # what reads the text that a decoder answers
ANSWERING = (*READ, "decode")  # of an encoder-decoder
WHOLE = "main"  # gives logits of every position
MASK = "attention_mask"
TOGETHER = "decode_slots"  # takes one token for each of several sequences


@dataclass(frozen=True)
class Speech:
    """The tokens by which a model that hears is asked for words."""

    languages: Mapping[str, int] = field(default_factory=dict)  # "en" -> its token; empty: it knows one alone
    tasks: Mapping[str, int] = field(default_factory=dict)  # "transcribe", "translate"
    plain: int | None = None  # asks for words without times
    first_never: tuple[int, ...] = ()  # tokens that no answer begins with

    def asked(self, start: Sequence[int], language: int | None, translate: bool) -> tuple[int, ...]:
        """The tokens in front of an answer in the language of that token; `UsageError` where it cannot be asked."""
        task = self.tasks.get("translate" if translate else "transcribe")
        if translate and task is None:
            raise UsageError("expected a model that translates, found one that writes down alone: leave that out")
        words = [language, task] if self.languages else []
        return (*start, *(token for token in (*words, self.plain) if token is not None))

    def language(self, name: str) -> int:
        """The token of a language by its short name."""
        if name not in self.languages:
            known = ", ".join(sorted(self.languages)) or "none: the model knows one alone"
            raise UsageError(f"expected a language among {known}, found {name!r}: correct it, or leave it out")
        return self.languages[name]


@dataclass(frozen=True)
class LanguageSpec:
    """Texts and numbers around the functions of a language model."""

    context: int  # the longest that its positions allow
    vocabulary: int
    end: tuple[int, ...] = ()  # tokens that end an answer
    tokenizer: str | None = None  # a file of the artifact
    chat_template: str | None = None
    tool_template: str | None = None  # of conversations with tools, where that is another
    words: Mapping[str, str] = field(default_factory=dict)  # special tokens that a template may name: bos_token, ...
    start: tuple[int, ...] = ()  # of an encoder-decoder: the tokens that every answer begins with, which are not said
    never: tuple[int, ...] = ()  # tokens that are not chosen
    answers: bool = False  # an encoder-decoder: its caches hold the answer alone
    speech: Speech | None = None  # of one that hears
    languages: Mapping[str, int] = field(default_factory=dict)  # of a translator, e.g. "fra_Latn" -> its token

    def start_in(self, language: str | None) -> tuple[int, ...]:
        """What an answer in that language begins with; None: as the model's files say. `UsageError` for an unknown one.

        The token of the language stands alone where the files begin with one (mBART), else behind their first token.
        """
        if language is None:
            return self.start
        if not self.languages:
            raise UsageError(
                f"expected a model that hears, or translates into several languages, found the language {language!r} "
                "for another: leave it out"
            )
        if language not in self.languages:
            raise UnknownName("language", language, self.languages)
        token = self.languages[language]
        return (token,) if self.start[0] in self.languages.values() else (self.start[0], token)


def needed(manifest: Manifest) -> tuple[str, ...]:
    """The functions that a language model of this kind speaks with."""
    if recomputes(manifest):
        return (WHOLE,)
    return ANSWERING if any(name in manifest.functions for name in READ) else NEEDED


def recomputes(manifest: Manifest) -> bool:
    """Whether it is a language model without caches, whose `main` reads the whole text for every token."""
    return bool((manifest.language or {}).get("recomputes"))


def speaks(manifest: Manifest) -> bool:
    """Whether the artifact holds a language model with all functions that it needs."""
    return manifest.language is not None and all(name in manifest.functions for name in needed(manifest))


def has_caches(manifest: Manifest) -> bool:
    """Whether it speaks, and keeps what it has read."""
    return speaks(manifest) and not recomputes(manifest)


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
    step = manifest.functions[needed(manifest)[-1]]
    try:
        words = found.get("words", {})
        vocabulary = int(step.outputs[0].shape[-1])
        spec = LanguageSpec(
            context=longest_of(step) if recomputes(manifest) else _context(step),
            vocabulary=vocabulary,
            end=_tokens(found["end"]),
            tokenizer=_text(found.get("tokenizer")),
            chat_template=_text(found.get("chat_template")),
            tool_template=_text(found.get("tool_template")),
            words={str(k): str(v) for k, v in words.items()},  # type: ignore[attr-defined]
            start=_tokens(found.get("start", ())),
            never=_tokens(found.get("never", ()), vocabulary),
            answers="encode" in manifest.functions,
            speech=_speech(found.get("speech"), vocabulary),
            languages={str(k): int(v) for k, v in found.get("languages", {}).items() if v < vocabulary},  # type: ignore[attr-defined]
        )
        if spec.answers and not spec.start:
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


def _context(decode: FunctionSpec) -> int:
    """The most positions: of its caches or, where it has none by position, those that a length may count."""
    if "capacity" in decode.ranges:
        return decode.ranges["capacity"][1]
    lengths = next(tensor for tensor in decode.inputs if tensor.name == "lengths")
    if lengths.values is None:
        raise ValueError("lengths without a bound")
    return lengths.values[1] + 1


def longest_of(function: FunctionSpec) -> int:
    """The tokens of the longest text that it takes."""
    length = function.inputs[0].shape[1]
    return function.ranges[length][1] if isinstance(length, str) else int(length)


def _tokens(value: object, vocabulary: int = 1 << 62) -> tuple[int, ...]:
    """Those that the model has: configs name others, too, among those that are never chosen."""
    return tuple(int(token) for token in value if token < vocabulary)  # type: ignore[attr-defined]


def _speech(found: object, vocabulary: int) -> Speech | None:
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise TypeError(f"{found!r:.80} where an object belongs")
    languages, tasks = (
        {str(k): int(v) for k, v in found[key].items() if v < vocabulary} for key in ("languages", "tasks")
    )
    plain = found["plain"]
    never = _tokens(found["first_never"], vocabulary)
    return Speech(languages, tasks, None if plain is None else int(plain), never)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} where a text belongs")
