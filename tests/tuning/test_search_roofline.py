"""The least a task can take: counted work under measured ceilings."""

import dataclasses

import landscape
import pytest
from tvm import te, tirx

from halo_tvm.ceilings import Peaks
from halo_tvm.targets import TARGETS, Target
from halo_tvm.tuning.search.roofline import Work, roofline_us, work_of

TARGET = Target(TARGETS["x86"], TARGETS["x86"].isas[0], 2)  # multiplies nothing faster than float32
PEAKS = Peaks(2, 100.0, 400.0, 200.0, 20.0, None, 1 << 20, 1 << 24, "")


def task(func, weights=()):
    return dataclasses.replace(landscape.task(), func=func, weights=weights)


def gemm(rows, n=32, k=64):
    x, w = te.placeholder((rows, k), name="x"), te.placeholder((k, n), name="w")
    at = te.reduce_axis((0, k), name="k")
    y = te.compute((rows, n), lambda i, j: te.sum(x[i, at] * w[at, j], axis=at), name="y")
    return te.create_prim_func([x, w, te.compute(y.shape, lambda i, j: te.max(y[i, j], 0.0))])


def test_a_product_of_matrices():
    made = task(gemm(tirx.Var("m", "int64")), weights=(1,))
    assert work_of(made, (8,)) == Work(2.0 * 8 * 32 * 64, 4.0 * 64 * 32, 4.0 * (8 * 64 + 8 * 32))
    us = roofline_us(made, (8,), PEAKS, TARGET)
    moving = 4 * (8 * 64 + 8 * 32) / 400e9 + 4 * 64 * 32 / 20e9
    assert us == pytest.approx(1e6 * max(2 * 8 * 32 * 64 / 100e9, moving))
    # Weights that stay in a cache come faster, and a large product is bound by arithmetic.
    assert roofline_us(made, (8,), PEAKS, TARGET, cold=False) < us
    assert roofline_us(made, (8192,), PEAKS, TARGET) == pytest.approx(1e6 * 2 * 8192 * 32 * 64 / 100e9)
    assert roofline_us(made, (8,), None, TARGET) is None


def test_a_gathered_table_is_not_read_as_a_whole():
    table, at = te.placeholder((50_000, 16), name="table"), te.placeholder((4,), "int32", name="at")
    func = te.create_prim_func([table, at, te.compute((4, 16), lambda i, j: table[at[i], j])])
    assert work_of(task(func, weights=(0,)), ()) == Work(0.0, 4.0 * 4 * 16, 4.0 * 4 + 4.0 * 4 * 16)


def test_what_a_schedule_may_save_does_not_count():
    """Neither element-wise arithmetic nor what stands under a mask that is causal counts in full."""
    x = te.placeholder((64, 64), name="x")
    stage = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * 2.0 + 1.0)])
    assert work_of(task(stage), ()).flops == 0.0
    full = gemm(16)
    causal = full.with_attr("halo.call", {"op": "attention", "causal": True})
    assert work_of(task(causal), ()).flops == work_of(task(full), ()).flops / 2
    half = te.placeholder((64, 64), "float16", name="x")
    stage = te.create_prim_func([half, te.compute(half.shape, lambda i, j: half[i, j] * half[i, j])])
    assert work_of(task(stage), ()).other_bytes == 2 * 2.0 * 64 * 64


def narrow_product(weight, **call):
    """x [64, 64] times weights of a type, which its body computes in float32."""
    x, w = te.placeholder((64, 64), name="x"), te.placeholder((64, 64), weight, name="w")
    k = te.reduce_axis((0, 64), name="k")
    func = te.create_prim_func(
        [x, w, te.compute((64, 64), lambda i, j: te.sum(x[i, k] * w[k, j].astype("float32"), k))]
    )
    return task(func.with_attr("halo.call", call) if call else func, weights=(1,))


@pytest.mark.parametrize(
    ("made", "faster", "gflops"),
    [
        (narrow_product("float32"), {"bf16_dot": True}, (1.0, 1.0)),
        (narrow_product("bfloat16"), {"bf16_dot": True}, (None, 2.0)),
        (narrow_product("bfloat16"), {}, (1.0, 1.0)),
        (narrow_product("float16"), {"half_arithmetic": True}, (None, None)),
        (narrow_product("float16"), {"half_arithmetic": True, "bf16_dot": True}, (None, None)),
        (narrow_product("float16"), {"bf16_dot": True}, (1.0, 1.0)),
        (narrow_product("float32", op="attention", products="bfloat16"), {"bf16_dot": True}, (None, 2.0)),
    ],
    ids=["float32", "bfloat16", "no pairs", "float16", "float16 beside pairs", "no half", "attention that may round"],
)
def test_arithmetic_bounds_only_what_its_ceiling_was_measured_for(made, faster, gflops):
    """16 bits that the target multiplies faster than float32: a bound by that would end a search before it began."""
    target = dataclasses.replace(TARGET, isa=dataclasses.replace(TARGET.isa, **faster))
    slow = dataclasses.replace(PEAKS, fma_gflops=1.0)
    for peaks, rate in zip((slow, dataclasses.replace(slow, bf16_gflops=2.0)), gflops):
        us = roofline_us(made, (), peaks, target)
        assert us == pytest.approx(2 * 64**3 / (1e3 * rate)) if rate else 0 < us < 5
