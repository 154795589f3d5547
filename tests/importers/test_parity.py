"""One network by torch.export and by ONNX: equal operators, equal rules, equal numbers, NaN and infinities included."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.imported import ImportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import compile_in_process
from halo_tvm.phases import lower, schedule

IMAGE, SIGNAL, VOLUME, ROWS = (2, 8, 12, 12), (2, 8, 20), (1, 4, 6, 6, 6), (2, 6, 16)


class Recurrent(nn.Module):
    """The sequence of a recurrent layer, without its states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


# A network of one idea each, with the shape of its input.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1)
        ),
        IMAGE,
    ),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), IMAGE),
    "grouped, dilated": (lambda: nn.Conv2d(8, 4, 3, padding=2, dilation=2, groups=2), IMAGE),
    "same": (lambda: nn.Conv1d(8, 4, 4, padding="same"), SIGNAL),
    "speech": (lambda: nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.GELU(), nn.Conv1d(16, 16, 3, 2, 1)), SIGNAL),
    "volume": (lambda: nn.Conv3d(4, 8, 3, padding=1), VOLUME),
    "transposed": (lambda: nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "upsampling": (lambda: nn.ConvTranspose2d(8, 4, 2, stride=2), IMAGE),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), IMAGE),
    "max pool, up": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "mean pool": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "mean pool of padding": (lambda: nn.AvgPool1d(3, 2, 1), SIGNAL),
    "whole image": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d(3), IMAGE),
    "layer norm": (lambda: nn.LayerNorm(16), ROWS),
    "instance norm": (lambda: nn.InstanceNorm2d(8, affine=True), IMAGE),
    "lstm": (lambda: Recurrent(nn.LSTM(16, 8, 2, bidirectional=True)), ROWS),
    "gru": (lambda: Recurrent(nn.GRU(16, 8)), ROWS),
    "rnn": (lambda: Recurrent(nn.RNN(16, 8)), ROWS),
    "encoder": (lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), ROWS),
    "resize": (lambda: Function(lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear")), IMAGE),
    "resize to nearest": (lambda: nn.Upsample(scale_factor=2.0), IMAGE),
    "resize by cubes": (lambda: nn.Upsample(size=(7, 17), mode="bicubic", align_corners=True), IMAGE),
}


def both(module: nn.Module, x: torch.Tensor) -> tuple[ImportedModel, ImportedModel]:
    """The module imported by torch.export, and by ONNX."""
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False, opset_version=17, input_names=["x"])
    return import_module(module, (x,)), import_proto(onnx.load_from_string(file.getvalue()), name="read")


def structure(imported: ImportedModel) -> tuple[dict[str, int], Counter[str]]:
    """(halo operators, rules of the kernels) of a compilation that stops before code."""
    compilation = Compilation.of(CompileConfig(model=imported.name, threads=1, records=False))
    mod, reports = lower(imported, compilation)
    _, report = schedule(mod, compilation)
    return reports.lift.operators, Counter(report.rules)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sampled(7, 14)
def test_roads_meet(name: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    module, x = make().eval(), torch.randn(shape)
    exported, read = both(module, x)
    assert structure(exported) == structure(read)


@pytest.mark.filterwarnings("ignore")
def test_numbers_are_equal_and_special_ones_stay() -> None:
    """A NaN and infinities go the same way by both roads, as they go in torch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.AvgPool2d(2)).eval()
    x = torch.randn(IMAGE)
    x[0, 0, 0, 0], x[0, 0, 6, 6], x[1, 3, 6, 6] = math.nan, math.inf, -math.inf
    with torch.no_grad():
        wanted = module(x).numpy()
    for imported in both(module, torch.randn(IMAGE)):
        (found,) = compile_in_process(imported, threads=1)(x.numpy()).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
