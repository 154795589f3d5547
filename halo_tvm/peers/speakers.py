"""The engines that `--vs` knows beside -p and -n: in which numbers they keep weights, and the file they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UnsupportedModel, UsageError
from ..exporters.gguf import export_gguf
from ..importers.gguf._file import read_gguf
from .sources import check_reference

# Of the same bytes a weight as ours, by the precision of the artifact.
_ALIKE = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "int8": "Q8_0", "int4": "Q4_1"}
_NUMBERS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
LLAMA_CPP = "llama-cpp"
SPEAKERS = (LLAMA_CPP, *(f"{LLAMA_CPP}-{numbers.lower()}" for numbers in _NUMBERS))


@dataclass(frozen=True)
class Speaking:
    """A name of `--vs` ready to start: the module of its worker and the file it reads, or why there is none."""

    name: str
    module: str
    numbers: str
    model: Path | None = None
    failure: str | None = None


def speaker_of(
    name: str, source: Mapping[str, object], precision: str, reference: str | None, folder: Path
) -> Speaking:
    """`name` for an artifact of `source`.

    A GGUF file runs as it is, unless the name has numbers of its own; every other source is written to `folder`.
    """
    asked = name.removeprefix(LLAMA_CPP).removeprefix("-").upper()
    try:
        if source.get("kind") == "gguf":
            file = Path(str(reference))
            if asked:
                raise UsageError(f"expected --vs {LLAMA_CPP} for a GGUF file, found {name}: the file has its numbers")
            return Speaking(name, "llama_cpp", _most_numbers(file), file)
        numbers = asked or _ALIKE[precision]
        model = str(source["name"]) if source.get("kind") == "builtin" else str(reference)
        path = folder / f"{numbers}.gguf"
        if not path.exists():
            seed = int(str(source.get("seed", 0)))
            export_gguf(model, path.with_suffix(".part"), numbers, seed).rename(path)
        return Speaking(name, "llama_cpp", numbers, path)
    except UnsupportedModel as reason:
        return Speaking(name, "llama_cpp", asked or _ALIKE[precision], None, str(reason))


def check_speakers(source: Mapping[str, object], reference: str | None) -> None:
    """`UsageError` unless peers can be given the model of this source."""
    check_reference(source, reference)


def _most_numbers(file: Path) -> str:
    """The number format of most of the bytes."""
    sizes: dict[str, int] = {}
    for tensor in read_gguf(file).tensors.values():
        sizes[tensor.kind.name] = sizes.get(tensor.kind.name, 0) + tensor.size_bytes
    return max(sizes, key=lambda name: sizes[name])
