"""A convolution of bytes with its channels last: read through its windows, or as an integer product.

Before -> after
    halo.convolution_integer(x, zero, w [m, c, *kernel])
        ->   halo.convolution_integer_winograd(x', zero, w', sums), where that is faster (`_winograd`)
        or   halo.convolution_integer(x', zero, w', sums), layout "packed" (groups: `_groups`)
    for a kernel of one place with stride 1 and no padding, and on targets without the rule `convolution`
        ->   r = x's windows, channels last, c padded to groups of four, [n, *windows, *kernel, c']
             halo.linear_integer(r as [n, *windows, prod(kernel) * c'], zero, w' [prod(kernel) * c', m])
    where in the first case r is a view of x
The channels that pad c meet rows of zeros in w', so that it does not matter what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tvm import ir, relax, te

from ..relay_ops.convolution_integer import ConvolutionInteger
from ..relay_ops.convolution_integer_winograd import MOST_PRODUCTS, PAIR, ConvolutionIntegerWinograd
from ..relay_ops.linear_integer import LinearInteger
from ..relay_ops.linear_w8a8 import GROUP
from ..relay_ops.operator import attrs_of
from ..relay_ops.parts.windows import padded, reach, window_sizes
from ..targets import Target
from ..tir_schedules.products.packing import pack_shape
from ..winograd import INTEGERS
from ._groups import joined_groups, packing_of
from ._matrix_of_windows import weight_matrix
from ._winograd import axes_in_tiles
from .pack_integers import narrow_pairs, packed_integers
from .weights import WeightEditor


def integer_convolution(
    builder: relax.BlockBuilder,
    editor: WeightEditor,
    x: relax.Expr,
    call: relax.Call,
    sizes: Sequence[ir.Expr],
    target: Target,
    typical: Mapping[str, int] | None,
) -> tuple[relax.Expr | None, str]:
    """The channels-last result [n, *windows, m] of `call`, whose x with its channels last is `x`, and a label for it.

    `sizes` are n and the windows; `typical` are those that are open, None where nothing is computed in tiles. No result
    where the weight is no parameter.
    """
    name, attrs, (_, *windows) = editor.name(call.args[2]), attrs_of(call), sizes
    if name is None:
        return None, "left: the weight is no parameter"
    outer, channels, *kernel = (int(d) for d in call.args[2].ty.shape.values)
    if attrs.get("groups", 1) > 1:
        return _in_groups(editor, name, x, call, windows, target)
    tiled = None if typical is None else _in_tiles(editor, x, call, attrs, sizes, typical, target)
    if tiled is not None:
        return tiled, "in bytes, in tiles"
    rank, wide = len(kernel) + 2, -(-channels // GROUP) * GROUP
    plain = set(kernel) == set(attrs["strides"]) == {1} and not any(attrs["pads"])
    weight = weight_matrix(editor, name, wide)
    if "convolution" in target.spec.rules and not plain:
        packed, sums, how = packed_integers(editor, editor.name(weight), call.args[1], target)
        attrs = {**attrs, **how, "layout": "packed"}
        return ConvolutionInteger.call(x, call.args[1], packed, sums, **attrs, kernel=kernel, m=outer), "in bytes"
    if wide != channels:
        x = builder.emit(relax.op.nn.pad(x, [0] * (2 * rank - 1) + [wide - channels]))
    if not plain:
        x = builder.call_te(_windows, x, call.args[1], kernel, attrs, primfunc_name_hint="windows")
        x = builder.emit(x)
    width = prod(kernel) * wide
    rows = builder.emit(relax.op.reshape(x, [x.ty.shape.values[0], *windows, width]))
    return LinearInteger.call(rows, call.args[1], weight, layout="kn", n=outer), "in bytes"


def _in_groups(
    editor: WeightEditor,
    name: str,
    x: relax.Expr,
    call: relax.Call,
    windows: Sequence[ir.Expr],
    target: Target,
) -> tuple[relax.Expr | None, str]:
    """`call` with the layout that the rule `convolution` reads, and a label."""
    if "convolution" not in target.spec.rules:
        return None, "left to the fallback"
    attrs, (outer, inner, *kernel) = attrs_of(call), editor.params.shape(name)
    joined = joined_groups(outer, attrs["groups"], target.lanes_f32, inner, GROUP)
    # Where bytes are taken apart, or multiplied in tiles, no lanes have channels of their own.
    lanes = target.isa.byte_dot in ("vpdpbusd", "usdot", "sdot") and not target.isa.tiles
    found = packing_of((outer, inner, *kernel), attrs["groups"], GROUP, joined, windows[-1] if lanes else None, target)
    label = f"{name}|{found.label}/i8"
    packed = editor.derive(label, "pack_convolution_int8", [name], found.shape, **found.how)
    sums = _sums(editor, name, outer)
    attrs = {**attrs, **narrow_pairs(editor, label, call.args[1], target), **found.attrs}
    attrs |= {"layout": "packed", "kernel": kernel, "m": outer}
    return ConvolutionInteger.call(x, call.args[1], packed, sums, **attrs), "in bytes, in groups"


def _in_tiles(
    editor: WeightEditor,
    x: relax.Expr,
    call: relax.Call,
    attrs: Mapping[str, Sequence[int]],
    sizes: Sequence[ir.Expr],
    typical: Mapping[str, int],
    target: Target,
) -> relax.Expr | None:
    """`call` by minimal filtering; None where another way is faster, or four bytes are multiplied at once."""
    name, shape = editor.name(call.args[2]), [int(d) for d in call.args[2].ty.shape.values]
    m, c, *kernel = shape
    if target.isa.byte_dot != "vpmaddwd" or c % PAIR or prod(shape[1:]) > MOST_PRODUCTS:
        return None
    axes = axes_in_tiles(INTEGERS, shape, attrs, sizes[0], sizes[1:], typical, target)
    if not axes:
        return None
    depth, how = prod(kernel[:-axes]) * c, {key: attrs[key] for key in ("strides", "dilations", "pads")}
    _, nr = pack_shape(depth, m, target)
    packed_shape = (-(-m // nr), INTEGERS.tile**axes, depth // PAIR, nr, PAIR)
    label = f"{name}|tiles/{axes}/n{nr}"
    packed = editor.derive(label, "pack_winograd_integers", [name], packed_shape, "int16", axes=axes, nr=nr)
    sums = _sums(editor, name, m)
    return ConvolutionIntegerWinograd.call(x, call.args[1], packed, sums, **how, kernel=kernel, m=m)


def _sums(editor: WeightEditor, name: str, m: int) -> relax.Var:
    """What the weight [m, c, *kernel] adds up to for each channel of the result."""
    matrix = editor.name(weight_matrix(editor, name))
    return editor.derive(f"{name}|i8/sums", "sums_int8", [matrix], (m,), "int32")


def _windows(x: te.Tensor, zero: te.Tensor, kernel: Sequence[int], attrs: Mapping[str, Sequence[int]]) -> te.Tensor:
    """[n, *space, c] -> [n, *windows, *kernel, c]: runs of channels are copied as they lie."""
    strides, dilations, pads = (attrs[key] for key in ("strides", "dilations", "pads"))
    axes = range(1, len(x.shape) - 1)
    windows = window_sizes([x.shape[a] for a in axes], kernel, strides, dilations, pads)
    source = padded(x, axes, pads, zero[()], reach(windows, kernel, strides, dilations))
    rank = len(kernel)

    def element(n, *rest):
        place, taps, c = rest[:rank], rest[rank : 2 * rank], rest[-1]
        at = [o * s + k * d for o, k, s, d in zip(place, taps, strides, dilations)]
        return source[(n, *at, c)]

    return te.compute([x.shape[0], *windows, *kernel, x.shape[-1]], element, name="windows")
