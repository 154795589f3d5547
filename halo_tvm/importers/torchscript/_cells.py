"""Recurrent cells in operators that torch traces with symbolic sizes; its own cells ask for numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear


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


CELLS: dict[str, Callable[..., tuple[Tensor, ...]]] = {"aten::lstm_cell": lstm_cell, "aten::gru_cell": gru_cell}
