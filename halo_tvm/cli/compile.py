"""Compile a model into an artifact: library, parameters, manifest, reference; then validate it."""

from __future__ import annotations

from pathlib import Path

from ..config import CompileConfig
from ..errors import UsageError

CONFIG = CompileConfig


def run(config: CompileConfig) -> int:
    """Compile, validate where this machine can run the result, and print what was made."""
    _check_path(config.model)
    import halo_tvm

    print(halo_tvm.compile_model(config))
    return 0


def _check_path(model: str) -> None:
    """`UsageError` for a path where nothing is: said before the compiler is imported, which takes seconds."""
    plain = "/" not in model and Path(model).suffix or model.startswith(("/", "./", "../"))
    if plain and not any(Path(path).exists() for path in (model, model.rpartition(":")[0] or model)):
        raise UsageError(f"expected a model file or directory, found nothing at {model!r}: check the path")
