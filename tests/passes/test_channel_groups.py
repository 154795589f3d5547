"""Instance and group norms between convolutions, whose sums run with the channels last."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import Program, compile_in_process


def between(norm: nn.Module, rank: int) -> nn.Module:
    """A convolution of 3 channels to 24, the norm with weights of its own, and a convolution to 5."""
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    for weight in norm.parameters():
        nn.init.normal_(weight)
    return nn.Sequential(kind(3, 24, 3, padding=1), norm, nn.ReLU(), kind(24, 5, 3)).eval()


def check(program: Program, net: nn.Module, x: torch.Tensor) -> None:
    got = next(iter(program(x.numpy()).values()))
    torch.testing.assert_close(torch.from_numpy(got), net(x).detach(), rtol=1e-4, atol=1e-4)


CASES = {
    "instance": (lambda: nn.InstanceNorm2d(24, affine=True), (2, 3, 10, 7)),
    "instance, nothing to scale": (lambda: nn.InstanceNorm2d(24), (1, 3, 9, 33)),
    "groups": (lambda: nn.GroupNorm(6, 24), (2, 3, 10, 7)),
    "one group": (lambda: nn.GroupNorm(1, 24), (2, 3, 5, 8)),
    "signal": (lambda: nn.GroupNorm(24, 24), (2, 3, 1024)),
    "volume": (lambda: nn.GroupNorm(8, 24), (1, 3, 4, 5, 6)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2, 4)
def test_norms_keep_the_channels_last(case: str) -> None:
    """Equal to torch; nothing is transposed but the input and the output, and no row of an image is reduced."""
    torch.manual_seed(0)
    norm, shape = CASES[case]
    net, x = between(norm(), len(shape) - 2), torch.randn(shape)
    program = compile_in_process(import_module(net, (x,)))
    check(program, net, x)
    report = program.reports.schedule
    assert "row_reduction" not in report.rules, report.rules
    assert sum("transpose" in f.function for f in report.functions) == 2, report.functions


@pytest.mark.slow
def test_a_signal_of_a_prime_length_is_reduced_as_rows() -> None:
    """One chain of additions along all places would lose digits: the rows are summed in parts."""
    torch.manual_seed(0)
    net, x = between(nn.GroupNorm(4, 24), 1), torch.randn(2, 3, 1009)
    program = compile_in_process(import_module(net, (x,)))
    check(program, net, x)
    assert "row_reduction" in program.reports.schedule.rules


@pytest.mark.slow
@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(24, affine=True), nn.GroupNorm(6, 24)])
def test_open_images(norm: nn.Module) -> None:
    torch.manual_seed(0)
    net = between(norm, 2)
    n, h, w = (torch.export.Dim(name, min=least, max=200) for name, least in (("n", 1), ("h", 4), ("w", 4)))
    program = compile_in_process(import_module(net, (torch.randn(2, 3, 10, 6),), dynamic_shapes=({0: n, 2: h, 3: w},)))
    for shape in ((2, 3, 10, 6), (3, 3, 5, 117)):
        check(program, net, torch.randn(shape))


def test_a_mean_far_from_zero_keeps_its_digits() -> None:
    """Sums of sums: an image of 40 000 places with a mean a hundred times its deviation, against float64."""
    torch.manual_seed(0)
    net, x = between(nn.InstanceNorm2d(24, affine=True), 2), torch.randn(1, 3, 200, 200)
    with torch.no_grad():
        net[0].bias += 100.0
    program = compile_in_process(import_module(net, (x,)))
    got = next(iter(program(x.numpy()).values()))
    wanted = net.double()(x.double()).detach().float()
    torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-3, atol=1e-3)
