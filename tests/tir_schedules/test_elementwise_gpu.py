"""The rule elementwise_gpu, emulated: right for every shape and dtype, symbolic and static; wide loads, tiles."""

from __future__ import annotations

import numpy as np
import pytest
from covering import covering
from emulation import emulate
from gpu_functions import TARGET, check_emulated, function_of, kernels_of, needs_nvcc, scheduled_for
from injective_graphs import GRAPHS
from tvm import relax, te, tirx
from tvm.script import tirx as T

from halo_tvm.errors import Declined
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.injective.elementwise_gpu import ElementThreads

pytestmark = pytest.mark.covering(2)

RULE = RULES["elementwise_gpu"]
NAME = "elementwise_gpu"
op = relax.op


@pytest.mark.parametrize("length", [1, 7, 64, "symbolic"])
@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "position by value"])  # that has a constant
@pytest.mark.sampled(30)
def test_numbers(name: str, length: int | str) -> None:
    graph, shapes, dtypes, reference = GRAPHS[name]
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    static = isinstance(length, int)
    func = scheduled_for(function_of(graph, shapes(n, length if static else d), dtypes), NAME)
    for rows, size in ((1, length), (35, length)) if static else ((5, 3), (3, 130)):
        check_emulated(func, shapes(rows, size), reference, dtypes, tolerance=1e-6)


@pytest.mark.parametrize("name", ["chain with a broadcast", "add", "transpose", "one row"])
def test_every_decision_is_right(name: str) -> None:
    graph, shapes, dtypes, reference = GRAPHS[name]
    func = function_of(graph, shapes(tirx.Var("n", "int64"), 72), dtypes)
    space = RULE.space(func, TARGET)
    assert space[0] == RULE.default(func, TARGET) and len(set(space)) == len(space) >= 12
    for decision in covering(space):
        check_emulated(scheduled_for(func, NAME, decision), shapes(3, 72), reference, dtypes, tolerance=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)], ids=["no rows", "no columns", "nothing"])
@pytest.mark.sampled(20)
def test_nothing_to_compute(name: str, sizes: tuple[int, int]) -> None:
    """CUDA refuses a grid of no blocks, which is a fault of the emulator."""
    graph, shapes, dtypes, reference = GRAPHS[name]
    if name == "position by value":
        return  # it has a constant, which is an argument
    dims = [tirx.Var(name, "int64") for name in "nd"]
    for width in dims[1], 3:
        func = scheduled_for(function_of(graph, shapes(dims[0], width), dtypes), NAME)
        rows, columns = sizes
        check_emulated(func, shapes(rows, columns if width is dims[1] else 3), reference, dtypes)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_compute_is_known(shape: tuple[int, int]) -> None:
    """TVM's schedules divide by the number of steps of a loop: rules decline, and the fallback does without."""
    graph, shapes, dtypes, reference = GRAPHS["add"]
    func = function_of(graph, shapes(*shape), dtypes)
    with pytest.raises(Declined, match="an output has no elements"):
        RULE.default(func, TARGET)
    check_emulated(scheduled_for(func, "fallback_gpu"), shapes(*shape), reference, dtypes)
    x, k = te.placeholder(shape, name="x"), te.reduce_axis((0, shape[1]))
    rows = te.create_prim_func([x, te.compute(shape[:1], lambda i: te.sum(x[i, k], axis=k))])
    with pytest.raises(Declined, match="there are no rows, or a row has no elements"):
        RULES["row_reduction_gpu"].default(rows, TARGET)
    if shape[1]:  # of sums of nothing TVM forgets the zero; relax folds them away
        check_emulated(scheduled_for(rows, "fallback_gpu"), [shape], lambda x: x.sum(-1))


def rows_of(width: int, columns: int, inner: int) -> tirx.PrimFunc:
    """y[i, j, k] = 2 x[i, j, k] for j < columns, in rows of y with `width` * `inner` elements."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((6, columns, inner), "float32"), y: T.Buffer((6, width, inner), "float32")):
        for i, j, k in T.grid(6, columns, inner):
            with T.sblock("y"):
                vi, vj, vk = T.axis.remap("SSS", [i, j, k])
                y[vi, vj, vk] = T.float32(2) * x[vi, vj, vk]

    return main


@pytest.mark.parametrize(
    ("width", "columns", "inner", "lanes"), [(7, 4, 1, 1), (6, 4, 1, 2), (12, 4, 1, 4), (7, 2, 2, 2), (6, 4, 2, 4)]
)
def test_vectors_begin_where_rows_of_the_output_do(width: int, columns: int, inner: int, lanes: int) -> None:
    x, y = np.arange(6.0 * columns * inner).reshape(6, columns, inner).astype("float32"), np.zeros((6, width, inner))
    func, y = scheduled_for(rows_of(width, columns, inner), NAME), y.astype("float32")
    emulate(func, TARGET, [x, y])
    np.testing.assert_array_equal(y[:, :columns], 2 * x)
    assert not y[:, columns:].any()
    assert (f"vectorized(T.int64({lanes}))" in str(func)) == (lanes > 1)


def test_halves_come_in_eights() -> None:
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    func = function_of(lambda emit, x, y: emit(op.add(x, y)), [(n, d), (n, d)], ["float16"] * 2)
    assert RULE.default(func, TARGET).lanes == 8
    check_emulated(scheduled_for(func, NAME), [(5, 9)] * 2, lambda x, y: x + y, ["float16"] * 2, tolerance=2e-3)


@pytest.mark.parametrize(
    ("axes", "shape"), [((0, 2, 1), (2, 40, 70)), ((2, 1, 0), (33, 2, 31)), ((0, 2, 1, 3), (2, 5, 3, 8))]
)
def test_transposes(axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    names = [tirx.Var(f"n{i}", "int64") for i in range(len(shape))]
    for sizes in (shape, names):
        func = scheduled_for(function_of(lambda emit, x: emit(op.permute_dims(x, axes)), [sizes]), NAME)
        check_emulated(func, [shape], lambda x: x.transpose(axes))
        assert ("tile" in str(func)) == (axes[-1] != len(axes) - 1), "rows that stay rows need no tile"


def test_a_transpose_with_what_is_fused() -> None:
    def graph(emit, x, y, b):
        turned = emit(op.permute_dims(emit(op.multiply(x, y)), (1, 0)))
        return emit(op.add(turned, b))

    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    func = scheduled_for(function_of(graph, [(n, d), (n, d), (n,)]), NAME)
    check_emulated(func, [(35, 66), (35, 66), (35,)], lambda x, y, b: (x * y).T + b, tolerance=1e-6)


def test_a_load_under_a_condition_is_not_read_ahead() -> None:
    """Beyond the seam of a concatenation there is no memory; the emulator faults on what is read outside."""

    def graph(emit, x, y):
        return emit(op.permute_dims(emit(op.concat([x, y], axis=1)), (1, 0)))

    func = scheduled_for(function_of(graph, [(4, 8), (4, 12)]), NAME)
    check_emulated(func, [(4, 8), (4, 12)], lambda x, y: np.concatenate([x, y], 1).T)


@needs_nvcc
@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def test_machine_code(arch: str) -> None:
    n = tirx.Var("n", "int64")
    made = (
        (GRAPHS["chain with a broadcast"][0], [(n, 768), (768,)], ["float32"] * 2),
        (GRAPHS["add"][0], [(2, n, 264), (2, n, 264)], ["float16"] * 2),
        (GRAPHS["transpose"][0], [(n, 768)], ["float32"]),
        *((GRAPHS["add"][0], [(2, n, 272)] * 2, [dtype] * 2) for dtype in ("bfloat16", "int8", "int64", "float64")),
    )
    target = resolve(f"cuda:{arch}")
    funcs = [scheduled_for(function_of(*one), NAME, target=target) for one in made]
    kernels, code = kernels_of(funcs, arch)
    assert len(kernels) == len(made)
    assert all(k.spill_store_bytes == k.stack_bytes == 0 and k.registers <= 64 for k in kernels), kernels
    turned = kernels[2]
    assert turned.threads == 256 and 32 * 32 * 4 < turned.shared_bytes <= 32 * 33 * 4
    for name, found in code.items():
        wide = {o.split(".")[0] for o in found if ".128" in o}
        assert name.startswith("f2") or wide >= {"LDG", "STG"}, (name, found)


def test_declines() -> None:
    x, k = te.placeholder((4, 5), name="x"), te.reduce_axis((0, 5))
    total = te.create_prim_func([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k))])
    with pytest.raises(Declined, match="a block reduces"):
        RULE.default(total, TARGET)
    graph, shapes, dtypes, _ = GRAPHS["add"]
    func = function_of(graph, shapes(4, 8), dtypes)
    for decision, reason in (
        (ElementThreads(3, 1, 256), "lanes is 3, the rule serves 1 to 16, powers of two"),
        (ElementThreads(4, 1, 100), "threads is 100, the rule serves 32 to 1024, multiples of 32"),
    ):
        with pytest.raises(Declined, match=reason):
            RULE.apply(func, TARGET, decision)
    with pytest.raises(Declined, match="lanes is 32, the rule serves 1 to 16"):
        RULE.apply(func, TARGET, ElementThreads(32, 1, 256))


def test_the_estimate_orders_decisions() -> None:
    graph, shapes, dtypes, _ = GRAPHS["add"]
    func = function_of(graph, shapes(4096, 4096), dtypes)
    best = RULE.default(func, TARGET)
    us = {d: RULE.estimate(func, TARGET, d, {}) for d in RULE.space(func, TARGET)}
    assert us[best] < us[ElementThreads(1, 1, 256)], "wide loads"
    assert us[best] > 3 * 2 * 4096 * 4096 * 4 / (TARGET.isa.gpu.memory_gbps * 1e3), "no faster than memory"
