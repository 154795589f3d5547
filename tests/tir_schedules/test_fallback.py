"""The nets: right and valid for any function; threads where they pay; never an exception."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from attention_functions import attributes, check_nan_stays, compiled, function, normal
from linear_functions import Case, build, check, fused, x86
from tvm import te, tirx, topi
from tvm.script import tirx as T

from halo_tvm.targets import TARGETS, Target
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.general.fallback import Decision

FALLBACK = RULES["fallback"]
TARGET = x86("avx2")


def schedule(func: tirx.PrimFunc, parallel_from: int = 0) -> tirx.PrimFunc:
    out = FALLBACK.apply(func, TARGET, Decision(parallel_from))
    assert out.attrs["tirx.is_scheduled"]
    return out


def call(func: tirx.PrimFunc, inputs: list[np.ndarray], out: np.ndarray) -> np.ndarray:
    tensors = [tvm.runtime.tensor(v) for v in (*inputs, out)]
    build(func, TARGET)["main"](*tensors)
    return tensors[-1].numpy()


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


UNARY = {
    "softmax": (lambda x: topi.nn.softmax(x, -1), softmax),
    "transpose": (lambda x: topi.transpose(topi.exp(x)), lambda x: np.exp(x).T),
    "sum_all": (lambda x: topi.sum(x), lambda x: x.sum()),
    "mean": (lambda x: topi.sum(x, axis=1), lambda x: x.sum(1)),
    "argmax": (lambda x: topi.argmax(x, 1), lambda x: x.argmax(1).astype(np.int32)),
    "cumsum": (lambda x: topi.cumsum(x, axis=1), lambda x: x.cumsum(1)),
    "chain": (lambda x: topi.tanh(topi.exp(x) + x) * x, lambda x: np.tanh(np.exp(x) + x) * x),
    "concatenate": (lambda x: topi.concatenate([x, x], 1), lambda x: np.concatenate([x, x], 1)),
    "reshape": (lambda x: topi.reshape(x + 1.0, (x.shape[0], 8, 4)), lambda x: (x + 1).reshape(-1, 8, 4)),
    "slice": (lambda x: topi.strided_slice(x, [0, 3], [5, 9], [2, 1]), lambda x: x[0:5:2, 3:9]),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("parallel_from", [0, 1 << 30])
@pytest.mark.parametrize("symbolic", [False, True])
def test_operators(name: str, parallel_from: int, symbolic: bool) -> None:
    operator, reference = UNARY[name]
    x = te.placeholder((tirx.Var("m", "int64") if symbolic else 6, 32), "float32", name="x")
    func = schedule(te.create_prim_func([x, operator(x)]), parallel_from)
    value = random(6, 32)
    expected = np.asarray(reference(value))
    np.testing.assert_allclose(call(func, [value], np.zeros_like(expected)), expected, rtol=1e-5, atol=1e-5)


def test_matmul_runs_along_memory() -> None:
    m, n = tirx.Var("m", "int64"), tirx.Var("n", "int64")
    a, b = te.placeholder((m, 16), "float32", name="a"), te.placeholder((16, n), "float32", name="b")
    func = schedule(te.create_prim_func([a, b, topi.matmul(a, b)]))
    assert "_init" in str(func) and "T.parallel(m)" in str(func)
    x, y = random(5, 16), random(16, 7)
    np.testing.assert_allclose(call(func, [x, y], np.zeros((5, 7), np.float32)), x @ y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epilogue", ["none", "bias+gelu"])
def test_serves_what_gemm_serves(epilogue: str) -> None:
    case = Case(k=32, n=40, kc=16, nr=16, epilogue=epilogue)
    executable = build(schedule(fused(case)), TARGET)
    for rows in (1, 7):
        check(executable, case, rows)


def test_small_functions_start_no_threads() -> None:
    x = te.placeholder((4, 4), "float32", name="x")
    func = te.create_prim_func([x, topi.exp(x)])
    assert "T.parallel" not in str(FALLBACK.apply(func, TARGET, FALLBACK.default(func, TARGET)))
    assert "T.parallel" in str(schedule(func))


def test_expensive_work_is_not_repeated() -> None:
    """exp feeds a reduction and another reader: inlining would compute it twice."""
    x = te.placeholder((64, 64), "float32", name="x")
    assert str(schedule(te.create_prim_func([x, topi.nn.softmax(x, -1)]))).count("T.exp(") == 1


@T.prim_func(s_tir=True)
def scatter_like(x: T.Buffer((8,), "float32"), at: T.Buffer((8,), "int32"), out: T.Buffer((4,), "float32")):
    for i in range(8):
        with T.sblock("scatter"):
            vi = T.axis.spatial(8, i)
            T.reads(x[vi], at[vi])
            T.writes(out[0:4])
            out[at[vi]] = x[vi]


def test_scatter_stays_serial() -> None:
    func = schedule(scatter_like)
    assert "T.parallel" not in str(func)
    at = np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32)
    x = random(8)
    np.testing.assert_array_equal(call(func, [x, at], np.zeros(4, np.float32)), x[4:])


@T.prim_func(s_tir=True)
def opaque(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    with T.sblock("whole"):
        T.reads(x[0:8])
        T.writes(out[0:8])
        out[0] = x[0]
        for i in range(7):
            out[i + 1] = out[i] + x[i + 1]


def test_opaque_block_is_left_alone() -> None:
    func = schedule(opaque)
    tvm.ir.assert_structural_equal(func.body, opaque.body)
    x = random(8)
    np.testing.assert_allclose(call(func, [x], np.zeros(8, np.float32)), x.cumsum(), rtol=1e-5)


@T.prim_func(s_tir=True)
def already_parallel(x: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
    for i in T.parallel(64):
        with T.sblock("copy"):
            vi = T.axis.spatial(64, i)
            out[vi] = x[vi]


@T.prim_func
def no_blocks(x: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
    for i in range(64):
        out[i] = x[i]


@pytest.mark.parametrize("func", [already_parallel, no_blocks], ids=["parallel", "no_blocks"])
def test_scheduled_functions_are_left_alone(func: tirx.PrimFunc) -> None:
    tvm.ir.assert_structural_equal(schedule(func).body, func.body)


def test_scheduling_twice_changes_nothing() -> None:
    x = te.placeholder((64, 64), "float32", name="x")
    once = schedule(te.create_prim_func([x, topi.exp(x)]))
    tvm.ir.assert_structural_equal(schedule(once), once)


def test_two_blocks_of_one_name() -> None:
    """TE gives blocks distinct names, text need not: such blocks are left serial, never mixed up."""

    @T.prim_func(s_tir=True)
    def twice(x: T.Buffer((16, 16), "float32"), out: T.Buffer((16, 16), "float32")):
        middle = T.sblock_alloc_buffer((16, 16), "float32")
        for i, j in T.grid(16, 16):
            with T.sblock("step"):
                vi, vj = T.axis.remap("SS", [i, j])
                middle[vi, vj] = T.exp(x[vi, vj])
        for i, j in T.grid(16, 16):
            with T.sblock("step"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = middle[vj, vi]

    x = random(16, 16)
    np.testing.assert_allclose(call(schedule(twice), [x], np.zeros((16, 16), np.float32)), np.exp(x).T, rtol=1e-5)


@pytest.mark.parametrize("isa", ["sm_80", "sm_90"])
def test_gpu_net_binds_threads(isa: str) -> None:
    spec = TARGETS["cuda"]
    target = Target(spec, next(i for i in spec.isas if i.name == isa), 1)
    rule = RULES["fallback_gpu"]
    x = te.placeholder((tirx.Var("m", "int64"), 64), "float32", name="x")
    func = te.create_prim_func([x, topi.nn.softmax(x, -1)])
    text = str(rule.apply(func, target, rule.default(func, target)))
    assert "blockIdx.x" in text and "threadIdx.x" in text
    assert rule.apply(rule.apply(func, target, rule.Decision()), target, rule.Decision()) is not None


def test_attention_keeps_a_nan() -> None:
    attrs = attributes(2, 1, 16)
    run = compiled(FALLBACK, function([("b", "s", 2, 16), *[("b", "t", 1, 16)] * 2], attrs), TARGET)
    check_nan_stays(run, normal((2, 5, 2, 16), *[(2, 21, 1, 16)] * 2), attrs)
