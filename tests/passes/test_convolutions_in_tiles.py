"""Which convolutions are computed in tiles, and that the nets they are in give torch's results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch")
from torch import nn
from tvm import tirx

from halo_tvm.errors import UsageError
from halo_tvm.importers.onnx import import_proto
from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import Program, compile_in_process
from halo_tvm.passes._winograd import axes_in_tiles
from halo_tvm.passes.channels_last import ChannelsLast
from halo_tvm.targets import read_host, resolve
from halo_tvm.winograd import FLOATS, INTEGERS

TARGET = resolve("cpu", cores=2)


class Residual(nn.Module):
    """Two convolutions, and their input added."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.two(torch.relu(self.one(x))))


NETS = {
    "residual": (Residual(32), (2, 32, 18, 21), 2),
    "batch norm and sigmoid linear units": (
        nn.Sequential(nn.Conv2d(16, 40, 3, padding=1, bias=False), nn.BatchNorm2d(40), nn.SiLU()),
        (1, 16, 30, 17),
        1,
    ),
    "tiles end where the image ends": (nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU()), (1, 16, 14, 18), 1),
    "a wave": (nn.Sequential(nn.Conv1d(40, 64, 3, padding=1), nn.ELU()), (2, 40, 203), 1),
    "a volume": (nn.Sequential(nn.Conv3d(16, 24, 3, padding=1), nn.ReLU()), (1, 16, 5, 13, 12), 1),
}


def tiled(program: Program) -> int:
    return program.reports.optimise.others["channels_last"]["convolutions"].get("in tiles", 0)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.sampled(2)
def test_equal_to_torch(kind: str) -> None:
    torch.manual_seed(0)
    net, shape, number = NETS[kind]
    x = torch.randn(shape)
    program = compile_in_process(import_module(net.eval(), (x,)))
    (got,) = program(x.numpy()).values()
    torch.testing.assert_close(torch.from_numpy(got), net(x).detach(), rtol=1e-4, atol=1e-4)
    assert tiled(program) == number
    names = [f.function for f in program.reports.schedule.functions]
    assert "search" not in {f.rule for f in program.reports.schedule.functions}
    assert len(names) <= 2 + number, names  # activations and the sum are stages; a transposition at each end


@pytest.mark.slow
def test_open_sizes() -> None:
    torch.manual_seed(0)
    dims = {0: torch.export.Dim("n", max=8), 2: torch.export.Dim("h", max=400), 3: torch.export.Dim("w", max=400)}
    net = Residual(16).eval()
    program = compile_in_process(import_module(net, (torch.randn(2, 16, 30, 31),), dynamic_shapes=(dims,)))
    assert tiled(program) == 2
    for shape in ((1, 16, 2, 3), (2, 16, 30, 31), (3, 16, 7, 50)):
        x = torch.randn(shape)
        (got,) = program(x.numpy()).values()
        torch.testing.assert_close(torch.from_numpy(got), net(x).detach(), rtol=1e-4, atol=1e-4)


def test_a_weight_of_bytes_is_read_in_tiles_and_through_windows() -> None:
    """Only the product of windows fills the 18 channels up to groups of four."""
    if not resolve("x86-64-v3").isa.requires <= read_host().flags:
        pytest.skip("this processor does not run x86-64-v3")
    rng = np.random.default_rng(0)
    weight, zero = rng.integers(-128, 128, (32, 18, 3, 3)).astype("int8"), np.uint8(9)
    x = rng.integers(0, 256, (1, 18, 56, 56)).astype("uint8")
    nodes = [
        helper.make_node("ConvInteger", ["x", "w", "z"], [name], strides=[stride, stride])
        for name, stride in (("close", 1), ("far", 2))
    ]
    infos = [
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in ("close", "far")],
    ]
    graph = helper.make_graph(
        nodes, "shared", *infos, [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(zero, "z")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    program = compile_in_process(import_proto(model, name="shared"), target="x86-64-v3")
    assert program.reports.optimise.others["channels_last"]["convolutions"] == {"in bytes, in tiles": 1, "in bytes": 1}
    shifted, exact = torch.from_numpy(x.astype("float64") - zero), torch.from_numpy(weight.astype("float64"))
    for stride, got in zip((1, 2), program(x=x).values()):
        np.testing.assert_array_equal(got, nn.functional.conv2d(shifted, exact, stride=stride).numpy())


@pytest.mark.parametrize(
    ("weight", "side", "changed", "expected"),
    [
        ((64, 64, 3, 3), 56, {}, 2),
        ((256, 256, 3, 3), 14, {}, 2),
        ((512, 512, 3, 3), 7, {}, 0),  # weights take longer to read than to multiply
        ((64, 64, 3, 3), 2, {}, 0),  # most of a tile is outside
        ((64, 64, 3, 3), 56, {"strides": (2, 2)}, 0),
        ((64, 64, 3, 3), 56, {"dilations": (2, 2)}, 0),
        ((64, 32, 3, 3), 56, {"groups": 2}, 0),
        ((64, 64, 5, 5), 56, {}, 0),
        ((64, 3, 3, 3), 56, {}, 0),
        ((64, 64, 5, 3), 56, {"strides": (2, 1)}, 1),
        ((64, 64, 3), 512, {"strides": (1,), "dilations": (1,)}, 1),
    ],
)
def test_where_it_pays(weight: tuple[int, ...], side: int, changed: dict[str, object], expected: int) -> None:
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, **changed}
    places = [tirx.IntImm("int64", side)] * (len(weight) - 2)
    assert axes_in_tiles(FLOATS, weight, attrs, tirx.IntImm("int64", 1), places, {}, TARGET) == expected


@pytest.mark.parametrize(
    ("weight", "side", "changed", "expected"),
    [
        ((64, 64, 3, 3), 56, {}, 2),
        ((256, 256, 3, 3), 14, {}, 2),
        ((512, 512, 3, 3), 7, {}, 0),  # factors take longer to read than is gained
        ((64, 8, 3, 3), 56, {}, 0),  # a vector has 16 words
        ((64, 64, 3, 3), 56, {"strides": (2, 2)}, 0),
        ((64, 64, 3), 512, {"strides": (1,), "dilations": (1,)}, 1),
    ],
)
def test_where_it_pays_in_bytes(weight: tuple[int, ...], side: int, changed: dict[str, object], expected: int) -> None:
    attrs = {"strides": (1, 1), "dilations": (1, 1), **changed}
    places, target = [tirx.IntImm("int64", side)] * (len(weight) - 2), resolve("x86-64-v3", cores=2)
    assert axes_in_tiles(INTEGERS, weight, attrs, tirx.IntImm("int64", 1), places, {}, target) == expected


def test_an_option_that_is_neither_true_nor_false() -> None:
    with pytest.raises(UsageError, match=r"expected winograd = true or false, found 'no': correct halo\.toml"):
        ChannelsLast(winograd="no")
