"""The rule row_reduction_gpu, emulated: right for every length, symbolic and static; wide loads, no spills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from covering import covering
from emulation._memory import numpy_dtype
from fused_functions import random
from gpu_functions import TARGET, check_emulated, function_of, kernels_of, needs_nvcc, scheduled_for
from row_graphs import GRAPHS, NO_ROWS, softmax
from tvm import te, tirx

from halo_tvm.errors import Declined
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.rows.row_reduction_gpu import RowThreads
from halo_tvm.tir_schedules.rows.row_reduction_gpu._fit import SHUFFLED

pytestmark = pytest.mark.covering(2)

RULE = RULES["row_reduction_gpu"]
NAME = "row_reduction_gpu"


def norm_of_half(rows: tirx.Var, length: tirx.IntImm) -> tirx.PrimFunc:
    """As a model in float16 has it: rows come and go in 16 bits, what is between is float32."""
    x, w = te.placeholder((rows, length), "float16", name="x"), te.placeholder((length,), "float16", name="w")
    k, one = te.reduce_axis((tirx.IntImm("int64", 0), length), name="k"), tirx.const(1e-6)
    wide = te.compute(x.shape, lambda i, j: x[i, j].astype("float32"))
    total = te.compute((rows,), lambda i: te.sum(wide[i, k] * wide[i, k], axis=k))

    def normed(i, j):
        return (wide[i, j] * tirx.rsqrt(total[i] / float(int(length)) + one)).astype("float16") * w[j]

    return te.create_prim_func([x, w, te.compute(x.shape, normed)])


# Lengths with one vector for a warp's first lanes, odd ones, and one that several warps share.
@pytest.mark.parametrize("length", [1, 7, 24, 100, 1200, "symbolic"])
@pytest.mark.parametrize("name", GRAPHS)
def test_numbers(name: str, length: int | str) -> None:
    graph, shapes, reference = GRAPHS[name]
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    static = isinstance(length, int)
    func = scheduled_for(function_of(graph, shapes(n, length if static else d)), NAME)
    for rows, size in ((3, length),) if static else ((1, 1), (5, 37), (2, 130)):
        check_emulated(func, shapes(rows, size), reference)


# What a row of no elements is reduced to.
OF_NOTHING = {
    "sum": 0,
    "product": 1,
    "mean keeping the axis": np.nan,
    "max of a map": np.finfo(np.float32).min,
    "min": np.finfo(np.float32).max,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_to_compute(name: str) -> None:
    """CUDA refuses a grid of no blocks, which is a fault of the emulator."""
    graph, shapes, reference = GRAPHS[name]
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    for length in (24, d):
        check_emulated(scheduled_for(function_of(graph, shapes(n, length)), NAME), shapes(0, 24), reference)
    func = scheduled_for(function_of(graph, shapes(n, d)), NAME)
    for rows in (0, 3):
        out = [{"n": rows, "d": 0}.get(str(getattr(v, "name", "")), v) for v in func.params[-1].ty.shape]
        check_emulated(
            func, shapes(rows, 0), lambda *_, out=out: np.full([int(v) for v in out], OF_NOTHING.get(name, 0))
        )


@pytest.mark.parametrize("value", [1e-37, 3e-38, 1e37])
def test_a_small_divisor(value: float) -> None:
    """A scalar that a row is divided by is inverted once: right as long as it is no subnormal number."""

    zero, two = tirx.IntImm("int64", 0), tirx.IntImm("int64", 2)
    x, k = te.placeholder((tirx.Var("n", "int64"), two), name="x"), te.reduce_axis((zero, two))
    total = te.compute(x.shape[:1], lambda i: te.sum(x[i, k], axis=k))
    func = scheduled_for(te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] / total[i])]), NAME)
    assert "inverse" in str(func)
    x = np.array([[value, value], [value, 3 * value]], np.float32)
    check_emulated(func, [], lambda x: x / x.sum(-1, keepdims=True), values=[x], tolerance=1e-6)


def reduction(dtype: str, reduce: Callable, length: int) -> tirx.PrimFunc:
    """Rows of `length` in `dtype` to one value each."""
    zero, columns = tirx.IntImm("int64", 0), tirx.IntImm("int64", length)
    x, k = te.placeholder((tirx.Var("n", "int64"), columns), dtype, name="x"), te.reduce_axis((zero, columns))
    return te.create_prim_func([x, te.compute(x.shape[:1], lambda i: reduce(x[i, k], axis=k))])


@pytest.mark.parametrize("dtype", SHUFFLED)
def test_every_type_that_goes_from_thread_to_thread(dtype: str) -> None:
    """Small integers, whose sums are exact in all of them; by a warp, and by warps that meet in shared memory."""
    x = np.random.default_rng(1).integers(0, 3, (3, 96)).astype(numpy_dtype(dtype)[0])
    for threads in (32, 64):
        for reduce, reference in ((te.sum, np.sum), (te.max, np.max), (te.min, np.min)):
            func = reduction(dtype, reduce, 96)
            decision = replace(RULE.default(func, TARGET), threads=threads, rows=2)
            check_emulated(scheduled_for(func, NAME, decision), [], lambda x, f=reference: f(x, -1), values=[x])


@pytest.mark.slow
@needs_nvcc
def test_every_type_has_machine_code() -> None:
    funcs = [
        scheduled_for(reduction(dtype, reduce, 512), NAME, RowThreads(threads, 2, 1, False))
        for dtype in SHUFFLED
        for reduce in (te.sum, te.max)
        for threads in (32, 64)
    ]
    kernels, code = kernels_of(funcs, "sm_80")
    assert len(kernels) == len(funcs) and not any(k.spill_store_bytes or k.stack_bytes for k in kernels)
    assert all(any(operation.startswith("SHFL") for operation in found) for found in code.values())


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_every_decision_is_right(name: str) -> None:
    graph, shapes, reference = GRAPHS[name]
    n = tirx.Var("n", "int64")
    func = function_of(graph, shapes(n, 88))
    space = RULE.space(func, TARGET)
    assert space[0] == RULE.default(func, TARGET) and len(set(space)) == len(space) > 20
    for decision in covering(space):
        check_emulated(scheduled_for(func, NAME, decision), shapes(3, 88), reference)


def test_half_precision_in_and_out() -> None:
    func = norm_of_half(tirx.Var("n", "int64"), tirx.IntImm("int64", 64))
    assert RULE.default(func, TARGET) == RowThreads(8, 16, 8, keep=True), "16 bytes are eight halves"
    check_emulated(
        scheduled_for(func, NAME),
        [(3, 64), (64,)],
        lambda x, w: OPERATORS["rms_norm"].reference(x, w, eps=1e-6),
        ["float16"] * 2,
        tolerance=2e-3,
    )


def test_extremes() -> None:
    func = scheduled_for(function_of(GRAPHS["softmax"][0], [(3, 37)]), NAME)
    x = random((3, 37))
    x[0, 5], x[1, :], x[2, :36] = 1e30, 7.0, -np.inf
    check_emulated(func, [], softmax, values=[x])


def test_a_row_in_registers_is_read_once() -> None:
    """The default of a short row keeps it; of one that is too long, or of unknown length, every pass reads again."""
    graph, shapes, _ = GRAPHS["layer_norm"]
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    chosen = {size: RULE.default(function_of(graph, shapes(n, size)), TARGET) for size in (64, 768, 4096)}
    assert [c.keep for c in chosen.values()] == [True] * 3
    assert [c.threads for c in chosen.values()] == [16, 32, 256] and all(c.lanes == 4 for c in chosen.values())
    assert chosen[64].rows * 16 == 128, "short rows share a block"
    assert RULE.default(function_of(graph, shapes(n, d)), TARGET) == RowThreads(32, 4, 1, keep=False)
    for name, most in (("softmax", 32 << 10), ("rms_norm", 64 << 10)):
        graph, shapes, _ = GRAPHS[name]
        edge = {size: RULE.default(function_of(graph, shapes(n, size)), TARGET).keep for size in (most, most + 4096)}
        assert edge == {most: True, most + 4096: False}, name
    long = RULE.default(function_of(GRAPHS["softmax"][0], [(n, 1 << 20)]), TARGET)
    assert long == RowThreads(1024, 1, 4, keep=False)
    text = str(scheduled_for(function_of(*GRAPHS["layer_norm"][:1], GRAPHS["layer_norm"][1](n, 768)), NAME))
    assert text.count("tvm_warp_shuffle_xor") == 2 * 5, "two sums over 32 lanes"


@needs_nvcc
@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def test_machine_code(arch: str) -> None:
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    funcs = [
        scheduled_for(function_of(g, s(n, size)), NAME, target=resolve(f"cuda:{arch}"))
        for g, s, size in (
            (*GRAPHS["softmax"][:2], 1024),
            (*GRAPHS["layer_norm"][:2], 768),
            (*GRAPHS["rms_norm"][:2], 4096),
            (*GRAPHS["softmax"][:2], d),
        )
    ]
    half = norm_of_half(n, tirx.IntImm("int64", 1024))
    funcs.append(scheduled_for(half, NAME, target=resolve(f"cuda:{arch}")))
    kernels, code = kernels_of(funcs, arch)
    assert len(kernels) == 5
    assert all(k.spill_store_bytes == k.spill_load_bytes == k.stack_bytes == 0 for k in kernels), kernels
    assert all(k.registers <= 128 for k in kernels), kernels
    for name, found in code.items():
        kinds = {operation.split(".")[0] for operation in found}
        assert "SHFL" in kinds
        symbolic = name.startswith("f3")
        assert symbolic or any(o.startswith("LDG") and ".128" in o for o in found), (name, found)
        assert symbolic or any(o.startswith("STG") and ".128" in o for o in found), (name, found)


@pytest.mark.parametrize(("make", "reason"), NO_ROWS)
def test_declines(make: Callable[[], tirx.PrimFunc], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.default(make(), TARGET)


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (RowThreads(48, 2, 4, True), "whole warps of at most 1024 threads"),
        (RowThreads(8, 1, 4, True), "whole warps"),
        (RowThreads(1024, 2, 1, False), "whole warps of at most 1024 threads"),
        (RowThreads(32, 4, 8, True), "in vectors of up to 4 elements, not 8"),
        (RowThreads(32, 4, 3, True), "in vectors of up to 4 elements, not 3"),
        (RowThreads(32, 0, 4, True), "rows is 0, the rule serves 1 to 256"),
    ],
)
def test_a_decision_that_does_not_fit_is_declined(decision: RowThreads, reason: str) -> None:
    func = function_of(GRAPHS["softmax"][0], [(4, 64)])
    with pytest.raises(Declined, match=reason):
        RULE.apply(func, TARGET, decision)
    with pytest.raises(Declined, match="does not fit the registers of 32 threads"):
        RULE.apply(function_of(GRAPHS["softmax"][0], [(4, 1 << 16)]), TARGET, RowThreads(32, 4, 4, True))


def product(rows: int) -> tirx.PrimFunc:
    zero, k = tirx.IntImm("int64", 0), tirx.IntImm("int64", 32)
    x, w, k = te.placeholder((rows, k), name="x"), te.placeholder((9, k), name="w"), te.reduce_axis((zero, k))
    shape = (tirx.IntImm("int64", rows), tirx.IntImm("int64", 9))
    return te.create_prim_func([x, w, te.compute(shape, lambda i, j: te.sum(x[i, k] * w[j, k], axis=k))])


def test_products_of_a_vector_are_rows_and_those_of_matrices_are_not() -> None:
    check_emulated(scheduled_for(product(1), NAME), [(1, 32), (9, 32)], lambda x, w: x @ w.T)
    with pytest.raises(Declined, match="each element of a product of matrices is read by many rows"):
        RULE.default(product(4), TARGET)


def test_elements_that_no_shuffle_moves() -> None:
    x, k = te.placeholder((4, 32), "int8", name="x"), te.reduce_axis((0, 32))
    func = te.create_prim_func([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k))])
    with pytest.raises(Declined, match="go from thread to thread, not int8"):
        RULE.default(func, TARGET)


def test_the_estimate_orders_decisions() -> None:
    n = tirx.Var("n", "int64")
    func = function_of(GRAPHS["softmax"][0], [(n, 1024)])
    (rows,) = [v for v in func.params[0].ty.shape if isinstance(v, tirx.Var)]

    def us(decision: RowThreads, size: int) -> float:
        return RULE.estimate(func, TARGET, decision, {rows: size})

    best = RULE.default(func, TARGET)
    many, few = 1 << 16, 1
    assert us(best, many) < us(RowThreads(best.threads, best.rows, 1, best.keep), many), "wide loads"
    assert us(best, many) < us(RowThreads(best.threads, best.rows, best.lanes, False), many), "one read of memory"
    assert us(RowThreads(256, 1, 4, True), few) < us(RowThreads(8, 16, 4, True), few), "one row asks for many threads"
    assert us(best, many) > (2 * 4 * 1024 * many) / (TARGET.isa.gpu.memory_gbps * 1e3), "no faster than memory"
