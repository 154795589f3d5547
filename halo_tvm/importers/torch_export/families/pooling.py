"""Pooling, adaptive pooling included. An input without a batch gets one, and loses it again."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax

from ...meaning.adaptive_pooling import adaptive_places, adaptive_pooling
from ...meaning.builder import expr_dtype
from ...meaning.pooling import places, pooling
from ...meaning.sizes import plain
from ...meaning.windows import Window
from .._batch import batched, unbatched
from .._call import Call, constant, each
from .._registry import converter


def _axes(c: Call) -> int:
    return int(next(letter for letter in c.op.split("pool")[1] if letter.isdigit()))


def _window(c: Call, n: int) -> Window:
    kernel, pads = each(c, "kernel_size", n), each(c, "padding", n)
    strides = each(c, "stride", n) if c["stride"] else kernel
    return Window(kernel, strides, each(c, "dilation", n, default=1), (*pads, *pads)).checked(c)


@converter(
    *(f"max_pool{n}d{indices}.default" for n in (1, 2, 3) for indices in ("", "_with_indices")),
)
def max_pool(c: Call) -> object:
    n = _axes(c)
    window, x = _window(c, n), batched(c, c.tensor("self"), n)
    out = pooling(c, x, window, "max", ceil=bool(c["ceil_mode"]))
    if "indices" not in c.op:
        return unbatched(c, out)
    return _with_places(c, out, lambda: places(c, x, out, window, number="image"))


@converter(*(f"avg_pool{n}d.default" for n in (1, 2, 3)))
def average_pool(c: Call) -> relax.Expr:
    n = _axes(c)
    window, x = _window(c, n), batched(c, c.tensor("self"), n)
    ceil, counted = bool(c["ceil_mode"]), bool(c["count_include_pad"])
    divisor = c.nodes.get("divisor_override")
    if divisor is None:
        return unbatched(c, pooling(c, x, window, "average", ceil=ceil, include_pad=counted))
    c.refuse_unless(not ceil, "expected ceil_mode=False beside divisor_override, found True")
    c.refuse_unless("float" in c.dtype, f"expected floats beside divisor_override, found {c.dtype}")
    # Every window counts as a whole, so its mean is its sum by the number of its elements.
    mean = pooling(c, x, window, "average", include_pad=True)
    factor = constant(math.prod(window.kernel) / int(divisor), expr_dtype(mean))
    return unbatched(c, c.emit(relax.op.multiply(mean, factor)))


@converter(
    *(f"adaptive_{kind}_pool{n}d.default" for kind in ("avg", "max") for n in (1, 2, 3)),
    *(f"_adaptive_avg_pool{n}d.default" for n in (2, 3)),
)
def adaptive_pool(c: Call) -> object:
    n = _axes(c)
    x, wanted = batched(c, c.tensor("self"), n), [plain(d) for d in c.shape[-n:]]
    if "avg" in c.op:
        return unbatched(c, adaptive_pooling(c, x, wanted, "average"))
    out = adaptive_pooling(c, x, wanted, "max")
    return _with_places(c, out, lambda: adaptive_places(c, x, out))


def _with_places(c: Call, out: relax.Expr, found: Callable[[], relax.Expr]) -> tuple[relax.Expr, ...]:
    """(largest elements, where they are); the second is computed only if the program reads it."""
    used = any(user.args[1] == 1 for user in c.node.users)
    return (unbatched(c, out), unbatched(c, found())) if used else (unbatched(c, out),)
