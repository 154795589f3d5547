"""Special values and 16-bit sums by the torch road: NaN, infinities, division by zero, sums beyond a half's range."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from halo_tvm.importers.torch_export import import_module
from halo_tvm.importers.torch_export._call import to_array
from halo_tvm.in_process import compile_in_process

NAN, INF = float("nan"), float("inf")


class Outputs(torch.nn.Module):
    """A function that returns tensors by name, as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def compiled(function, *inputs):
    program = compile_in_process(import_module(Outputs(function).eval(), inputs), threads=1, level=2)
    return program(*(to_array(x) for x in inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_survives_and_divisions_are_as_in_torch(dtype) -> None:
    def function(x):
        return {
            "relu": x.relu(),
            "clamp": x.clamp(-1, 1),
            "maximum": torch.maximum(x, x.flip(1)),
            "amax": x.amax(1),
            "min": x.min(1)[0],
            "argmax": x.argmax(1),
            "bool": x.bool(),
            "elu": torch.nn.functional.elu(x),
            "hardswish": torch.nn.functional.hardswish(x),
            "floor_divide": x // 0.1,
            "remainder": torch.remainder(5.0, x),
            "logsumexp": torch.full_like(x, -INF).logsumexp(1),
            "max_pool": torch.nn.functional.max_pool2d(x[None, None], (1, 2), 1)[0],
            "times_zero": x * 0.0,
            "zero_over": 0.0 / x,
            "over_zero": x / 0.0,
            "gelu": torch.nn.functional.gelu(-x.abs()),
            "gelu_tanh": torch.nn.functional.gelu(x, approximate="tanh"),
            "expand": x[:, :1].expand(2, 40),
            "replicate": torch.nn.functional.pad(x, (3, 20), mode="replicate"),
        }

    x = torch.tensor([[NAN, 1, -2, NAN, INF], [3, NAN, 0.5, -INF, 1.0]]).to(dtype)
    found = compiled(function, x)
    for name, want in function(x).items():
        np.testing.assert_allclose(found[name].astype("float64"), want.double().numpy(), rtol=1e-2, err_msg=name)


def test_variance_of_axes_of_dynamic_size() -> None:
    """Its count is a product of sizes, as is the number of rows that the squares are made of."""
    axes = (dict.fromkeys(range(3), torch.export.Dim.AUTO),)
    module = Outputs(lambda x: {"all": x.var((0, 1, 2)), "none": (x[:, :0] * 1.0).var((0, 1, 2))})
    model = import_module(module.eval(), (torch.randn(4, 3, 5),), dynamic_shapes=(axes,))
    x = torch.randn(5, 6, 7)
    found = compile_in_process(model, threads=1, level=2)(x.numpy())
    np.testing.assert_allclose(found["all"], x.var((0, 1, 2)).numpy(), rtol=1e-5)
    assert np.isnan(found["none"])


def test_places_of_the_largest_are_those_of_nan() -> None:
    def function(x):
        whole = torch.nn.functional.max_pool2d(x, (1, 2), 1, return_indices=True)
        parts = torch.nn.functional.adaptive_max_pool2d(x, (2, 2), return_indices=True)
        return {"places": whole[1], "adaptive_places": parts[1]}

    x = torch.tensor([[[[NAN, NAN, -2, NAN, INF], [3, NAN, 0.5, -INF, 1.0]]]])  # of several it is the last
    for (name, want), found in zip(function(x).items(), compiled(function, x).values()):
        np.testing.assert_array_equal(found, want.numpy(), err_msg=name)


def test_integers_divided_by_zero_give_zero() -> None:
    def function(a, b):
        return (torch.div(a, b, rounding_mode="floor"), torch.div(a, b, rounding_mode="trunc"), a % b, torch.fmod(a, b))

    lowest = torch.iinfo(torch.int64).min
    a, b = torch.tensor([7, -7, 7, lowest]), torch.tensor([0, 2, -2, -1])
    found = [value.tolist() for value in compiled(function, a, b).values()]
    assert found == [[0, -4, -4, lowest], [0, -3, -3, lowest], [0, 1, -1, 0], [0, -1, 1, 0]]


def test_halves_are_summed_in_float32() -> None:
    x = torch.full((2, 2000), 100.0, dtype=torch.float16)

    def function(x):
        return x.mean(1), x.var(1), x.cumsum(1)[:, 400], (x / 8000).sum(1)

    for found, want in zip(compiled(function, x).values(), function(x), strict=True):
        np.testing.assert_allclose(found.astype("float64"), want.double().numpy(), rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_halves_are_softened_and_normed_in_float32(dtype) -> None:
    """Of large numbers, and of numbers so small that what a norm adds to their squares is seen."""

    def function(x, small):
        return x.softmax(1), x.log_softmax(1), torch.rms_norm(small, (1000,)), torch.rms_norm(x, (1000,))

    x = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    x, small = (20 * x).to(dtype), (x / 1000).to(dtype)
    wanted = (*function(x.double(), small.double())[:2], *function(x, small)[2:])
    for found, want in zip(compiled(function, x, small).values(), wanted, strict=True):
        step = 2 * torch.finfo(dtype).eps
        np.testing.assert_allclose(found.astype("float64"), want.double().numpy(), rtol=step, atol=step / 100)


def test_functions_of_bfloat16_inside_of_products_are_right() -> None:
    """One value of each: TVM's lowering of bfloat16 repeats what it rounds, and what is bound in it breaks."""

    def function(x):
        return {"glu": torch.nn.functional.glu(x), "silu": torch.nn.functional.silu(x) * x.exp().tanh()}

    x = torch.tensor([[-1.8828, -0.3926], [0.75, 2.5]], dtype=torch.bfloat16)
    found = compiled(function, x)
    for name, want in function(x).items():
        np.testing.assert_allclose(found[name].astype("float64"), want.double().numpy(), rtol=2e-2, err_msg=name)
