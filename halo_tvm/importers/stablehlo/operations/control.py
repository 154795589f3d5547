"""Functions, branches, loops and custom calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp
from jaxlib.mlir import ir

from .._operation import Operation, Value, dtype_of, operation, traced
from .lapack import LAPACK
from .reductions import monoid, window
from .scans import as_scan


@operation("func.call")
def call(o: Operation) -> Sequence[Value]:
    return o.program.call(o.text("callee"), o.known)


@operation("composite")
def composite(o: Operation) -> Sequence[Value]:
    """One operation where jax has it, else its decomposition."""
    if o.text("name") == "chlo.top_k":
        k = ir.IntegerAttr(ir.DictAttr(o.op.attributes["composite_attributes"])["k"]).value
        return list(lax.top_k(o.x, int(k)))
    return o.program.call(o.text("decomposition"), o.known)


# Custom calls: those that jax writes for operations of other dialects, and those that compute nothing.
_CALLS: dict[str, Callable[[Operation], Sequence[Value]]] = {
    "shape_assertion": lambda o: [],
    "Sharding": lambda o: o.known,
    "annotate_device_placement": lambda o: o.known,
    "mhlo.erf": lambda o: [lax.erf(o.x)],
    "mhlo.tan": lambda o: [lax.tan(o.x)],
    "stablehlo.dynamic_reduce_window": lambda o: [_dynamic_window(o)],
    **LAPACK,
    "stablehlo.dynamic_top_k": lambda o: list(lax.top_k(o.x, o.sizes(1)[0])),
}


def _dynamic_window(o: Operation) -> Value:
    """A reduction of windows whose sizes are operands: x, start, sizes, strides, two dilations, padding."""
    if len(o.known) != 7:
        raise o.refuse(f"{len(o.known)} operands")
    (callee,) = ir.ArrayAttr(o.op.attributes["called_computations"])
    function = o.program.functions[ir.FlatSymbolRefAttr(callee).value].operation
    flat = o.sizes(6)
    sizes, strides, base, dilation = (o.sizes(place) for place in range(2, 6))
    padding = list(zip(flat[::2], flat[1::2], strict=True))
    return window(o, monoid(function.regions[0]), sizes, strides, base, dilation, padding)


def refused_call(op: Any) -> str:
    """`op` by name where it is a custom call that has no meaning here."""
    if op.name != "stablehlo.custom_call":
        return ""
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    return "" if target in _CALLS else f"the custom call {target!r}"


@operation("custom_call")
def custom_call(o: Operation) -> Sequence[Value]:
    return _CALLS[o.text("call_target_name")](o)


@operation("if")
def if_(o: Operation) -> Sequence[Value]:
    return list(lax.cond(o.x, lambda: _typed(o, o.region(0)()), lambda: _typed(o, o.region(1)())))


@operation("case")
def case(o: Operation) -> Sequence[Value]:
    """The branch that the operand names; the last one where it names none."""
    count = len(o.op.regions)
    which = jnp.where((o.x < 0) | (o.x >= count), count - 1, o.x)
    branches = [lambda place=place: _typed(o, o.region(place)()) for place in range(count)]
    return list(lax.switch(which, branches))


@operation("while")
def while_(o: Operation) -> Sequence[Value]:
    scanned = as_scan(o)
    if scanned is not None:
        return scanned

    def step(state: tuple[Value, ...]) -> tuple[Value, ...]:
        return _typed(o, o.region(1)(*state))

    return list(lax.while_loop(lambda state: traced(o.region(0)(*state)[0]), step, tuple(o.values)))


def _typed(o: Operation, values: Sequence[Value]) -> tuple[Value, ...]:
    """The results of a region as arrays of the dtypes that the file says."""
    return tuple(jnp.asarray(traced(v), dtype_of(r.type)) for v, r in zip(values, o.op.results, strict=True))
