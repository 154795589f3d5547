"""Compile a model into an artifact: library, parameters, manifest, reference; then validate it."""

from __future__ import annotations

from ..artifact import check_output_path
from ..config import CompileConfig

CONFIG = CompileConfig


def run(config: CompileConfig) -> int:
    """Compile, validate where this machine can run the result, and print what was made."""
    check_output_path(config.artifact)
    import halo_tvm

    print(halo_tvm.compile_model(config))
    return 0
