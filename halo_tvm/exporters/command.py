"""`halo-tvm export`: a model, imported and optimised, as an ONNX file that onnxruntime has run."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import ExportConfig, with_signature
from ..errors import UnsupportedModel, UsageError
from ..imported import ImportedModel
from ..importers import import_model
from ._graph import OPSETS, Spelling
from ._nbits import BITS, TOLERANCES
from ._overwriting import refuse_overwriting, weights_beside
from .cached import compare_steps, runs_in_genai, with_past, write_genai_config
from .comparison import TOLERANCE, Comparison, compare
from .gguf import export_gguf
from .onnx import PLAIN, spelled, write_onnx
from .optimised import optimised


@dataclass(frozen=True)
class Export:
    """A written file, and what onnxruntime says of it."""

    path: Path
    size_bytes: int  # weights included
    opset: int
    comparison: Comparison
    without_before: str  # why there is nothing to compare the nodes and the time with
    tolerance: float = TOLERANCE


def export_model(config: ExportConfig) -> Export:
    """Write what `config.model` names to `config.output`, run it, and compare it with the source.

    Raises `UnsupportedModel` with every operator that has no ONNX spelling; nothing is written then.
    """
    _check_numbers(config)
    refuse_overwriting(config.model, Path(config.output))
    if config.opset is not None:
        Spelling.of(config.engine, config.opset)  # says at once what cannot be written
    model = with_signature(config.model, config.signature)
    imported = import_model(
        model, shapes=config.shape, inputs=config.inputs, trust=config.trust_model, spelled=spelled(config.opset)
    )
    if imported.drawn:
        raise UnsupportedModel(
            f"expected a model without random numbers, found {', '.join(imported.drawn)} to be made of them: ONNX has "
            "no state to draw them by; export a model that takes them as inputs"
        )
    path, opset = Path(config.output), config.opset or _own_opset(imported)
    spelling = replace(Spelling.of(config.engine, opset), numbers=_groups(config))
    if config.caches:
        return _export_steps(imported, path, spelling, config)
    with tempfile.TemporaryDirectory(prefix="halo-tvm-export-") as scratch:
        before, why = _before(imported, config.model, Path(scratch))
        write_onnx(optimised(imported), path, spelling)
        comparison = compare(imported, before, path, seed=config.seed, threads=config.threads or 0)
    return Export(path, _size(path), opset, comparison, why, _tolerance(config))


def _export_steps(imported: ImportedModel, path: Path, spelling: Spelling, config: ExportConfig) -> Export:
    """A language model with its caches as inputs and outputs."""
    model = with_past(imported)
    write_onnx(optimised(model), path, spelling)
    if config.engine == "onnxruntime" and runs_in_genai(model):
        write_genai_config(model, path)
    comparison = compare_steps(imported, path, seed=config.seed, threads=config.threads or 0)
    why = "a step with caches is of the written file alone"
    return Export(path, _size(path), spelling.opset, comparison, why, _tolerance(config))


def _check_numbers(config: ExportConfig) -> None:
    """`UsageError` for a --type that ONNX, or the engine, has no products of."""
    name = Path(config.output).name
    if config.numbers not in (None, "F32", *BITS):
        raise UsageError(
            f"expected --type F32, {' or '.join(BITS)} beside {name}, found {config.numbers}: it is of .gguf files"
        )
    if _groups(config) and config.engine != "onnxruntime":
        raise UsageError(
            f"expected --for onnxruntime beside --type {config.numbers}, found {config.engine}: products of weights in "
            "groups are its own operator"
        )


def _groups(config: ExportConfig) -> str:
    return config.numbers if config.numbers in BITS else ""


def _tolerance(config: ExportConfig) -> float:
    return TOLERANCES.get(_groups(config), TOLERANCE)


def _size(path: Path) -> int:
    data = weights_beside(path)  # a model without large weights has none
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def export_language_model(config: ExportConfig) -> Path:
    """Write what `config.model` names to a GGUF file. Raises `UnsupportedModel` for what has no place in one."""
    given = {
        "--opset": config.opset,
        "--shape": config.shape,
        "--inputs": config.inputs,
        "--signature": config.signature,
        "--caches": config.caches,
    }
    found = [flag for flag, value in given.items() if value]
    if found:
        raise UsageError(f"expected a .gguf file without {found[0]}, found both: that is of ONNX, leave it out")
    refuse_overwriting(config.model, Path(config.output))
    return export_gguf(config.model, Path(config.output), config.numbers or "F32")


def _own_opset(imported: ImportedModel) -> int:
    """That of an ONNX file, as far as it is written here: operators mean the same then."""
    own = imported.report.get("opset")
    return min(max(own, OPSETS[0]), OPSETS[1]) if isinstance(own, int) else PLAIN.opset


def _before(imported: ImportedModel, model: str, scratch: Path) -> tuple[Path | None, str]:
    """The ONNX file itself, or the graph as it was imported, written to `scratch`; else why there is none."""
    if imported.source.get("kind") == "onnx":
        return Path(model), ""
    try:
        write_onnx(imported, scratch / "before.onnx", PLAIN)
    except UnsupportedModel as reason:
        return None, " ".join(str(reason).split())
    return scratch / "before.onnx", ""
