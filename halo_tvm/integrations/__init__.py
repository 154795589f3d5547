"""Compiled models inside other frameworks; each file imports its own framework, on first use."""

from __future__ import annotations

from types import ModuleType

_FRAMEWORKS = ("jax", "keras", "tensorflow", "torch")


def __getattr__(name: str) -> ModuleType:
    """The module for a framework; `ModuleNotFoundError` where that is not installed."""
    import importlib

    if name in _FRAMEWORKS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FRAMEWORKS})
