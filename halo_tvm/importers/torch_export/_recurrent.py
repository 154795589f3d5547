"""Recurrent layers while torch.export traces: torch walks their steps, and so fixes the length; one operator keeps it.

Inside `whole_layers()` a call of torch's LSTM, GRU or RNN becomes an operator halo_tvm::lstm, gru, rnn_tanh or
rnn_relu with the arguments and results of torch's own, whose shapes follow without walking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
_SCHEMA = (
    "(Tensor input, {hx} hx, Tensor[] params, bool has_biases, SymInt num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first) -> ({results})"
)


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
    found = {}
    for name, states in _STATES.items():
        schema = _SCHEMA.format(hx="Tensor" if states == 1 else "Tensor[]", results="Tensor" + ", Tensor" * states)
        layer = getattr(torch, name)
        whole = torch.library.custom_op(f"halo_tvm::{name}", _called(layer), mutates_args=(), schema=schema)
        whole.register_fake(_results)
        found[getattr(torch._VF, name)] = getattr(torch.ops.halo_tvm, name).default
    return found


def _called(layer: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """`layer` as a function of Python, which a custom operator has to be."""
    return lambda *args: layer(*args)


def _results(x: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    states = [hx] if isinstance(hx, Tensor) else hx
    bidirectional = rest[4]
    sequence = x.new_empty([*x.shape[:2], states[0].shape[-1] * (2 if bidirectional else 1)])
    return sequence, *(torch.empty_like(state) for state in states)
