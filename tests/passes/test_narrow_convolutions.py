"""Convolutions at a precision below fp32: each by the way that is fastest there, and results near torch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import compile_in_process
from halo_tvm.phases import lower


def net() -> nn.Sequential:
    """Three channels; a kernel of 3 on an image; groups of four channels, which are joined; a stride; a kernel of 1."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=8),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(48, 40, 1),
    ).eval()


MATRIX = {"through windows": 2, "in tiles": 1, "matrix product of windows": 1, "matrix product": 1}
WAYS = [
    (
        "x86:avx512-bf16",
        "bf16",
        {"through windows": 1, "in tiles": 1, "through windows, in pairs": 2, "matrix product": 1},
    ),
    ("x86:avx512-vnni", "int8", MATRIX),
    ("x86:avx512-fp16", "fp16", MATRIX),
    ("x86:avx512-amx", "bf16", MATRIX),
    ("x86:avx512", "fp32", {"through windows": 3, "in tiles": 1, "matrix product": 1}),
]


@pytest.mark.parametrize(("target", "precision", "ways"), WAYS)
def test_the_way_of_each(target: str, precision: str, ways: dict[str, int]) -> None:
    imported = import_module(net(), (torch.randn(1, 3, 112, 112),))
    config = CompileConfig(model=imported.name, target=target, precision=precision)
    _, reports = lower(imported, Compilation.of(config))
    assert reports.optimise.others["channels_last"]["convolutions"] == ways


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "bound"), [("bf16", 2e-2), ("int8", 5e-2)])
def test_near_torch(precision: str, bound: float) -> None:
    dims = {0: torch.export.Dim("n", max=4)}
    model = net()
    imported = import_module(model, (torch.randn(2, 3, 30, 31),), dynamic_shapes=(dims,))
    program = compile_in_process(imported, precision=precision, force_precision=True)
    for shape in ((1, 3, 30, 31), (3, 3, 30, 31)):
        x = torch.randn(shape)
        (got,), expected = program(x.numpy()).values(), model(x).detach()
        assert torch.linalg.norm(torch.from_numpy(got) - expected) <= bound * torch.linalg.norm(expected)
