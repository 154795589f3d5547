"""How a convolution of floats is computed with its channels last; `channels_last` has the ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

from ..params import RECIPE_OPS
from ..relay_ops.convolution import Convolution
from ..relay_ops.convolution_winograd import ConvolutionWinograd
from ..relay_ops.linear import Linear
from ..relay_ops.operator import ACCUMULATED, attrs_of
from ..targets import FULL, Isa
from ..tir_schedules.products.packing import pack_shape
from ..winograd import FLOATS
from ._by_channel import to_last
from ._groups import joined_groups, packing_of
from ._matrix_of_windows import weight_matrix, windows_of
from ._neighbours import Neighbours, at_once, together
from ._winograd import axes_in_tiles
from .graph_pass import Context
from .weights import WeightEditor

# Byte products that one instruction adds to each sum, by what multiplies them.
_BYTES_AT_ONCE = {"vpdpbusd": 4.0, "usdot": 4.0, "sdot": 4.0, "vpmaddwd": 2.0}
_FEW_CHANNELS = 16  # of fewer, writing out a matrix of windows takes longer than multiplying it


class Convolutions:
    """Chooses the way of each, and moves its weight by recipes."""

    def __init__(self, builder: relax.BlockBuilder, editor: WeightEditor, context: Context, winograd: bool) -> None:
        self._builder, self._editor, self._target, self._typical = builder, editor, context.target, context.typical
        self._packs = "convolution" in context.target.spec.rules
        isa = context.target.isa
        self._rate = _rate(isa, context.precision)
        self._narrows = context.precision != FULL
        self._pairs = context.precision == "bf16" and isa.bf16_dot and not isa.tiles
        self._tiles = winograd and "convolution_winograd" in context.target.spec.rules

    def channels_last(
        self, call: relax.Call, ty: relax.TensorType, last: Callable[[relax.Expr], relax.Expr]
    ) -> tuple[relax.Expr | Neighbours | None, str]:
        """The channels-last result of `call`, a convolution with its channels first whose result is `ty`, and a label.

        `last` gives a tensor with its channels last. No result where the weight is none of the model's.
        """
        x, weight, rank = call.args[0], call.args[1], ty.ndim
        attrs: dict[str, Any] = attrs_of(call)
        name, constant = self._editor.name(weight), isinstance(weight, ir.GenericConst)
        if not (name is not None or constant) or ty.dtype not in ACCUMULATED:
            return None, "left: the weight is neither parameter nor constant, or of another type than floats"
        shape = [int(d) for d in weight.ty.shape.values]
        kernel, inner, outer = shape[2:], shape[1], shape[0]
        plain = set(kernel) == set(attrs["strides"]) == {1} and not any(attrs["pads"]) and attrs["groups"] == 1
        is_row_product = name is not None and ty.dtype == "float32"
        x, order = last(x), [*range(2, rank), 1, 0]
        if attrs["groups"] == outer and inner == 1:
            arranged = self._derived(weight, "channels_last", "permute_dims", [shape[a] for a in order], axes=order)
            return Convolution.call(x, arranged, **{**attrs, "layout": "last"}), "channel by channel"
        if self._packs and not (plain and is_row_product):
            batch, _, *places = ty.shape.values
            narrowed = self._narrowed(shape, attrs) if is_row_product else ""
            axes = 0
            if self._tiles and ty.dtype == "float32":
                rate, sizes = self._rate if narrowed else 1.0, (batch, places, self._typical)
                axes = axes_in_tiles(FLOATS, shape, attrs, *sizes, self._target, rate, as_matrix=narrowed == "matrix")
            if axes:
                return self._tiled(x, weight, attrs, axes), "in tiles"
            count = at_once(shape, attrs, places[-1], self._target)
            if count > 1:
                return self._several(x, weight, attrs, count, ty), "through windows of several places"
            if narrowed == "pairs":
                return self._packed(x, weight, attrs, places[-1], pairs=True), "through windows, in pairs"
            if not narrowed:
                return self._packed(x, weight, attrs, places[-1]), "through windows"
        if name is None or attrs["groups"] != 1 or not is_row_product:
            arranged = self._derived(weight, "channels_last", "permute_dims", [shape[a] for a in order], axes=order)
            return Convolution.call(x, arranged, **{**attrs, "layout": "last"}), "left to the fallback"
        matrix, windows = weight_matrix(self._editor, name), ty.shape.values[2:]
        if not plain:
            x = self._builder.emit(windows_of(self._builder, x, kernel, attrs))
        product = self._builder.emit(Linear.call(x, matrix, layout="kn", n=outer))
        if plain:
            return product, "matrix product"
        shaped = relax.op.reshape(product, [ty.shape.values[0], *windows, outer])
        return shaped, "matrix product of windows"

    def _narrowed(self, weight: Sequence[int], attrs: dict[str, Any]) -> str:
        """What --precision makes faster: "pairs" of bfloat16 through windows, a "matrix" of windows; else empty."""
        joined = weight[1] * joined_groups(weight[0], attrs["groups"], self._target.lanes_f32)
        if self._pairs:
            return "pairs" if joined % 2 == 0 and joined >= _FEW_CHANNELS else ""
        return "matrix" if self._narrows and attrs["groups"] == 1 and joined >= _FEW_CHANNELS else ""

    def _packed(
        self, x: relax.Expr, weight: relax.Expr, attrs: dict[str, Any], width: ir.Expr, pairs: bool = False
    ) -> relax.Call:
        """The convolution of channels-last `x` with the layout that the rule `convolution` reads.

        `width` is how many windows a row has.
        """
        sizes = [int(d) for d in weight.ty.shape.values]
        joined = joined_groups(sizes[0], attrs["groups"], self._target.lanes_f32)
        found = packing_of(sizes, attrs["groups"], 2 if pairs else 1, joined, width, self._target)
        op, dtype, behind = ("pack_convolution", "float32", "")
        if pairs:
            op, dtype, behind = "pack_convolution_bf16", "bfloat16", "/bf16"
        packed = self._derived(weight, f"{found.label}{behind}", op, found.shape, dtype, **found.how)
        attrs = {**attrs, "layout": "packed", "kernel": sizes[2:], "n": sizes[0], **found.attrs}
        return Convolution.call(x, packed, **attrs)

    def _tiled(self, x: relax.Expr, weight: relax.Expr, attrs: dict[str, Any], axes: int) -> relax.Call:
        """The convolution of channels-last `x` by minimal filtering along its last `axes`."""
        m, c, *kernel = (int(d) for d in weight.ty.shape.values)
        depth = int(np.prod(kernel[:-axes], dtype=int)) * c
        _, nr = pack_shape(depth, m, self._target)
        shape = [-(-m // nr), FLOATS.tile**axes, depth, nr]
        packed = self._derived(weight, f"tiles/{axes}/n{nr}", "pack_winograd", shape, "float32", axes=axes, nr=nr)
        kept = {name: attrs[name] for name in ("strides", "dilations", "pads")}
        return ConvolutionWinograd.call(x, packed, **kept, kernel=kernel, n=m)

    def _several(
        self, x: relax.Expr, weight: relax.Expr, attrs: dict[str, Any], count: int, ty: relax.TensorType
    ) -> Neighbours:
        """The convolution of channels-last `x` that computes `count` places of the last axis at once."""
        m, *rest, width = (int(d) for d in weight.ty.shape.values)
        step = attrs["strides"][-1]
        shape, how = [count * m, *rest, width + (count - 1) * step], {"count": count, "step": step}
        wide = self._derived(weight, f"places/{count}/{step}", "side_by_side", shape, **how)
        made = self._builder.emit(self._packed(x, wide, together(attrs, count), ty.shape.values[-1]))
        return Neighbours(made, count, tuple(to_last(list(ty.shape.values))))

    def _derived(
        self, weight: relax.Expr, label: str, op: str, shape: Sequence[int], dtype: str | None = None, **how: object
    ) -> relax.Expr:
        """`weight` by a recipe where it is a parameter, at once where it is a constant."""
        name = self._editor.name(weight)
        if name is not None:
            return self._editor.derive(f"{name}|{label}", op, [name], shape, dtype, **how)
        made = RECIPE_OPS[op](weight.value.numpy(), **how)
        return relax.const(np.ascontiguousarray(made), dtype or str(weight.ty.dtype))


def _rate(isa: Isa, precision: str) -> float:
    """Products of `precision` in the time of one of float32."""
    if precision in ("int8", "int4"):
        return 16.0 if isa.tiles else _BYTES_AT_ONCE.get(isa.byte_dot, 1.0)
    if precision == "bf16":
        return 8.0 if isa.tiles else 2.0 if isa.bf16_dot else 1.0
    return 2.0 if precision == "fp16" and isa.half_arithmetic else 1.0
