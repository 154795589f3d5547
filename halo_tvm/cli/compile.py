"""Compile a model into an artifact: library, parameters, manifest, reference; then validate it."""

from __future__ import annotations

from ..config import CompileConfig

CONFIG = CompileConfig


def run(config: CompileConfig) -> int:
    """Compile, validate where this machine can run the result, and print what was made."""
    import halo_tvm

    print(halo_tvm.compile_model(config))
    return 0
