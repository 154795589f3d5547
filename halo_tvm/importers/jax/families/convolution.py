"""conv_general_dilated: strided, dilated, grouped and transposed, in any order of axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te

from ....relay_ops.convolution import Convolution
from ....relay_ops.operator import ACCUMULATED
from ...meaning.builder import expr_shape
from ...meaning.constant import Constant
from ...meaning.sizes import Dim, prim
from ...meaning.transposed_convolution import Spread as Overlap
from ...meaning.transposed_convolution import transposed_convolution
from ...meaning.windows import Window
from .._primitive import Primitive
from .._registry import converter
from .._values import Value
from .movement import padded, permuted


@converter("conv_general_dilated")
def convolution(c: Primitive) -> Value:
    p = c.params
    c.refuse_unless(int(p["batch_group_count"]) == 1, "groups of batches")
    lhs, rhs, out = p["dimension_numbers"]
    strides, spaces, dilations = (
        tuple(int(v) for v in p[k]) for k in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    pads = [tuple(c.walker.dims.dim(v) for v in pair) for pair in p["padding"]]
    groups, rank = int(p["feature_group_count"]), len(strides)
    if set(spaces) != {1}:
        y = _transposed(c, strides, spaces, dilations, pads, groups)
        if y is not None:
            return c.permute(y, [out.index(a) for a in range(rank + 2)])
    if set(spaces) == {1} and _moves(c, pads):
        attrs: dict[str, Any] = {"layout": "first", "strides": strides, "dilations": dilations, "groups": groups}
        weight = c.walker.expr_of(permuted(c, c.values[1], list(rhs)))
        ends = (*(a for a, _ in pads), *(b for _, b in pads))
        y = c.emit(Convolution.call(c.permute(c.x(0), list(lhs)), weight, **attrs, pads=ends))
        return c.cast(c.permute(y, [out.index(a) for a in range(rank + 2)]), c.dtype)
    x = c.permute(c.x(0), [lhs[0], *lhs[2:], lhs[1]])
    weight = c.walker.expr_of(permuted(c, c.values[1], [*rhs[2:], rhs[1], rhs[0]]))
    x, pads = _spaced(c, x, spaces, pads)
    ends = (*(a for a, _ in pads), *(b for _, b in pads))
    attrs = {"layout": "last", "strides": strides, "dilations": dilations, "groups": groups}
    if all(isinstance(v, int) for v in ends):
        y = c.emit(Convolution.call(x, weight, **attrs, pads=ends))
    else:

        def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            return Convolution.compute(x, w, **attrs, pads=ends)

        y = c.te(compute, x, weight, name="convolution")
    last = [out[0], *out[2:], out[1]]
    return c.cast(c.permute(y, [last.index(a) for a in range(rank + 2)]), c.dtype)


def _moves(c: Primitive, pads: list[tuple[Dim, ...]]) -> bool:
    """Whether the pass `channels_last` brings the convolution to the layout that kernels read: its weight is known.

    There the transpositions around it go, too. Anything else stays in the order in which jax has it.
    """
    is_known = c.constant(1) is not None and str(c.x(0).ty.dtype) in ACCUMULATED
    return is_known and all(isinstance(v, int) and v >= 0 for pair in pads for v in pair)


def _spaced(
    c: Primitive, x: relax.Expr, spaces: tuple[int, ...], pads: list[tuple[Dim, ...]]
) -> tuple[relax.Expr, list[tuple[Dim, ...]]]:
    """`x` [n, *space, c] with zeros between its elements, and cut off where a pad is negative; and the pads left."""
    negative = any(isinstance(v, int) and v < 0 for pair in pads for v in pair)
    if set(spaces) == {1} and not negative:
        return x, pads
    own, left = expr_shape(x), []
    shape, widths = [own[0]], [(0, 1)]
    for size, space, (low, high) in zip(own[1:-1], spaces, pads):
        cut = [min(v, 0) if isinstance(v, int) else 0 for v in (low, high)]
        whole = prim(size) if space == 1 else (prim(size) - 1) * space + 1
        shape.append(c.sizes.simplify(whole + (cut[0] + cut[1])))
        widths.append((cut[0], space))
        left.append(tuple(v - k for v, k in zip((low, high), cut)))
    zero = c.scalar(0, str(x.ty.dtype))
    return padded(c, x, zero, [*widths, (0, 1)], [*shape, own[-1]]), left


def _transposed(
    c: Primitive,
    strides: tuple[int, ...],
    spaces: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: list[tuple[Dim, ...]],
    groups: int,
) -> relax.Expr | None:
    """[n, m, *space] as a transposed convolution; None where it is none, or its weight is computed.

    Zeros between the elements and a kernel over them give what every element times the turned kernel adds up to:
    of its result `reach - pad` is cut off, where reach is the kernel's extent less 1.
    """
    lhs, rhs, _ = c.params["dimension_numbers"]
    weight, rank = c.constant(1), len(strides)
    if set(strides) != {1} or weight is None or not all(isinstance(v, int) for pair in pads for v in pair):
        return None
    kernel = tuple(weight.shape[a] for a in rhs[2:])
    reach = [(k - 1) * d for k, d in zip(kernel, dilations)]
    begins = [r - int(a) for r, (a, _) in zip(reach, pads)]
    ends = [r - int(b) for r, (_, b) in zip(reach, pads)]
    if min(begins) < 0:
        return None
    outer, inner = weight.shape[rhs[0]], weight.shape[rhs[1]]

    def turned() -> np.ndarray[Any, Any]:
        w = weight.load().transpose([rhs[0], rhs[1], *rhs[2:]])[
            (slice(None), slice(None), *[slice(None, None, -1)] * rank)
        ]
        parts = w.reshape(groups, outer // groups, inner, *kernel).swapaxes(1, 2)
        return np.ascontiguousarray(parts.reshape(groups * inner, outer // groups, *kernel))

    made = Constant((groups * inner, outer // groups, *kernel), weight.dtype, turned, f"{weight.name or c.op}.turned")
    window = Window(kernel, spaces, dilations, (*begins, *(max(e, 0) for e in ends)))
    spread = Overlap(window, tuple(max(-e, 0) for e in ends))
    x = c.permute(c.x(0), list(lhs))
    return transposed_convolution(c, x, c.weight(made), None, spread, groups)
