"""Graphs that look like an operator, or like channels that can move, and are not: axes, ranks, widths are compared."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import compile_in_process
from halo_tvm.passes import Context
from halo_tvm.passes.pipeline import LIFT, Pipeline
from halo_tvm.targets import resolve


class OtherRotation(torch.nn.Module):
    """Interleaved rotary embedding, tables and all, whose pairs are stacked on the axis in front of the last."""

    axis = -2

    def forward(self, x, angle):
        cos, sin = (torch.stack((table, table), -1).flatten(-2) for table in (angle.cos(), angle.sin()))
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), self.axis).flatten(-2)
        return x * cos + turned * sin


class CountedRotation(OtherRotation):
    """The same axis, counted from the front."""

    axis = 3


class Rotation(OtherRotation):
    """The last axis, where pairs stand: this one is a rotary embedding."""

    axis = -1


class HigherRank(torch.nn.Module):
    """A convolution's result beside an operand with an axis more."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 4, 3, padding=1)

    def forward(self, x, y):
        return self.conv(x) + y


class OneColumnGate(torch.nn.Module):
    """A gate of one column that is broadcast over the hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = torch.nn.Linear(8, 1), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class EveryGateOfEveryRow(torch.nn.Module):
    """Rows of the gate along one axis, what they gate along another."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        gate = torch.nn.functional.silu(self.gate(x))
        return self.down(gate.reshape(-1, 1, 16) * self.up(x).reshape(1, -1, 16))


class OtherHalves(torch.nn.Module):
    """A gate and what it gates are halves of rows of another width than the linear's."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(8, 8)

    def forward(self, x):
        gate, up = self.up(x).reshape(2, 6, 8).chunk(2, -1)
        return self.down((torch.nn.functional.silu(gate) * up).reshape(2, 3, 8))


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (OtherRotation, [(2, 3, 5, 8), (5, 4)]),
        (CountedRotation, [(2, 3, 5, 8), (5, 4)]),
        (OtherHalves, [(2, 3, 8)]),
        (HigherRank, [(2, 3, 6), (5, 2, 4, 6)]),
        (OneColumnGate, [(2, 3, 8)]),
    ],
)
@pytest.mark.sampled(2)
def test_what_only_looks_like_it_is_left_alone(module, shapes) -> None:
    torch.manual_seed(0)
    module = module().eval()
    inputs = tuple(torch.randn(shape) for shape in shapes)
    program = compile_in_process(import_module(module, inputs), threads=1)
    (found,) = program(*(x.numpy() for x in inputs)).values()
    with torch.no_grad():
        np.testing.assert_allclose(found, module(*inputs).numpy(), rtol=1e-4, atol=1e-5)


def lifted(module, inputs, **options):
    """The module behind the lifts, the report of the lifts, and the program."""
    imported = import_module(module, inputs, **options)
    context = Context(imported.params, resolve("cpu"), imported.ranges, imported.typical)
    mod, reports = Pipeline.of(3).run(LIFT, imported.mod, context)
    return mod, reports["lift"], compile_in_process(imported, threads=1)


def test_a_gate_that_meets_every_row_is_refused_at_an_open_number_of_rows() -> None:
    torch.manual_seed(0)
    module = EveryGateOfEveryRow().eval()
    _, report, program = lifted(module, (torch.randn(5, 8),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    assert [r["reason"].partition(", got")[0] for r in report["rejected"]] == [
        "the gate and what it gates must have the shape of their product"
    ]
    x = torch.randn(3, 8)
    (found,) = program(x.numpy()).values()
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_what_is_it_is_lifted() -> None:
    """Beside `OtherRotation`: tables that are written once for each member of a pair, computed in the graph."""
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 5, 8), torch.randn(5, 4))
    with torch.no_grad():
        wanted = Rotation()(*inputs).numpy()
    mod, _, program = lifted(Rotation().eval(), inputs)
    assert "halo.rotary" in mod.script()
    (found,) = program(*(x.numpy() for x in inputs)).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_attention_of_rank_three_over_keys_of_one_batch() -> None:
    """Every row of an open batch reads one set of keys and values, whose batch of 1 is broadcast."""

    class Shared(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v

    def inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, length, 16), torch.randn(1, 7, 16), torch.randn(1, 7, 16)

    torch.manual_seed(0)
    dynamic = torch.export.Dim.DYNAMIC
    shapes = ({0: dynamic(min=1, max=8), 1: dynamic(min=1, max=16)}, None, None)
    program = compile_in_process(import_module(Shared().eval(), inputs(3, 5), dynamic_shapes=shapes), threads=1)
    for batch, length in ((3, 5), (1, 4), (8, 1)):
        given = inputs(batch, length)
        (found,) = program(*(x.numpy() for x in given)).values()
        np.testing.assert_allclose(found, Shared()(*given).numpy(), rtol=1e-5, atol=1e-6)
