"""A convolution as a product: its windows written out as the rows of a matrix, its weight as the other one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, te

from ..relay_ops.parts.windows import padded, reach, window_sizes
from .weights import WeightEditor


def windows_of(builder: relax.BlockBuilder, x: relax.Expr, kernel: Sequence[int], attrs: dict[str, Any]) -> relax.Expr:
    """[n, *space, c] -> [n, *windows, kernel * c]: every window's elements side by side."""
    strides, dilations, pads = attrs["strides"], attrs["dilations"], attrs["pads"]

    def compute(x: te.Tensor) -> te.Tensor:
        axes = range(1, len(x.shape) - 1)
        windows = window_sizes([x.shape[a] for a in axes], kernel, strides, dilations, pads)
        source = padded(x, axes, pads, tvm.tirx.const(0, x.dtype), reach(windows, kernel, strides, dilations))
        channels = x.shape[-1]

        def element(*index: ir.Expr) -> ir.Expr:
            n, place, rest = index[0], index[1:-1], index[-1]
            c = tvm.tirx.floormod(rest, channels)
            rest = tvm.tirx.floordiv(rest, channels)
            at: list[ir.Expr] = []
            for o, k, s, d in reversed(list(zip(place, kernel, strides, dilations))):
                at.insert(0, o * s + tvm.tirx.floormod(rest, k) * d)
                rest = tvm.tirx.floordiv(rest, k)
            return source[(n, *at, c)]

        return te.compute([x.shape[0], *windows, channels * int(np.prod(kernel))], element, name="windows")

    return builder.call_te(compute, x, primfunc_name_hint="windows")


def weight_matrix(editor: WeightEditor, name: str, wide: int | None = None) -> relax.Var:
    """The weight [m, c, *kernel] as [prod(kernel) * c, m], with zeros behind the channels up to `wide`."""
    outer, channels, *kernel = editor.params.shape(name)
    moved, matrix, wide = f"{name}|channels_last", f"{name}|matrix", wide or channels
    order = [*range(2, 2 + len(kernel)), 1, 0]
    editor.derive(moved, "permute_dims", [name], [*kernel, channels, outer], axes=order)
    if wide != channels:
        widths = [[0, 0]] * len(kernel) + [[0, wide - channels], [0, 0]]
        editor.derive(f"{moved}|padded", "pad", [moved], [*kernel, wide, outer], widths=widths)
        moved, matrix = f"{moved}|padded", f"{matrix}|padded"
    shape = (prod(kernel) * wide, outer)
    return editor.derive(matrix, "reshape", [moved], shape, shape=list(shape))
