"""torch's recurrent layers through torch.export: one halo operator a layer, with the numbers of eager torch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import compile_in_process


class Stack(torch.nn.Module):
    """Every kind of layer once: deep, in both directions, batch first, without biases, with a given state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(8, 5, bias=False)
        self.rnn = torch.nn.RNN(5, 4, bidirectional=True, nonlinearity="relu")
        self.tail = torch.nn.LSTM(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.lstm(x)
        y, last = self.gru(y.transpose(0, 1))
        y, _ = self.rnn(y)
        z, state = self.tail(y, (h[:1], c[1:2]))
        return z, *state, h, c, last


@pytest.mark.slow
def test_layers_are_one_operator_each_at_any_length() -> None:
    torch.manual_seed(0)
    module = Stack().eval()
    sizes = {0: torch.export.Dim("b", min=1, max=8), 1: torch.export.Dim("l", min=2, max=40)}
    imported = import_module(module, (torch.randn(2, 5, 3),), dynamic_shapes=(sizes,))
    program = compile_in_process(imported, threads=1)
    assert program.reports.lift.operators == {"lstm": 3, "gru": 1, "rnn": 1}
    for batch, length in ((1, 2), (3, 17)):
        x = torch.randn(batch, length, 3)
        with torch.no_grad():
            wanted = module(x)
        for found, expected in zip(program(x.numpy()).values(), wanted, strict=True):
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_projected_state_is_computed_all_the_same() -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(3, 4, proj_size=2).eval()
    x = torch.randn(3, 2, 3)
    with torch.no_grad():
        wanted, _ = module(x)
    found = compile_in_process(import_module(module, (x,)), threads=1)(x.numpy())
    np.testing.assert_allclose(next(iter(found.values())), wanted.numpy(), rtol=1e-5, atol=1e-6)
