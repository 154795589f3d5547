"""Ways to grids of integers without a division: the same integers as with it."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.in_process import Program, compile_in_process
from halo_tvm.params import ParamSource, ParamTable


def program_of(emit, shape: tuple[int, ...], weights: dict[str, np.ndarray] | None = None) -> Program:
    """`emit(builder, x, *weights)`, of a float32 input x."""
    weights, builder = weights or {}, relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    held = [relax.Var(name, relax.TensorType(w.shape, str(w.dtype))) for name, w in weights.items()]
    with builder.function("main", [x, *held], attrs={"num_input": 1, "halo.params": list(weights)}):
        with builder.dataflow():
            out = builder.emit_output(emit(builder, x, *held))
        builder.emit_func_output(out)
    params = ParamTable({n: ParamSource(w.shape, str(w.dtype), lambda w=w: w) for n, w in weights.items()})
    inputs = (InputSpec("x", shape, "float32"),)
    return compile_in_process(ImportedModel("net", builder.get(), params, inputs, ("y",), {}, {}, {}, {}))


def to_grid(builder: relax.BlockBuilder, x: relax.Expr, scale: float, zero: int, dtype: str) -> relax.Expr:
    """QuantizeLinear as its importer spells it."""
    limits = np.iinfo(dtype)
    steps = builder.emit(relax.op.round(builder.emit(relax.op.divide(x, relax.const(scale, "float32")))))
    moved = builder.emit(relax.op.add(steps, relax.const(float(zero), "float32")))
    above = builder.emit(relax.op.maximum(moved, relax.const(float(limits.min), "float32")))
    inside = builder.emit(relax.op.minimum(above, relax.const(float(limits.max), "float32")))
    return builder.emit(relax.op.astype(inside, dtype))


def integers(x: np.ndarray, scale: float, zero: int, dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x / np.float32(scale)) + zero, limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize("dtype,zero", [("uint8", 0), ("uint8", 131), ("int8", -3), ("int16", 5), ("uint16", 40000)])
@pytest.mark.parametrize("scale", [0.1, 0.0078125, 0.0313372, 3.7, 1.7e-19, 1.0])
def test_every_middle_between_two_integers_goes_to_the_same_side(scale: float, dtype: str, zero: int) -> None:
    limits = np.iinfo(dtype)
    middles = np.unique(np.linspace(limits.min - zero - 2, limits.max - zero + 2, 4001).round()) + 0.5
    x = (middles * np.float64(np.float32(scale))).astype("float32")
    around = [x]
    for way in (np.inf, -np.inf):
        near = x
        for _ in range(3):
            near = np.nextafter(near, np.float32(way))
            around.append(near)
    x = np.concatenate([*around, np.float32([0.0, -0.0, 3e38, -3e38, np.inf, -np.inf])])
    program = program_of(lambda b, x: to_grid(b, x, scale, zero, dtype), x.shape)
    assert program.reports.optimise.others["round_to_grid"] == {"rounded": 1}
    np.testing.assert_array_equal(program(x=x)["y"], integers(x, scale, zero, dtype))


def test_what_is_no_number_becomes_the_least_integer() -> None:
    x = np.full(19, np.nan, "float32")
    program = program_of(lambda b, x: to_grid(b, x, 0.1, 7, "int8"), x.shape)
    np.testing.assert_array_equal(program(x=x)["y"], np.full(19, -128, "int8"))


def test_a_scale_goes_into_the_terms_of_a_sum() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.uniform(0.5, 2.0, 24).astype("float32"), "b": rng.standard_normal(24).astype("float32")}
    x = rng.standard_normal((5, 24)).astype("float32")

    def net(builder, x, w, b):
        scaled = builder.emit(relax.op.multiply(x, w))
        rectified = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(scaled, b))))
        return to_grid(builder, rectified, 0.02, 3, "uint8")

    program = program_of(net, x.shape, weights)
    assert program.reports.optimise.others["grid_scales"]["rewritten"] == {"scale in the terms of a sum": 1}
    wanted = integers(np.maximum(x * weights["w"] + weights["b"], 0), 0.02, 3, "uint8")
    np.testing.assert_array_equal(program(x=x)["y"], wanted)


def test_bytes_that_come_to_another_grid_keep_their_division() -> None:
    """Every second one lies in the middle between two integers of it."""
    x = np.arange(-128, 128, dtype="float32")

    def net(builder, x):
        held = builder.emit(relax.op.astype(builder.emit(relax.op.astype(x, "int8")), "float32"))
        return to_grid(builder, builder.emit(relax.op.multiply(held, relax.const(0.03, "float32"))), 0.06, 0, "int8")

    program = program_of(net, x.shape)
    assert not program.reports.optimise.others["grid_scales"]["rewritten"]
    wanted = integers(x * np.float32(0.03), 0.06, 0, "int8")
    np.testing.assert_array_equal(program(x=x)["y"], wanted)


def test_what_others_read_is_not_divided() -> None:
    x = np.linspace(-3, 3, 40, dtype="float32")
    weights = {"w": np.linspace(0.5, 2, 40, dtype="float32")}

    def net(builder, x, w):
        scaled = builder.emit(relax.op.multiply(x, w))
        held = builder.emit(relax.op.astype(to_grid(builder, scaled, 0.04, 0, "int8"), "float32"))
        return builder.emit(relax.op.add(held, scaled))

    program = program_of(net, x.shape, weights)
    assert not program.reports.optimise.others["grid_scales"]["rewritten"]
    scaled = x * weights["w"]
    np.testing.assert_allclose(program(x=x)["y"], integers(scaled, 0.04, 0, "int8") + scaled, rtol=1e-6)
