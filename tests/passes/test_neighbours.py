"""Convolutions with few output channels compute several neighbouring places as channels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import Program, compile_in_process

NETS = {
    "an image of three channels": (nn.Sequential(nn.Conv2d(8, 3, 9, padding=4), nn.Tanh()), (2, 8, 11, 20)),
    "places that are cut off": (nn.Sequential(nn.Conv2d(5, 3, 5, padding=2), nn.Sigmoid()), (1, 5, 7, 17)),
    "a wave": (nn.Sequential(nn.Conv1d(16, 1, 7, padding=3), nn.ReLU(), nn.Conv1d(1, 4, 3)), (1, 16, 101)),
    "strides and no padding": (nn.Sequential(nn.Conv2d(4, 2, (3, 7), (2, 3)), nn.Hardtanh()), (1, 4, 9, 40)),
    "places of a short row": (nn.Conv2d(4, 1, 3, padding=1), (1, 4, 6, 3)),
    "a volume": (nn.Sequential(nn.Conv3d(6, 2, 3, padding=1, bias=False), nn.SiLU()), (1, 6, 4, 5, 12)),
    "narrow in the middle": (
        nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), nn.GELU(), nn.Conv2d(4, 24, 3, padding=1)),
        (1, 3, 12, 30),
    ),
}


def check(program: Program, net: nn.Module, x: torch.Tensor) -> None:
    (got,) = program(x.numpy()).values()
    torch.testing.assert_close(torch.from_numpy(got), net(x).detach(), rtol=1e-4, atol=1e-4)


def several(program: Program) -> int:
    """Convolutions that compute several places at once."""
    return program.reports.optimise.others["channels_last"]["convolutions"].get("through windows of several places", 0)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.sampled(2)
def test_equal_to_torch(kind: str) -> None:
    torch.manual_seed(0)
    net, shape = NETS[kind]
    x = torch.randn(shape)
    program = compile_in_process(import_module(net.eval(), (x,)))
    check(program, net, x)
    assert several(program) == 1 + (kind == "a wave")


def test_bias_and_activation_stay_stages_of_the_convolution() -> None:
    net, shape = NETS["an image of three channels"]
    program = compile_in_process(import_module(net.eval(), (torch.randn(shape),)))
    names = [f.function for f in program.reports.schedule.functions]
    assert any("convolution" in name and "add" in name and "tanh" in name for name in names), names
    assert len(names) == 3, names  # and a transposition at each end


def test_open_sizes() -> None:
    """A batch and places whose numbers are open, down to one place."""
    torch.manual_seed(0)
    n, w = torch.export.Dim("n", min=1, max=8), torch.export.Dim("w", min=1, max=4000)
    net = nn.Sequential(nn.Conv1d(8, 2, 9, padding=4), nn.Tanh()).eval()
    program = compile_in_process(import_module(net, (torch.randn(2, 8, 50),), dynamic_shapes=({0: n, 2: w},)))
    assert several(program) == 1
    for shape in ((1, 8, 1), (2, 8, 50), (3, 8, 333)):
        check(program, net, torch.randn(shape))


class TwoStrides(nn.Module):
    """One weight, read at every place and at every second one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 8, 3, 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        close, far = (nn.functional.conv2d(x, self.weight, stride=(1, step)) for step in (1, 2))
        return torch.cat((close, far), 3)


def test_a_weight_that_is_read_with_two_strides() -> None:
    torch.manual_seed(0)
    net, x = TwoStrides().eval(), torch.randn(1, 8, 6, 72)
    program = compile_in_process(import_module(net, (x,)))
    assert several(program) == 2
    check(program, net, x)


def test_enough_channels_are_computed_place_by_place() -> None:
    net = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 3, 1), nn.Conv2d(3, 3, 3, groups=3)).eval()
    assert several(compile_in_process(import_module(net, (torch.randn(1, 8, 9, 20),)))) == 0
