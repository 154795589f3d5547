"""reduce_window: halo.pooling where the windows lie over an image, a kernel of their own elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from ....extremes import maximum, minimum
from ....relay_ops.pooling import Pooling
from ...meaning.builder import expr_dtype
from ...meaning.pointwise import Scalar, const, widened
from ...meaning.reduction import neutral
from ...meaning.sizes import Dim, prim
from .._primitive import Primitive
from .._registry import converter
from .._values import Value

_KINDS = {"reduce_window_max": "max", "reduce_window_sum": "sum", "reduce_window_min": "min"}
_STEPS: dict[str, Callable[[Scalar, Scalar], Scalar]] = {
    "max": maximum,
    "min": minimum,
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
}


@converter(*_KINDS)
def reduce_window(c: Primitive) -> Value:
    return _reduced(c, c.x(), _KINDS[c.op])


@converter("reduce_window")
def reduce_window_by(c: Primitive) -> Value:
    """By a function of jax: one that is a sum, product, maximum or minimum, beginning with what changes nothing."""
    jaxpr = c.params["jaxpr"]
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    known = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
    simple = len(names) == 1 and names[0] in known and len(c.values) == 2
    c.refuse_unless(simple, f"a function of {', '.join(names)}")
    kind = known[names[0]]
    found = c.number(1)
    c.refuse_unless(found == neutral(kind, c.dtype), f"a {kind} that begins with {found}")
    return _reduced(c, c.x(), kind)


def _reduced(c: Primitive, x: relax.Expr, kind: str) -> relax.Expr:
    pads = [tuple(c.walker.dims.dim(p) for p in pair) for pair in c.params["padding"]]
    lists = {k: [int(v) for v in c.params[f"{k}"]] for k in ("window_dimensions", "window_strides", "window_dilation")}
    kernel, strides, dilations = lists.values()
    layout = _layout(c, kernel, strides, pads)
    if layout is not None and kind in ("max", "sum") and c.dtype == "float32" and _is_plain(c, pads):
        axes = range(2, c.rank()) if layout == "first" else range(1, c.rank() - 1)
        window = [kernel[a] for a in axes]
        attrs = {
            "layout": layout,
            "kind": "max" if kind == "max" else "average",
            "kernel": window,
            "strides": [strides[a] for a in axes],
            "dilations": [dilations[a] for a in axes],
            "pads": [pads[a][0] for a in axes] + [pads[a][1] for a in axes],
            "ceil": False,
            "include_pad": True,
            "p": 2,
        }
        out = c.emit(Pooling.call(x, **attrs))
        return out if kind == "max" else c.emit(relax.op.multiply(out, c.scalar(math.prod(window), c.dtype)))
    return _kernel(c, x, kind, pads, kernel, strides, dilations)


def _is_plain(c: Primitive, pads: list[Any]) -> bool:
    """Whether nothing lies between the elements, and pads are numbers that cut off nothing."""
    spaced = any(int(d) != 1 for d in c.params["base_dilation"])
    return not spaced and all(isinstance(p, int) and p >= 0 for pair in pads for p in pair)


def _layout(c: Primitive, kernel: list[int], strides: list[int], pads: list[Any]) -> str | None:
    """Where the axes are along which nothing is reduced: before all others, or around them."""
    rank = c.rank()
    still = [kernel[a] == strides[a] == 1 and tuple(pads[a]) == (0, 0) for a in range(rank)]
    if rank < 3 or not still[0]:
        return None
    return "last" if still[-1] else "first" if still[1] else None


def _kernel(
    c: Primitive, x: relax.Expr, kind: str, pads: list[Any], kernel: list[int], strides: list[int], dilations: list[int]
) -> relax.Expr:
    spaces = [int(d) for d in c.params["base_dilation"]]
    shape, out = c.shape, c.dtype
    x = c.cast(x, "uint8") if out == "bool" else widened(c, x)
    nothing = neutral(kind, expr_dtype(x))
    reducer = te.comm_reducer(_STEPS[kind], lambda dtype: const(nothing, str(dtype)))

    def compute(x: te.Tensor) -> te.Tensor:
        ks = [te.reduce_axis((0, size), f"k{a}") for a, size in enumerate(kernel)]

        def element(*index: Scalar) -> Scalar:
            inside, at = [], []
            for a, (i, k, size) in enumerate(zip(index, ks, x.shape)):
                low: Dim = pads[a][0]
                place = i * strides[a] + k.var * dilations[a] - prim(low)
                inside.append(place >= 0)
                if spaces[a] != 1:
                    inside.append(tirx.floormod(place, spaces[a]) == 0)
                    place = tirx.floordiv(place, spaces[a])
                inside.append(place < size)
                at.append(place)
            value = tirx.if_then_else(tirx.all(*inside), x[tuple(at)], const(nothing, str(x.dtype)))
            return reducer(value, axis=ks)

        return te.compute([prim(d) for d in shape], element, name="window")

    return c.cast(c.te(compute, x, name="reduce_window"), out)
