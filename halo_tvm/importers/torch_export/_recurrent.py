"""Recurrent layers while torch.export traces: torch walks their steps, and so fixes the length; one operator keeps it.

Inside `whole_layers()` a call of torch's LSTM, GRU or RNN becomes an operator halo_tvm::lstm, gru, rnn_tanh or
rnn_relu with the arguments and results of torch's own, whose shapes follow without walking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ONE_STATE = ("gru", "rnn_tanh", "rnn_relu")


class whole_layers(TorchFunctionMode):
    """Recurrent layers called inside become operators of one node each."""

    def __init__(self) -> None:
        super().__init__()
        self._own = _operators()  # ahead: Dynamo, which traces the graphs of control flow through here, registers none

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        own = self._own.get(function)
        # torch's own does packed sequences, which pass their batch sizes in between, and projections of the state.
        if own is not None and isinstance(args[3], bool) and _is_plain(args[1]):
            x, hx, params, *rest = args
            return own(x, list(hx) if isinstance(hx, list | tuple) else hx, list(params), *rest)
        return function(*args, **(kwargs or {}))


def _is_plain(hx: object) -> bool:
    return isinstance(hx, Tensor) or hx[0].shape[-1] == hx[1].shape[-1]


@cache
def _operators() -> dict[Callable[..., object], Callable[..., object]]:
    """torch's function of a layer -> the operator that stands for it; they are registered once."""

    def lstm(
        input: Tensor,
        hx: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return torch.lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)

    whole = torch.library.custom_op("halo_tvm::lstm", lstm, mutates_args=())
    whole.register_fake(
        lambda x, hx, params, *rest: (_sequence(x, hx[0], rest[4]), torch.empty_like(hx[0]), torch.empty_like(hx[1]))
    )
    found = {torch._VF.lstm: torch.ops.halo_tvm.lstm.default}
    for name in _ONE_STATE:
        found[getattr(torch._VF, name)] = _with_one_state(name, getattr(torch, name))
    return found


def _with_one_state(name: str, function: Callable[..., object]) -> Callable[..., object]:
    def layer(
        input: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor]:
        return function(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)

    whole = torch.library.custom_op(f"halo_tvm::{name}", layer, mutates_args=())
    whole.register_fake(lambda x, hx, params, *rest: (_sequence(x, hx, rest[4]), torch.empty_like(hx)))
    return getattr(torch.ops.halo_tvm, name).default


def _sequence(x: Tensor, state: Tensor, bidirectional: bool) -> Tensor:
    return x.new_empty([*x.shape[:2], state.shape[-1] * (2 if bidirectional else 1)])
