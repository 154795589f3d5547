"""Reductions of axes and of windows, by what their regions say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp

from .._operation import Operation, Value, operation

_FUNCTIONS: dict[str | None, Callable[..., Any]] = {
    "add": lax.add,
    "multiply": lax.mul,
    "maximum": lax.max,
    "minimum": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}


def monoid(region: Any) -> str | None:
    """What a region does with its two arguments: the name of one operation, or `second` where it returns that."""
    (block,) = region.blocks
    arguments, steps = list(block.arguments), [op.operation for op in block.operations]
    if len(arguments) != 2:
        return None
    if len(steps) == 1 and list(steps[0].operands) == arguments[1:]:
        return "second"
    if len(steps) != 2 or list(steps[1].operands) != list(steps[0].results):
        return None
    used, name = list(steps[0].operands), steps[0].name.removeprefix("stablehlo.")
    both = used == arguments or used == arguments[::-1]
    return name if both and name in _FUNCTIONS else None


@operation("reduce")
def reduce(o: Operation) -> Sequence[Value]:
    half = len(o.known) // 2
    axes, values = o.numbers("dimensions"), o.values[:half]
    starts = o.known[half:]  # known numbers: jax.lax looks whether they are the neutral ones
    kind = monoid(o.op.regions[0])
    if kind in _FUNCTIONS:
        (x,), (start,) = values, starts
        return [lax.reduce(x, start, _FUNCTIONS[kind], axes)]
    found = _extreme(o, axes, values)
    if found is not None:
        return found
    return list(lax.reduce(values, list(starts), lambda a, b: _joined(o, a, b), axes))


def _joined(o: Operation, left: Any, right: Any) -> Sequence[Value]:
    return o.region()(*left, *right)


def _extreme(o: Operation, axes: list[int], values: Sequence[Value]) -> Sequence[Value] | None:
    """The largest or smallest element and its place: two operands, the second one counts along the axis."""
    if len(values) != 2 or len(axes) != 1:
        return None
    source = o.op.operands[1].owner
    is_count = getattr(source, "name", "") in ("stablehlo.iota", "stablehlo.dynamic_iota")
    if not is_count or int(source.attributes["iota_dimension"].value) != axes[0]:
        return None
    (block,) = o.op.regions[0].blocks
    first = next((op.operation for op in block.operations if op.operation.name == "stablehlo.compare"), None)
    if first is None or list(first.operands) != [block.arguments[0], block.arguments[2]]:
        return None
    direction = str(first.attributes["comparison_direction"]).rstrip(">").split()[-1]
    if direction not in _PLACES or not _breaks_ties(block):
        return None
    place, extreme = _PLACES[direction]
    x = values[0]
    return [extreme(x, axis=axes[0]), place(x, axes[0], values[1].dtype)]


_PLACES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **dict.fromkeys(("GT", "GE"), (lax.argmax, jnp.max)),
    **dict.fromkeys(("LT", "LE"), (lax.argmin, jnp.min)),
}
_OF_PLACES = frozenset("stablehlo.compare stablehlo.or stablehlo.and stablehlo.select stablehlo.return".split())


def _breaks_ties(block: Any) -> bool:
    """Whether a region only compares and selects, and the lower of two places wins among equals."""
    steps = [op.operation for op in block.operations]
    if any(op.name not in _OF_PLACES for op in steps):
        return False
    places = [block.arguments[1], block.arguments[3]]
    return any(
        op.name == "stablehlo.compare"
        and list(op.operands) == places
        and "LT" in str(op.attributes["comparison_direction"])
        for op in steps
    )


@operation("reduce_window")
def reduce_window(o: Operation) -> Value:
    if len(o.known) != 2:
        raise o.refuse(f"{len(o.known) // 2} operands at once")
    ones = [1] * len(o.op.results[0].type.shape)
    return window(
        o,
        monoid(o.op.regions[0]),
        o.numbers("window_dimensions"),
        o.numbers("window_strides", ones),
        o.numbers("base_dilations", ones),
        o.numbers("window_dilations", ones),
        o.pairs("padding", len(ones)),
    )


def window(
    o: Operation,
    kind: str | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    base: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Value:
    """The first operand by windows, from the second one on; a window of all that is before is a running sum."""
    if kind not in _FUNCTIONS:
        raise o.refuse("a function that is none of " + ", ".join(map(str, _FUNCTIONS)))
    x, start = o.x, o.known[1]
    wide = [axis for axis, size in enumerate(sizes) if not (isinstance(size, int) and size == 1)]
    if len(wide) == 1 and kind in _RUNNING and not any(set(v) != {1} for v in (strides, base, dilation)):
        (axis,), n = wide, x.shape[wide[0]]
        for pads, reverse in (((n - 1, 0), False), ((0, n - 1), True)):
            if sizes[axis] == n and tuple(padding[axis]) == pads and n != 1:
                return _RUNNING[kind](x, axis, reverse)
    return lax.reduce_window(x, start, _FUNCTIONS[kind], sizes, strides, padding, base, dilation)


_RUNNING: dict[str, Callable[..., Any]] = {
    "add": lax.cumsum,
    "multiply": lax.cumprod,
    "maximum": lax.cummax,
    "minimum": lax.cummin,
}
