"""Operators spelled anew for torch.export: cells in steps that trace with symbolic sizes (torch's own ask for numbers),
the convolution that only traces hold, and the grouped product that traces in bfloat16 only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...errors import UnsupportedModel
from ..torch_export.library import define_operators


def lstm_cell(
    x: Tensor, state: Sequence[Tensor], w_x: Tensor, w_h: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM. x [batch, in]; state (h, c), each [batch, width]; gates in the order i, f, g, o."""
    hidden, cell = state
    gates = linear(x, w_x, b_x) + linear(hidden, w_h, b_h)
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def gru_cell(
    x: Tensor, hidden: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> tuple[Tensor]:
    """One step of a GRU. x [batch, in], hidden [batch, width]; gates in the order r, z, n."""
    r_x, z_x, n_x = linear(x, w_x, b_x).chunk(3, 1)
    r_h, z_h, n_h = linear(hidden, w_h, b_h).chunk(3, 1)
    update = torch.sigmoid(z_x + z_h)
    new = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return ((1 - update) * new + update * hidden,)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *_backend: bool,
) -> tuple[Tensor]:
    """aten::_convolution as the operator of its rank; x [batch, channels, ...], weight [out, in / groups, ...]."""
    rank = len(stride)
    if transposed:
        transpose = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[rank - 1]
        return (transpose(x, weight, bias, stride, padding, output_padding, groups, dilation),)
    return ((torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1](x, weight, bias, stride, padding, dilation, groups),)


def grouped_product(
    x: Tensor, weight: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: object = None
) -> tuple[Tensor]:
    """aten::_grouped_mm: rows up to offs[g] and behind offs[g - 1] of x [rows, k], times weight[g] of [g, k, n]."""
    if offs is None or bias is not None or out_dtype is not None or x.dim() != 2 or weight.dim() != 3:
        raise UnsupportedModel(
            "expected a grouped product of rows [rows, k] with weights [groups, k, n] and offsets, found one of ranks "
            f"{x.dim()} and {weight.dim()} or with a bias: export the model as ONNX"
        )
    define_operators()
    return (torch.ops.transformers.grouped_mm_fallback(x, weight, offs),)


CELLS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "aten::lstm_cell": lstm_cell,
    "aten::gru_cell": gru_cell,
    "aten::_convolution": convolution,
    "aten::_grouped_mm": grouped_product,
}
