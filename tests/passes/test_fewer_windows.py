"""Slices behind convolutions: less padding where they drop windows of it, and no stage of the product elsewhere."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from graphs import context_of, small_model
from tolerances import assert_close
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import compile_in_process
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.passes import PASSES
from halo_tvm.passes.graph_pass import bindings
from halo_tvm.relay_ops.operator import attrs_of, operator_of

CONVOLUTION = {"layout": "first", "dilations": [1], "groups": 1}


def sliced(
    begin: int, drop: int, *, stride: int = 1, step: int = 1, shared: bool = False, length: int | str = "t"
) -> ImportedModel:
    """x [2, 6, t] -> part of a convolution by 4 elements, padded by 3 at both ends, times a number for each channel."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        w = m.weight("w", (8, 6, 4))
        y = m.op("convolution", m.inputs["x"], w, pads=[3, 3], strides=[stride], **CONVOLUTION)
        y = m.emit(relax.op.add(y, m.weight("b", (1, 8, 1))))
        y = m.emit(relax.op.multiply(m.weight("s", (8, 1)), y))
        end = y.ty.shape.values[2] - drop
        part = m.emit(relax.op.strided_slice(y, [2], [begin], [end], [step], assume_inbound=True))
        part = m.emit(relax.op.nn.relu(part))
        return {"z": part, "y": y} if shared else {"z": part}

    return small_model((InputSpec("x", (2, 6, length), "float32"),), body, t=(4, 40))


def after(model: ImportedModel) -> tuple[ImportedModel, dict[str, int], list[int]]:
    mod, report = PASSES["fewer_windows"]()(model.mod, context_of(model))
    (call,) = [b.value for b in bindings(mod["main"]) if operator_of(b.value) is not None]
    return dataclasses.replace(model, mod=mod), report["rewritten"], list(attrs_of(call)["pads"])


@pytest.mark.parametrize(
    ("begin", "drop", "stride", "pads"),
    [(0, 3, 1, [3, 0]), (0, 2, 1, [3, 1]), (3, 0, 1, [0, 3]), (1, 2, 1, [2, 1]), (0, 1, 2, [3, 1]), (1, 1, 3, [0, 0])],
)
@pytest.mark.parametrize("length", [17, "t"])
@pytest.mark.sampled(5)
def test_windows_that_a_slice_drops_are_not_computed(
    begin: int, drop: int, stride: int, pads: list[int], length: int | str
) -> None:
    model = sliced(begin, drop, stride=stride, length=17 if stride > 1 else length)
    changed, rewritten, found = after(model)
    assert rewritten == {"windows that a slice drops": 1} and found == pads
    x = np.random.default_rng(0).standard_normal((2, 6, 17)).astype("float32")
    want = evaluate(model, {"x": x})["z"]
    np.testing.assert_allclose(evaluate(changed, {"x": x})["z"], want, rtol=1e-5, atol=1e-5)
    program = compile_in_process(model)
    assert {f.rule for f in program.reports.schedule.functions} <= {"convolution", "elementwise"}
    assert_close(program(x=x)["z"], want)


@pytest.mark.parametrize(
    "left",
    [
        {"begin": 0, "drop": 4},
        {"begin": 0, "drop": 2, "stride": 2},
        {"begin": 0, "drop": 3, "step": 2},
        {"begin": 4, "drop": 0},
    ]
    + [{"begin": 0, "drop": 3, "shared": True}],
    ids=["of the input", "of the input, with strides", "with a step", "in front", "what others read"],
)
def test_others_are_cut_behind_the_convolution(left: dict[str, int]) -> None:
    """A slice from the beginning reads at its own place: it is no stage of a product for all that."""
    model = sliced(**left, length=17)
    _, rewritten, pads = after(model)
    assert not rewritten and pads == [3, 3]
    x = np.random.default_rng(0).standard_normal((2, 6, 17)).astype("float32")
    program = compile_in_process(model)
    assert {f.rule for f in program.reports.schedule.functions} <= {"convolution", "elementwise"}
    want = evaluate(model, {"x": x})
    for name, value in program(x=x).items():
        assert_close(value, want[name])


@pytest.mark.parametrize("dynamic", [None, ({2: torch.export.Dim("t", min=2, max=64)},)], ids=["known", "open"])
def test_a_causal_convolution_of_torch_is_one_kernel(dynamic: object) -> None:
    class Causal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv1d(16, 16, 4, padding=3, groups=16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(self.convolution(x)[..., : x.shape[-1]]).transpose(1, 2)

    net, x = Causal().eval(), torch.randn(1, 16, 30)
    program = compile_in_process(import_module(net, (x,), dynamic_shapes=dynamic))
    rules = [function.rule for function in program.reports.schedule.functions]
    assert sorted(rules) == ["channelwise", "elementwise"]  # the other one puts the channels last
    (found,) = program(x.numpy()).values()
    assert_close(found, net(x).detach().numpy())
