"""What an artifact's manifest says about the language model in it, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...artifact import Manifest
from ...errors import ArtifactCorrupt, UsageError

NEEDED = ("prefill", "decode")
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


def spec_of(path: Path, manifest: Manifest) -> LanguageSpec:
    """The language model of the artifact at `path`; `UsageError` where there is none."""
    missing = [name for name in NEEDED if name not in manifest.functions]
    if missing or manifest.language is None:
        raise UsageError(
            f"{path} was expected to hold a language model with the functions {' and '.join(NEEDED)}, found "
            f"{', '.join(manifest.functions)}: compile the directory of a language model with this version"
        )
    found = manifest.language
    decode = manifest.functions["decode"]
    try:
        words = found.get("words", {})
        spec = LanguageSpec(
            context=decode.ranges["capacity"][1],
            vocabulary=int(decode.outputs[0].shape[-1]),
            end=tuple(int(token) for token in found["end"]),  # type: ignore[attr-defined]
            tokenizer=_text(found.get("tokenizer")),
            chat_template=_text(found.get("chat_template")),
            words={str(k): str(v) for k, v in words.items()},  # type: ignore[attr-defined]
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactCorrupt(
            f"{path}: expected a description of a language model, found {error!r}: compile the model again"
        ) from error
    if spec.tokenizer is not None and spec.tokenizer not in manifest.files:
        raise ArtifactCorrupt(
            f"{path}: expected the file {spec.tokenizer!r} among those of the manifest, found none: compile again"
        )
    return spec


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} where a text belongs")
