"""The row_reduction rule: right for every length, symbolic and static; declines with its reason; vector code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from covering import covering
from fused_functions import executable, functions, fused, here, random, scheduled, x86
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx
from tvm.script import tirx as T

from halo_tvm.errors import Declined
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.tir_schedules import RULES

RULE = RULES["row_reduction"]
LENGTHS = (1, 2, 7, 16, 17, 64, 100, 768, 1000, "symbolic")
op = relax.op


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm_relu(emit, x, weight, bias, residual):
    return emit(op.nn.relu(emit(OPERATORS["layer_norm"].call(x, weight, bias, residual, eps=1e-5))))


def norm_relu_reference(x, weight, bias, residual):
    return np.maximum(OPERATORS["layer_norm"].reference(x, weight, bias, residual, eps=1e-5), 0)


# name -> graph, shapes for rows and a length, reference
GRAPHS: dict[str, tuple[Callable, Callable, Callable]] = {
    "softmax": (lambda emit, x: emit(op.nn.softmax(x)), lambda n, d: [(3, n, d)], softmax),
    "layer_norm": (norm_relu, lambda n, d: [(2, n, d), (d,), (d,), (2, n, d)], norm_relu_reference),
    "rms_norm": (
        lambda emit, x, w: emit(OPERATORS["rms_norm"].call(x, w, eps=1e-6)),
        lambda n, d: [(n, d), (d,)],
        lambda x, w: OPERATORS["rms_norm"].reference(x, w, eps=1e-6),
    ),
    "sum": (lambda emit, x: emit(op.sum(x, axis=-1)), lambda n, d: [(n, 3, d)], lambda x: x.sum(-1)),
    "mean keeping the axis": (
        lambda emit, x: emit(op.mean(x, axis=-1, keepdims=True)),
        lambda n, d: [(n, d)],
        lambda x: x.mean(-1, keepdims=True),
    ),
    "max of a map": (lambda emit, x: emit(op.max(x, axis=-1)), lambda n, d: [(n, d)], lambda x: x.max(-1)),
    "min": (lambda emit, x: emit(op.min(x, axis=-1)), lambda n, d: [(n, d)], lambda x: x.min(-1)),
    "product": (lambda emit, x: emit(op.prod(x, axis=-1)), lambda n, d: [(n, d)], lambda x: x.prod(-1)),
}


def check(run: Callable, shapes: list[tuple[int, ...]], reference: Callable) -> None:
    arrays = [random(s, seed=i) for i, s in enumerate(shapes)]
    expected = reference(*(a.astype("float64") for a in arrays))
    found = run(*arrays)
    assert found.shape == expected.shape
    # Sums of up to 1000 float32 terms; layer_norm of very short rows divides by a tiny deviation.
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


# Every length on the widest vectors, the awkward ones on the others: each case is a compilation.
@pytest.mark.parametrize(
    ("isa", "length"), [("avx512", x) for x in LENGTHS] + [("avx2", x) for x in (1, 17, 100, "symbolic")]
)
@pytest.mark.parametrize("name", GRAPHS)
def test_numbers(isa: str, name: str, length: int | str) -> None:
    if not here(isa):
        pytest.skip(f"this processor does not run {isa}")
    graph, shapes, reference = GRAPHS[name]
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    static = isinstance(length, int)
    mod = fused(graph, shapes(n, length if static else d))
    assert len(functions(mod)) == 1
    run = executable(scheduled(mod, "row_reduction", x86(isa)), x86(isa))
    for rows in (1, 5, 37):
        for size in (length,) if static else (1, 3, 31, 65, 1000):
            check(run, shapes(rows, size), reference)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_every_decision_is_right(name: str) -> None:
    target = x86("avx2")
    graph, shapes, reference = GRAPHS[name]
    n = tirx.Var("n", "int64")
    mod = fused(graph, shapes(n, 83))
    (func,) = functions(mod)
    space = RULE.space(func, target)
    assert space[0] == RULE.default(func, target) and len(set(space)) == len(space)
    for decision in covering(space):
        run = executable(scheduled(mod, "row_reduction", target, decision), target)
        for rows in (2, 150):  # below and above the least work for threads
            check(run, shapes(rows, 83), reference)


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 40), length=st.integers(1, 200))
def test_any_static_shape(rows: int, length: int) -> None:
    graph, shapes, reference = GRAPHS["softmax"]
    target = x86("avx2")
    check(
        executable(scheduled(fused(graph, shapes(rows, length)), "row_reduction", target), target),
        shapes(rows, length),
        reference,
    )


def test_integers_and_extremes() -> None:
    target = x86("avx2")
    run = executable(
        scheduled(fused(lambda emit, x: emit(op.sum(x, axis=-1)), [(4, 37)], ["int64"]), "row_reduction", target),
        target,
    )
    x = random((4, 37), "int64") * (2**40)
    np.testing.assert_array_equal(run(x), x.sum(-1))
    run = executable(scheduled(fused(GRAPHS["softmax"][0], [(3, 37)]), "row_reduction", target), target)
    x = random((3, 37))
    x[0, 5], x[1, 7], x[2, :36] = 1e30, np.nan, -np.inf
    found = run(x)
    assert found[0, 5] == 1.0 and found[0].sum() == 1.0
    assert np.isnan(found[1]).all()
    assert found[2, 36] == 1.0 and found[2].sum() == 1.0


def test_code_is_vector_code() -> None:
    """Partial sums stay in registers: no shuffle in the loops, no library call, full vectors."""
    target = x86("avx512")
    mod = scheduled(fused(GRAPHS["softmax"][0], [(64, 1024)]), "row_reduction", target)
    (func,) = functions(mod)
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target.tvm)
    assembly = built.mod.inspect_source("asm")
    assert not [line for line in assembly.splitlines() if "call" in line and "expf" in line]
    assert assembly.count("vfmadd") > 20 and assembly.count("zmm") > 100


def primfunc(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors))


def two_axes() -> tirx.PrimFunc:
    x = te.placeholder((4, 5, 6), name="x")
    a, b = te.reduce_axis((0, 5)), te.reduce_axis((0, 6))
    return primfunc(x, te.compute((4,), lambda i: te.sum(x[i, a, b], axis=[a, b])))


def other_axis() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 4))
    return primfunc(x, te.compute((5,), lambda i: te.sum(x[k, i], axis=k)))


def other_rows() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 5))
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k))
    return primfunc(x, te.compute((4, 5), lambda i, j: x[i, j] - total[3 - i]))


def other_loops() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 5))
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k))
    return primfunc(x, te.compute((7, 5), lambda i, j: total[j % 4] + x[i % 4, j]))


def other_depth() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 5))
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k))
    return primfunc(x, te.compute((4, 9), lambda i, j: total[i] * te.const(2.0)))


def no_reduction() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    return primfunc(x, te.compute((4, 5), lambda i, j: x[i, j] * te.const(2.0)))


def argmax() -> tirx.PrimFunc:
    return functions(fused(lambda emit, x: emit(op.argmax(x, axis=-1)), [(4, 5)]))[0]


def logical() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), "bool", name="x")
    k = te.reduce_axis((0, 5))
    every = te.comm_reducer(lambda a, b: tirx.And(a, b), lambda t: tirx.const(True, t))
    return primfunc(x, te.compute((4,), lambda i: every(x[i, k], axis=k)))


@T.prim_func(s_tir=True)
def predicate(x: T.Buffer((3, 10), "float32"), y: T.Buffer((3,), "float32")):
    for i, k, j in T.grid(3, 3, 4):
        with T.sblock("y"):
            T.where(k * 4 + j < 10)
            v = T.axis.spatial(3, i)
            r = T.axis.reduce(10, k * 4 + j)
            with T.init():
                y[v] = T.float32(0)
            y[v] = y[v] + x[v, r]


@T.prim_func(s_tir=True)
def recurrence(x: T.Buffer((3, 10), "float32"), y: T.Buffer((3,), "float32")):
    for i, k in T.grid(3, 10):
        with T.sblock("y"):
            v, r = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.float32(0)
            y[v] = y[v] * T.float32(2) + x[v, r]


def already() -> tirx.PrimFunc:
    return no_reduction().with_attr("tirx.is_scheduled", True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (already, "scheduled already"),
        (no_reduction, "no block reduces anything"),
        (two_axes, "one reduced axis is served, found 2"),
        (other_axis, "the reduced axis is not the last axis of its operand"),
        (other_rows, "a stage reads another row, or another place of the row"),
        (other_loops, "do not share their leading loops"),
        (other_depth, "other loops than the rows and the reduced axis"),
        (argmax, "stores several values"),
        (lambda: predicate, "a block has a predicate"),
        (lambda: recurrence, "is not `total = total op value`"),
        (logical, "reduces by And"),
    ],
)
def test_declines(make: Callable[[], tirx.PrimFunc], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.default(make(), x86("avx2"))
