"""A model file, directory or built-in name -> `ImportedModel`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import UnsupportedModel, UsageError
from ..imported import ImportedModel, Spelled
from ..model_names import STABLEHLO, SUFFIXES, TORCHSCRIPT, is_hub_name, refuse_unspeakable, unknown
from ._language import NO_TEXTS, with_texts_of
from .shapes import apply_shapes, load_examples, parse_input, parse_shape

# Files that are looked for here; importers of others say themselves that there is none.
_FILES = {
    ".onnx": "an ONNX file",
    ".tflite": "a TFLite file",
    **dict.fromkeys(STABLEHLO, "a file of jax.export or StableHLO"),
}


def import_model(
    model: str,
    *,
    seed: int = 0,
    shapes: tuple[str, ...] = (),
    inputs: str | None = None,
    trust: bool = False,
    tokenizer: str | None = None,
    spelled: Spelled | None = None,
) -> ImportedModel:
    """Read `model`: a built-in name, the name of a model of the hub, an ONNX, GGUF, torch.export (.pt2), TorchScript,
    TFLite, Keras, jax.export or StableHLO file, a SavedModel, or a directory with config.json and weights.
    `DIRECTORY:PART` is one part of a model that becomes several artifacts, `FILE.tflite:SIGNATURE` and
    `SAVED_MODEL:SIGNATURE` one of its functions.

    `seed` seeds the weights of a built-in model. `shapes` are texts like `input_ids=1..8x1..512`
    that fix or bound the dimensions of inputs. `inputs` is an .npz file of example inputs, by name in order, for
    formats that do not declare their inputs. `trust` imports files that can run code also where this system
    cannot confine that. `tokenizer` is a directory whose tokenizer.json and chat template a language model gets
    instead of its own. `spelled`, for an export: what an ONNX or TFLite file makes of other calls stays a node.
    """
    refuse_unspeakable(model, "--model")
    imported = apply_shapes(_import(model, seed, shapes, inputs, trust, spelled), shapes)
    return imported if tokenizer is None else with_texts_of(Path(tokenizer), imported)


def _import(
    model: str,
    seed: int,
    shapes: tuple[str, ...],
    inputs: str | None,
    trust: bool,
    spelled: Spelled | None,
) -> ImportedModel:
    from ..models import PRESETS
    from ..models.builder import RandomWeights

    path, part = _parted(model)
    if model in PRESETS:
        family, config = PRESETS[model]
        made = family.build(model, config, RandomWeights(seed), {"kind": "builtin", "name": model, "seed": seed})
        return replace(made, language=NO_TEXTS) if made.with_past else made
    if path.is_dir():
        return _of_directory(path, part, shapes, inputs, trust)
    if path.suffix in SUFFIXES:
        if path.suffix in _FILES and not path.is_file():
            raise UsageError(f"expected {_FILES[path.suffix]}, found no file {model!r}: check the path")
        return _of_file(path, part, shapes, inputs, trust, spelled)
    if path.is_file():
        raise UnsupportedModel(
            "expected an .onnx, .gguf, .keras, .h5, .pt2, .tflite, jax.export, StableHLO or TorchScript file, a "
            f"directory with config.json or a built-in name, found the file {model!r}: convert it to ONNX first"
        )
    if is_hub_name(str(path)):
        from .huggingface import import_hub

        return import_hub(str(path), part, trust=trust)
    raise unknown(model)


def _of_file(
    path: Path, part: str, shapes: tuple[str, ...], inputs: str | None, trust: bool, spelled: Spelled | None
) -> ImportedModel:
    if path.suffix in TORCHSCRIPT:
        from .torchscript import import_torchscript

        examples = load_examples(inputs) if inputs else None
        return import_torchscript(path, shapes=tuple(map(parse_input, shapes)), inputs=examples, trust=trust)
    fixed = dict(map(parse_shape, shapes))
    match path.suffix:
        case ".onnx":
            from .onnx import import_onnx

            return import_onnx(path, shapes=fixed, spelled=spelled)
        case ".gguf":
            from .gguf import import_gguf

            return import_gguf(path)
        case ".tflite":
            from .tflite import import_tflite

            return import_tflite(path, shapes=fixed, signature=part, spelled=spelled)
        case ".pt2":
            from .torch_export import import_pt2

            return import_pt2(path, trust=trust)
        case suffix if suffix in STABLEHLO:
            from .stablehlo import import_stablehlo

            return import_stablehlo(path, shapes=fixed, trust=trust)
        case _:
            from .keras import import_keras

            return import_keras(path, shapes=fixed, trust=trust)


def _of_directory(path: Path, part: str, shapes: tuple[str, ...], inputs: str | None, trust: bool) -> ImportedModel:
    fixed = dict(map(parse_shape, shapes))
    if (path / "saved_model.pb").is_file():
        from .tensorflow import import_saved_model

        return import_saved_model(path, shapes=fixed, signature=part, trust=trust)
    from .huggingface import import_directory

    sizes = {name: tuple(high for _, high in dims) for name, dims in fixed.items()}
    sizes |= {name: array.shape for name, array in (load_examples(inputs) if inputs else {}).items()}
    return import_directory(path, sizes, part, trust=trust)


def _parted(model: str) -> tuple[Path, str]:
    """`DIRECTORY:PART`, `ORG/NAME:PART`, `FILE.tflite:SIGNATURE` or `SAVED_MODEL:SIGNATURE` as the two; what exists
    under its whole name has no part."""
    head, colon, part = model.rpartition(":")
    if (head.endswith(".tflite") or (Path(head) / "saved_model.pb").is_file()) and not Path(model).exists():
        return Path(head), part
    if colon and part.isidentifier() and not Path(model).exists():
        if Path(head).is_dir() or is_hub_name(head):
            return Path(head), part
    return Path(model), ""
