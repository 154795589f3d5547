"""Elements in another order: DepthToSpace, SpaceToDepth, Col2Im."""

from __future__ import annotations

from itertools import product

import numpy as np
from tvm import relax, te, tirx

from ..meaning.broadcast import same_sizes
from ._node import Node
from ._registry import converter


@converter("DepthToSpace")
def depth_to_space(node: Node) -> relax.Expr:
    n, c, h, w = node.shape(0)
    b = int(node.attr("blocksize"))
    depth = node.sizes.floordiv(c, b * b)
    whole = same_sizes(node, node.x(0), [n, node.sizes.simplify(depth * (b * b)), h, w], "an image of whole blocks")
    if node.attr("mode", "DCR") == "DCR":
        x = node.emit(relax.op.reshape(whole, [n, b, b, depth, h, w]))
        x = node.emit(relax.op.permute_dims(x, [0, 3, 4, 1, 5, 2]))
    else:
        x = node.emit(relax.op.reshape(whole, [n, depth, b, b, h, w]))
        x = node.emit(relax.op.permute_dims(x, [0, 1, 4, 2, 5, 3]))
    return relax.op.reshape(x, [n, depth, h * b, w * b])


@converter("SpaceToDepth")
def space_to_depth(node: Node) -> relax.Expr:
    n, c, h, w = node.shape(0)
    b = int(node.attr("blocksize"))
    rows, columns = node.sizes.floordiv(h, b), node.sizes.floordiv(w, b)
    for size, count in ((h, rows), (w, columns)):
        node.refuse_unless(
            node.sizes.is_equal(size, count * b), f"expected sizes that are multiples of {b}, found {size}"
        )
    x = node.emit(relax.op.reshape(node.x(0), [n, c, rows, b, columns, b]))
    order = [0, 3, 5, 1, 2, 4] if node.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    x = node.emit(relax.op.permute_dims(x, order))
    return relax.op.reshape(x, [n, c * b * b, rows, columns])


@converter("Col2Im")
def col2im(node: Node) -> relax.Expr:
    """Sums of the columns' elements at the places of the image they were taken from."""
    image, block = node.dims(1), node.ints(2)
    rank = len(block)
    strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    pads = node.attr("pads", [0] * (2 * rank))
    n, columns, _ = node.shape(0)
    area = int(np.prod(block))
    channels = node.sizes.floordiv(columns, area)
    node.refuse_unless(area <= 256, f"expected blocks of at most 256 elements, found {area}")
    spans = [size + (pads[d] + pads[d + rank] - dilations[d] * (block[d] - 1) - 1) for d, size in enumerate(image)]
    steps = node.sizes.product([node.sizes.floordiv(s, stride) + 1 for s, stride in zip(spans, strides)])
    blocks = same_sizes(node, node.x(0), [n, node.sizes.simplify(channels * area), steps], "columns")

    def compute(x: te.Tensor, sizes: list) -> te.Tensor:
        counts = [
            tirx.floordiv(size + pads[d] + pads[d + rank] - dilations[d] * (block[d] - 1) - 1, strides[d]) + 1
            for d, size in enumerate(sizes[2:])
        ]

        def element(i, c, *at):
            total = tirx.const(0, x.dtype)
            for position, offsets in enumerate(product(*map(range, block))):
                valid, column = [], 0
                for d, offset in enumerate(offsets):
                    place = at[d] + pads[d] - offset * dilations[d]
                    step = tirx.floordiv(place, strides[d])
                    valid += [tirx.floormod(place, strides[d]) == 0, step >= 0, step < counts[d]]
                    column = column * counts[d] + step
                value = x(i, c * area + position, column)
                total = total + tirx.if_then_else(tirx.all(*valid), value, tirx.const(0, x.dtype))
            return total

        return te.compute(sizes, element, name="col2im")

    return node.te(compute, blocks, [n, channels, *image])
