"""The table of operators: name in LiteRT's schema -> what writes it as ONNX nodes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._node import Node, Result

Writer = Callable[["Node"], "Result | tuple[Result, ...]"]

WRITERS: dict[str, Writer] = {}
_OF_PAIRS: set[Writer] = set()  # writers that know complex inputs as pairs of floats


def writes(*names: str) -> Callable[[Writer], Writer]:
    """Register a function that writes operators of these names and returns one result per output."""

    def register(function: Writer) -> Writer:
        for name in names:
            if name in WRITERS:
                raise ValueError(f"operator {name} is written twice")
            WRITERS[name] = function
        return function

    return register


def pairs(function: Writer) -> Writer:
    """Mark a function that writes operators of complex inputs, whose tensors have a last dimension of two floats."""
    _OF_PAIRS.add(function)
    return function


def takes_pairs(function: Writer) -> bool:
    return function in _OF_PAIRS


def load_writers() -> None:
    """Import every module of this package that writes operators (their names have no leading underscore)."""
    package = importlib.import_module(str(__package__))
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__package__}.{module.name}")
