"""The engines that `--vs` knows beside -p and -n: in which numbers they keep weights, and the file they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UnsupportedModel, UsageError


@dataclass(frozen=True)
class _Engine:
    """The module of the worker, the numbers that it has, and which of them stand beside our precisions."""

    module: str
    numbers: tuple[str, ...]
    alike: Mapping[str, str]
    reads_gguf: bool = False  # else a folder of onnxruntime-genai's


_ENGINES = {
    "llama-cpp": _Engine(
        "llama_cpp",
        ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"),
        {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "int8": "Q8_0", "int4": "Q4_1"},  # of as many bits a weight
        reads_gguf=True,
    ),
    "onnxruntime-genai": _Engine(
        "onnxruntime_genai",
        ("F32", "Q8_0", "Q4_0"),
        {"fp32": "F32", "bf16": "F32", "fp16": "F32", "int8": "Q8_0", "int4": "Q4_0"},
    ),
}
SPEAKERS = tuple(
    f"{engine}{numbers and '-'}{numbers.lower()}" for engine in _ENGINES for numbers in ("", *_ENGINES[engine].numbers)
)


@dataclass(frozen=True)
class Speaking:
    """A name of `--vs` ready to start: the module of its worker and what it reads, or why there is none."""

    name: str
    module: str
    numbers: str
    model: Path | None = None
    failure: str | None = None


def speaker_of(
    name: str, source: Mapping[str, object], precision: str, reference: str | None, folder: Path
) -> Speaking:
    """`name` for an artifact of `source`.

    llama.cpp runs a GGUF file as it is, unless the name has numbers of its own; every other source is written to
    `folder`.
    """
    family = next(known for known in _ENGINES if name.startswith(known))
    engine, asked = _ENGINES[family], name.removeprefix(family).removeprefix("-").upper()
    numbers = asked or engine.alike[precision]
    try:
        if source.get("kind") == "gguf":
            file = Path(str(reference))
            if asked:
                raise UsageError(f"expected --vs {family} for a GGUF file, found {name}: the file has its numbers")
            if not engine.reads_gguf:
                raise UnsupportedModel(f"expected a directory or a built-in model for {family}, found a GGUF file")
            return Speaking(name, engine.module, _most_numbers(file), file)
        model = str(source["name"]) if source.get("kind") == "builtin" else str(reference)
        path = folder / f"{numbers}{'.gguf' if engine.reads_gguf else '-' + family}"
        if not path.exists():
            from ..exporters.cached import export_for_genai  # with TVM, which a host that times ours alone may lack
            from ..exporters.gguf import export_gguf

            write, seed = export_gguf if engine.reads_gguf else export_for_genai, int(str(source.get("seed", 0)))
            write(model, path.with_suffix(".part"), numbers, seed).rename(path)
        return Speaking(name, engine.module, numbers, path)
    except UnsupportedModel as reason:
        return Speaking(name, engine.module, numbers, None, str(reason))


def _most_numbers(file: Path) -> str:
    """The number format of most of the bytes."""
    from ..importers.gguf.container import read_gguf

    sizes: dict[str, int] = {}
    for tensor in read_gguf(file).tensors.values():
        sizes[tensor.kind.name] = sizes.get(tensor.kind.name, 0) + tensor.size_bytes
    return max(sizes, key=lambda name: sizes[name])
