"""Convolutions, transposed ones included. An input without a batch gets one, and loses it again."""

from __future__ import annotations

from tvm import relax

from ...meaning.convolution import convolution
from ...meaning.transposed_convolution import Spread, transposed_convolution
from ...meaning.windows import Window
from .._batch import batched, unbatched
from .._call import Call, each, fixed
from .._registry import converter

CONVOLUTIONS = (
    *(f"conv{n}d.{kind}" for n in (1, 2, 3) for kind in ("default", "padding")),
    *(f"conv_transpose{n}d.{kind}" for n, kind in ((1, "default"), (2, "input"), (3, "input"))),
    "convolution.default",
)


@converter(*CONVOLUTIONS)
def convolve(c: Call) -> relax.Expr:
    x, weight = c.tensor("input"), c.tensor("weight")
    bias = c.tensor("bias") if c.has("bias") else None
    kernel = tuple(fixed(k, "a kernel") for k in weight.ty.shape.values[2:])
    n, groups = len(kernel), int(c["groups"])
    strides, dilations = each(c, "stride", n), each(c, "dilation", n)
    if c["padding"] == "same":
        window = Window(kernel, strides, dilations, same="upper")
    else:
        pads = (0,) * n if c["padding"] == "valid" else each(c, "padding", n)
        window = Window(kernel, strides, dilations, (*pads, *pads))
    x = batched(c, x, n)
    if "transpose" in c.op or c.nodes.get("transposed"):
        spread = Spread(window.checked(c), each(c, "output_padding", n))
        return unbatched(c, transposed_convolution(c, x, weight, bias, spread, groups))
    return unbatched(c, convolution(c, x, weight, bias, window.checked(c), groups))
