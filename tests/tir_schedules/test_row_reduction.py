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
from row_graphs import GRAPHS, NO_ROWS
from tvm import relax, te, tirx

from halo_tvm.errors import Declined
from halo_tvm.tir_schedules import RULES

pytestmark = pytest.mark.covering

RULE = RULES["row_reduction"]
LENGTHS = (1, 16, 17, 64, 100, 768, 1000, "symbolic")
op = relax.op


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
    numbers_are_right(isa, name, length)


@pytest.mark.parametrize(("name", "length"), [("softmax", 2), ("layer_norm", 7), ("rms_norm", 2)])
def test_short_rows_that_are_read_several_times(name: str, length: int) -> None:
    numbers_are_right("avx2", name, length)


def numbers_are_right(isa: str, name: str, length: int | str) -> None:
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


def test_a_sum_begins_with_its_own_number_once() -> None:
    """What a block says of its beginning is no neutral element: neither each lane nor the rest adds it again."""
    target, x, k = x86("avx2"), te.placeholder((5, 37), name="x"), te.reduce_axis((0, 37))
    from_three = te.comm_reducer(lambda a, b: a + b, lambda t: tirx.const(3, t))
    func = te.create_prim_func([x, te.compute((5,), lambda i: from_three(x[i, k], axis=k))])
    func = RULE.apply(func, target, RULE.default(func, target)).with_attr("global_symbol", "main")
    run = tvm.compile(tvm.IRModule({"main": func}), target=target.tvm)
    values, out = random((5, 37)), tvm.runtime.tensor(np.full(5, np.nan, "float32"))
    run["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_allclose(out.numpy(), values.sum(-1) + 3, rtol=1e-5, atol=1e-5)


def test_code_is_vector_code() -> None:
    """Partial sums stay in registers: no shuffle in the loops, no library call, full vectors."""
    target = x86("avx512")
    mod = scheduled(fused(GRAPHS["softmax"][0], [(64, 1024)]), "row_reduction", target)
    (func,) = functions(mod)
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target.tvm)
    assembly = built.mod.inspect_source("asm")
    assert not [line for line in assembly.splitlines() if "call" in line and "expf" in line]
    assert assembly.count("vfmadd") > 20 and assembly.count("zmm") > 100


@pytest.mark.parametrize(("length", "served"), [(1, True), (2, False), (8, False), (9, True), ("symbolic", True)])
def test_short_rows_of_one_reduction_are_left_to_rows_side_by_side(length: int | str, served: bool) -> None:
    graph, shapes, _ = GRAPHS["sum"]
    (func,) = functions(fused(graph, shapes(5, tirx.Var("d", "int64") if length == "symbolic" else length)))
    if served:
        RULE.default(func, x86("avx2"))
        return
    with pytest.raises(Declined, match=f"one reduction of {length} elements"):
        RULE.default(func, x86("avx2"))


@pytest.mark.parametrize(("make", "reason"), NO_ROWS)
def test_declines(make: Callable[[], tirx.PrimFunc], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.default(make(), x86("avx2"))
