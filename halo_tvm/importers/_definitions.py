"""Which built-in definition serves a config.json, what it reads there, and where in the checkpoint its tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..models import FAMILIES, Family
from ..models.inside import PLACES, language_model_of
from ._checkpoint import WHOLE
from .tensor_files import opened, weight_files

_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Definition:
    """`config` is what `family` reads; `places` are starts of tensors' names and what stands there in the files."""

    family: Family[Any]
    config: Mapping[str, object]
    places: tuple[tuple[str, str], ...] = WHOLE

    @property
    def inside(self) -> bool:
        """Whether it is the language model of a model that sees or hears."""
        return self.places != WHOLE


def definition_of(base: Path, config: Mapping[str, object], part: str, *, bare: bool) -> Definition | None:
    """The definition of `part` of the model in `base`, else the one with the head that the checkpoint names.

    Without either it is that of the language model inside, if there is one; `bare`: of the model without a head.
    None where no definition serves the type, or the head.
    """
    kind = config.get("model_type")
    family = _bare(kind) if bare else _with_head(kind, part, config.get("architectures"))
    if family is not None:
        return Definition(family, config)
    inner = None if bare or part else language_model_of(config)
    family = None if inner is None else _with_head(inner["model_type"], "", None)
    if inner is None or family is None:
        return None
    heads = (name for file in map(opened, weight_files(base)) for name in file.shapes if name.endswith(_HEAD))
    tied = next(heads, None) is None  # which the configs around a language model say in several ways
    return Definition(family, {**inner, "tie_word_embeddings": tied}, PLACES)


def parts_of(kind: object) -> list[str]:
    """The parts of a model of this type, each an artifact of its own."""
    return sorted(f.part for f in FAMILIES.values() if kind in f.huggingface_types and f.part)


def _bare(kind: object) -> Family[Any] | None:
    """The definition of a model of this type without a head."""
    return next((f for f in FAMILIES.values() if f.bare and kind in f.huggingface_types), None)


def _with_head(kind: object, part: str, architectures: object) -> Family[Any] | None:
    families = [f for f in FAMILIES.values() if kind in f.huggingface_types]
    if not part:
        alone = sorted((f for f in families if not f.part or f.default_part), key=lambda f: f.default_part)
        return next((f for f in alone if _serves(f, architectures)), None)
    found = next((f for f in families if f.part == part), None)
    if found is None:
        parts = ", ".join(parts_of(kind))
        raise UsageError(
            f"expected a part of a {kind} model among {parts or 'none: it is one artifact'}, found {part!r}: "
            f"{'correct it' if parts else 'give the directory alone'}"
        )
    return found


def _serves(family: Family[Any], architectures: object) -> bool:
    """Whether the outputs of `family` are those of the class that a checkpoint names; of none they are."""
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    return not isinstance(named, str) or named.endswith(family.heads)
