"""Functions inside functions: they are entered."""

from __future__ import annotations

from typing import Any

from .._primitive import Primitive
from .._registry import converter
from .._values import Value
from .._walk import constant_of


@converter(
    *("jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint", "custom_lin"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call", "composite"),
)
def call(c: Primitive) -> list[Value | None]:
    """The function itself: how it is differentiated or batched does not matter here."""
    inner = next((c.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in c.params), None)
    if inner is None:
        c.refuse("no function inside")
    return entered(c, inner, c.values)


def entered(c: Primitive, inner: Any, args: list[Value]) -> list[Value | None]:
    """The results of a jaxpr, closed over its constants or not, for `args`."""
    jaxpr = getattr(inner, "jaxpr", inner)
    consts = [constant_of(value) for value in getattr(inner, "consts", ())]
    return c.walker.walk(jaxpr, consts, args)
