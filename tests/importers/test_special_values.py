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


def test_nan_survives_the_extremes_of_what_is_scattered() -> None:
    def function(x, at, updates):
        return {how: x.scatter_reduce(0, at, updates, how) for how in ("amax", "amin", "prod")}

    given = torch.tensor([NAN, 1, 2, 3]), torch.tensor([0, 1, 1, 3]), torch.tensor([1, NAN, 5, 4])
    found = compiled(function, *given)
    for how, want in function(*given).items():
        np.testing.assert_array_equal(found[how], want.numpy(), err_msg=how)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_scattered_in_float32(dtype) -> None:
    """Whole rows and single elements; torch's own sums of rows stall."""

    def function(x, at, rows, ones, steps):
        added, times = x.scatter_add(0, at, ones), (x + 1).scatter_reduce(0, at, steps, "prod")
        return {"added": added, "rows": x.index_add(0, rows, ones), "times": times}

    x, ones = torch.zeros(3, 8, dtype=dtype), torch.ones(4096, 8, dtype=dtype)
    steps = torch.where(torch.arange(4096)[:, None] < 8, 1 + 3 * torch.finfo(dtype).eps, 1.0).expand(4096, 8).to(dtype)
    at = (torch.arange(32768) % 8 % 3).reshape(4096, 8)
    given = x, at, torch.ones(4096, dtype=torch.int64), ones, steps
    found = compiled(function, *given)
    for name, want in function(*(a.double() if a.is_floating_point() else a for a in given)).items():
        np.testing.assert_array_equal(found[name], to_array(want.to(dtype)), err_msg=name)


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


@pytest.mark.slow
def test_operands_at_the_edges_of_what_operators_take() -> None:
    """No elements, no axes, logarithms that are whole, and pixels that a product in float32 is beside."""
    nearest = torch.nn.functional.interpolate

    def function(x, scalar, row, image, powers):
        return {
            "any of none": torch.any(x[x > 100]),
            "any of no row": torch.any(x[3:], 0),
            "all of no row": torch.all(x[3:], 0),
            "softmax": torch.softmax(scalar, 0),
            "log_softmax": torch.log_softmax(scalar, 0),
            "pixel_shuffle": torch.nn.functional.pixel_shuffle(image, 2),
            "nearest by a scale": nearest(row, scale_factor=1.1),
            "nearest of two": nearest(row[..., :2], size=82),
            "exact of nine": nearest(row[..., :9], size=82, mode="nearest-exact"),
            "log2": torch.log2(powers),
            "log10": torch.log10(10 ** torch.arange(5.0)),
        }

    inputs = (
        torch.arange(12.0).reshape(3, 4),
        torch.tensor(3.0),
        torch.arange(40.0).reshape(1, 1, 40),
        torch.arange(16.0).reshape(4, 2, 2),
        2.0 ** torch.arange(-20, 20),
    )
    expected = function(*inputs)
    for name, found in compiled(function, *inputs).items():
        np.testing.assert_array_equal(found, to_array(expected[name]), err_msg=name)
