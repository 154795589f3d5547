"""Compile a model into an artifact: library, parameters, manifest, reference."""

from __future__ import annotations

from ..config import CompileConfig

CONFIG = CompileConfig


def run(config: CompileConfig) -> int:
    """Compile, and print what was made."""
    from ..compiler import compile_model

    print(compile_model(config))
    return 0
