"""The table of converters: (domain, operator) -> versions, the newest that is not newer than the model's opset."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._node import Node
    from ._values import Value

Converter = Callable[["Node"], object]  # -> a Relax expression, a Value, or a tuple of these, one per output

BEYOND = "halo"  # the domain of `beyond`; no node of it is ever written out, since nobody else would read it
CONVERTERS: dict[tuple[str, str], dict[int, Converter]] = {}
Known = Callable[["Node"], "Value | tuple[Value, ...] | None"]
SYMBOLIC: dict[str, Known] = {}
IN_INTEGERS: dict[str, Converter] = {}


def converter(*names: str, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a converter for operators of `domain` from version `since` on.

    A converter returns a Relax expression or a `Value`, or a tuple of them when the node has several outputs.
    """

    def register(function: Converter) -> Converter:
        for name in names:
            versions = CONVERTERS.setdefault((domain, name), {})
            if since in versions:
                raise ValueError(f"converter {domain}.{name} since {since} is defined twice")
            versions[since] = function
        return function

    return register


def symbolic(*names: str) -> Callable:
    """Register how an operator of the default domain acts on tensors known as lists of expressions.

    The function returns the result, or one for each output; None where it has no answer: the values then become tensors
    and the converter serves.
    """

    def register(function: Known) -> Known:
        for name in names:
            if name in SYMBOLIC:
                raise ValueError(f"symbolic rule {name} is defined twice")
            SYMBOLIC[name] = function
        return function

    return register


def in_integers(name: str) -> Callable[[Converter], Converter]:
    """Register how an operator acts on floats that were restored from integers, see `_quantised`.

    The function returns None where it has no answer; the converter then serves.
    """

    def register(function: Converter) -> Converter:
        if name in IN_INTEGERS:
            raise ValueError(f"integer form of {name} is defined twice")
        IN_INTEGERS[name] = function
        return function

    return register


def find(domain: str, name: str, opset: int) -> Converter | None:
    """The converter that serves version `opset` of the domain; None when there is none."""
    versions = CONVERTERS.get((domain, name), {})
    fitting = [since for since in versions if since <= opset]
    return versions[max(fitting)] if fitting else None


def load_converters() -> None:
    """Import every module of this package that holds converters (their names have no leading underscore)."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        if module.name == "_known" or not module.name.startswith("_") and module.name != "backend":
            importlib.import_module(f"{__package__}.{module.name}")
