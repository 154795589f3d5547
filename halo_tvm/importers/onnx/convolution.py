"""Convolutions: Conv, FusedConv, ConvTranspose, DeformConv, CausalConvWithState. Any rank, groups, symbolic sizes."""

from __future__ import annotations

from tvm import relax, te

from ..meaning import scalar
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_shape
from ..meaning.convolution import convolution
from ..meaning.deformable_convolution import deformable_convolution
from ..meaning.pointwise import in_float32, pointwise
from ..meaning.transposed_convolution import Spread, transposed_convolution
from ..meaning.windows import Window
from ._node import Node
from ._registry import converter
from ._spell import add
from ._windows import window_of
from .matmul import ACTIVATIONS


@converter("Conv")
def conv(node: Node) -> relax.Expr:
    window = window_of(node, _kernel(node), node.rank(0) - 2)
    return convolution(node, node.x(0), node.x(1), _bias(node, 2), window, int(node.attr("group", 1)))


@converter("FusedConv", domain="com.microsoft")
def fused_conv(node: Node) -> relax.Expr:
    """activation(Conv + z), as onnxruntime writes it into the models that it saves."""
    out = conv(node)
    if node.has(3):
        out = add(node, out, same_sizes(node, node.x(3), expr_shape(out), "z"))
    name = node.attr("activation", "")
    numbers = [float(v) for v in node.attr("activation_params", [])]
    wanted = {"LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}.get(name, 0)
    node.refuse_unless(len(numbers) == wanted, f"expected {wanted} activation_params of {name}, found {len(numbers)}")
    if name == "LeakyRelu":
        return relax.op.nn.leakyrelu(out, *numbers)
    if name == "Clip":
        return relax.op.clip(out, *numbers)
    if name == "HardSigmoid":
        alpha, beta = numbers
        return pointwise(node, in_float32(lambda x: scalar.hard_sigmoid(x, alpha, beta)), out)
    node.refuse_unless(not name or name in ACTIVATIONS, f"expected an activation of onnxruntime's, found {name}")
    return ACTIVATIONS[name](out) if name else out


@converter("ConvTranspose")
def conv_transpose(node: Node) -> relax.Expr:
    rank = node.rank(0) - 2
    window = window_of(node, _kernel(node), rank)
    given = node.attr("output_shape", None)
    spread = Spread(window, tuple(node.attr("output_padding", [0] * rank)), tuple(given[-rank:]) if given else None)
    return transposed_convolution(node, node.x(0), node.x(1), _bias(node, 2), spread, int(node.attr("group", 1)))


@converter("DeformConv")
def deform_conv(node: Node) -> relax.Expr:
    window = window_of(node, _kernel(node), node.rank(0) - 2)
    groups, offset_groups = int(node.attr("group", 1)), int(node.attr("offset_group", 1))
    mask = node.x(4) if node.has(4) else None
    return deformable_convolution(
        node, node.x(0), node.x(1), node.x(2), mask, _bias(node, 3), window, groups, offset_groups
    )


@converter("CausalConvWithState")
def causal_conv(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """Depthwise, looking back only; the last kernel - 1 places are handed on as state."""
    activation = node.attr("activation", "none")
    node.refuse_unless(activation in ("none", "silu", "swish"), f"expected activation none or silu, found {activation}")
    batch, channels, length = node.shape(0)
    back = node.shape(1)[2] - 1
    x = node.x(0)
    if node.has(3):
        past = same_sizes(node, node.x(3), [batch, channels, back], "past_state")
    else:
        past = node.emit(relax.op.zeros(relax.ShapeExpr([batch, channels, back]), node.dtype(0)))
    # Sizes before concatenating: a window of one element needs no state.
    whole = node.emit(relax.op.concat([past, x], 2)) if back else x
    window = Window((back + 1,), (1,), (1,), (0, 0))
    out = convolution(node, whole, node.x(1), _bias(node, 2), window, int(channels))
    if activation != "none":
        out = node.emit(relax.op.multiply(out, node.emit(relax.op.sigmoid(out))))
    if not back:
        return out, past

    def tail(x: te.Tensor) -> te.Tensor:
        start = x.shape[2] - back
        return te.compute([x.shape[0], x.shape[1], back], lambda n, c, i: x[n, c, i + start], name="state")

    return out, node.te(tail, whole)


def _kernel(node: Node) -> list[int]:
    """The kernel's sizes, which the weight knows."""
    shape, weight = node.shape(0), node.shape(1)
    node.refuse_unless(
        len(shape) > 2 and len(weight) == len(shape),
        f"expected x and weight of one rank from 3 on, found {len(shape)} and {len(weight)}",
    )
    node.refuse_unless(all(isinstance(d, int) for d in weight), "expected a weight of known sizes")
    kernel = list(node.attr("kernel_shape", weight[2:]))
    node.refuse_unless(
        kernel == list(weight[2:]), f"expected kernel_shape {list(weight[2:])} as the weight has, found {kernel}"
    )
    return kernel


def _bias(node: Node, index: int) -> relax.Expr | None:
    return node.x(index) if node.has(index) else None
