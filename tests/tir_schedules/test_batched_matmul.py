"""The rule for products of two run-time matrices: every tail, layout and epilogue; what it declines; its inner loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from assembly import k_loops
from covering import covering
from fused_functions import ISAS, executable, functions, fused, here, random, x86
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx
from tvm.script import tirx as T

from halo_tvm.errors import Declined
from halo_tvm.passes.schedule import rule_for, scheduled_by
from halo_tvm.relay_ops.matmul import Matmul
from halo_tvm.targets import TARGETS, Target
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.batched_matmul import Decision
from halo_tvm.tir_schedules.products.batched_matmul._problem import match
from halo_tvm.tir_schedules.products.batched_matmul._tiling import Tiling

pytestmark = pytest.mark.covering

RULE = RULES["batched_matmul"]
FORMS = [(False, False), (False, True), (True, False), (True, True)]


def product(emit, a, b, transpose_a=False, transpose_b=False):
    return emit(Matmul.call(a, b, transpose_a=transpose_a, transpose_b=transpose_b))


def function(a, b, form=(False, False), behind=None, extra=(), dtype="float32"):
    """The one function that a product of these shapes becomes; `behind(emit, y, *extra)` is fused behind it."""

    def graph(emit, a, b, *more):
        y = product(emit, a, b, *form)
        return y if behind is None else behind(emit, y, *more)

    mod = fused(graph, [a, b, *extra], [dtype] * (2 + len(extra)))
    (func,) = functions(mod)
    return mod, func


def build(mod, target, **changes):
    out = mod.clone()
    for gvar, func in list(mod.functions.items()):
        if isinstance(func, tirx.PrimFunc):
            out[gvar] = RULE.apply(func, target, replace(RULE.default(func, target), **changes))
    return executable(out, target)


def shapes(batch, m, n, k, form, shared=False):
    a = (*batch, k, m) if form[0] else (*batch, m, k)
    b = (n, k) if form[1] else (k, n)
    return a, (b if shared else (*batch, *b))


def operands(batch, m, n, k, form, shared=False):
    return [random(shape, seed=seed) for seed, shape in enumerate(shapes(batch, m, n, k, form, shared))]


def expected(a, b, form):
    a, b = a.astype("float64"), b.astype("float64")
    return (a.swapaxes(-1, -2) if form[0] else a) @ (b.swapaxes(-1, -2) if form[1] else b)


def check(run, arrays, form, wanted=None):
    wanted = expected(*arrays[:2], form) if wanted is None else wanted
    found = run(*arrays)
    assert found.shape == wanted.shape
    depth = arrays[0].shape[-2 if form[0] else -1]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * max(1, depth) ** 0.5 + 1e-7)


def symbols(*names):
    return [tirx.Var(name, "int64") for name in names]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.slow
@pytest.mark.sampled(2)
def test_every_size_is_symbolic(isa, form):
    if not here(isa):
        pytest.skip(f"this processor does not run {isa}")
    h, m, n, k = symbols("h", "m", "n", "k")
    mod, _ = function(*shapes((2, h), m, n, k, form), form)
    run = build(mod, x86(isa), block_rows=16, kc=32)
    sizes = [(3, m, 37, 21) for m in (*range(1, 18), 33, 65)]
    sizes += [(1, 5, n, 40) for n in (1, 15, 16, 31, 32, 33, 64, 97)]
    sizes += [(2, 13, 35, k) for k in (1, 15, 16, 17, 31, 32, 33, 64, 70)]
    for h, m, n, k in sizes:
        check(run, operands((2, h), m, n, k, form), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(2, 64, 96), (5, 50, 7), (150, 35, 530), (1, 9, 7)])
def test_static_sizes(form, shared, m, n, k):
    mod, _ = function(*shapes((2, 3), m, n, k, form, shared), form)
    check(build(mod, x86("avx512" if here("avx512") else "avx2")), operands((2, 3), m, n, k, form, shared), form)


@pytest.mark.parametrize("k", [16, 33, 530])
def test_one_vector_is_left_to_rules_of_reductions(k):
    """Of a matrix whose rows lie in order; they do not where it is transposed."""
    target = x86("avx512" if here("avx512") else "avx2")
    for form in FORMS:
        for m, n, in_order in ((1, 50, form[1]), (50, 1, not form[0])):
            mod, func = function(*shapes((2, 3), m, n, k, form), form)
            if not in_order:
                RULE.default(func, target)
                continue
            with pytest.raises(Declined, match="whose rows lie in order, times one vector"):
                RULE.default(func, target)
            for gvar, kernel in list(mod.functions.items()):
                if isinstance(kernel, tirx.PrimFunc):
                    choice = rule_for(kernel, target)
                    assert choice.rule.name in ("row_reduction", "search")
                    mod[gvar] = scheduled_by(choice.rule, kernel, target, choice.decision)
            check(executable(mod, target), operands((2, 3), m, n, k, form), form)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    batch=st.lists(st.integers(1, 3), max_size=2),
    shared=st.booleans(),
    m=st.integers(2, 70),
    n=st.integers(2, 70),
    k=st.integers(1, 70),
)
def test_any_sizes(form, batch, shared, m, n, k):
    mod, _ = function(*shapes(batch, m, n, k, form, shared), form)
    check(build(mod, x86("avx2"), block_rows=16, kc=16), operands(batch, m, n, k, form, shared), form)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("sizes", [(2, 0, 4, 5), (2, 4, 0, 5), (2, 4, 5, 0), (0, 3, 4, 5)])
@pytest.mark.slow
@pytest.mark.sampled(2)
def test_nothing_to_multiply(sizes, static):
    b, m, n, k = sizes if static else symbols("b", "m", "n", "k")
    mod, _ = function((2, b, m, k), (2, b, k, n))
    check(build(mod, x86("avx2")), operands((2, sizes[0]), *sizes[1:], (False, False)), (False, False))


@given(rows=st.integers(0, 5000), block_rows=st.integers(8, 128), cores=st.integers(1, 33))
def test_no_block_is_taller_than_its_sums(rows, block_rows, cores):
    tiling = Tiling(mr=8, block_rows=block_rows, cores=cores, lanes=16, vectors=2, kc=64)
    assert tiling.most_rows(rows) <= tiling.most_rows(None)


@pytest.mark.parametrize("cores", [1, 3, 8])
@pytest.mark.slow
@pytest.mark.sampled(1)
def test_blocks_of_rows_for_every_number_of_cores(cores):
    m = tirx.Var("m", "int64")
    mod, _ = function((2, m, 20), (2, 20, 40))
    run = build(mod, replace(x86("avx2"), cores=cores), block_rows=8)
    for rows in (7, 8, 15, 16, 23, 24, 25, 31, 32, 63, 64, 65, 127, 129):
        check(run, operands((2,), rows, 40, 20, (False, False)), (False, False))


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
def test_every_decision_is_right(transposed):
    isa = "avx512" if here("avx512") else "avx2"
    m, k = symbols("m", "k")
    form = (False, transposed)
    mod, func = function(*shapes((2,), m, 70, k, form), form)
    space = RULE.space(func, x86(isa))
    assert space[0] == RULE.default(func, x86(isa)) and len(set(space)) == len(space) and len(space) >= 24
    for decision in covering(space):
        run = build(mod, x86(isa), **vars(decision))
        for rows in (1, 13, 150):
            check(run, operands((2,), rows, 70, 300, form), form)


def test_no_two_decisions_are_one_kernel():
    _, func = function((2, 1, 64), (2, 64, 64))
    space = RULE.space(func, x86("avx512"))
    bodies = {str(RULE.apply(func, x86("avx512"), decision)) for decision in space}
    assert len(space) == len(bodies) == 3


def test_stages_behind_run_on_the_warm_block():
    m, n = symbols("m", "n")

    def scaled_and_masked(emit, y, mask):
        y = emit(relax.op.multiply(y, relax.const(0.125, "float32")))
        return emit(relax.op.tanh(emit(relax.op.add(y, mask))))

    mod, func = function((2, 3, m, 20), (2, 3, n, 20), (False, True), scaled_and_masked, [(2, 1, m, n)])
    assert len(functions(mod)) == 1
    run = build(mod, x86("avx2"), block_rows=8)
    for rows, columns in ((1, 1), (9, 17), (40, 33)):
        a, b = operands((2, 3), rows, columns, 20, (False, True))
        mask = random((2, 1, rows, columns), seed=7)
        wanted = np.tanh(expected(a, b, (False, True)) * 0.125 + mask)
        check(run, [a, b, mask], (False, True), wanted)


def test_the_width_that_pads_least_is_chosen():
    target = x86("avx512")

    def width(n):
        return RULE.default(function((2, 40, 64), (2, 64, n))[1], target).vectors * 16

    assert [width(n) for n in (16, 64, 96, 128, 144)] == [16, 32, 48, 32, 48]


def test_an_unknown_number_of_columns_takes_the_panel_that_pads_least():
    """By the estimate alone, 3 % (AVX-512) and 1 % (AVX2) ahead of two vectors: it was not measured."""
    (n,) = symbols("n")
    _, func = function((2, 40, 64), (2, n, 64), (False, True))
    found = [RULE.default(func, x86(isa)) for isa in ("avx512", "avx2")]
    assert [(decision.mr, decision.vectors) for decision in found] == [(12, 1), (12, 1)]


def test_rows_a_page_apart_are_no_more_than_the_ways_of_a_set():
    """8 in 32 KiB of L1, 16 in the 64 KiB that the manifest of arm says."""
    arm = Target(TARGETS["arm"], TARGETS["arm"].isas[0], 2)
    for target, expected in ((x86("avx512"), [8, 12]), (arm, [12, 12])):
        assert [RULE.default(function((2, 40, k), (2, k, 64))[1], target).mr for k in (1024, 1040)] == expected


def test_packing_few_rows_costs_more_than_it_saves():
    """The estimate knows what a symbolic kernel chooses at run time: one tile reads b where it lies."""
    target = x86("avx512")
    _, func = function((4, tirx.Var("m", "int64"), 512), (4, 512, 512))
    decision, rows = RULE.default(func, target), match(func).m
    few, many = (RULE.estimate(func, target, decision, {rows: m}) for m in (decision.mr, decision.mr + 1))
    assert many > 1.1 * few


# ---- what the rule declines, by its sentence ----


def declined(func):
    with pytest.raises(Declined) as caught:
        RULE.default(func, x86("avx512"))
    return str(caught.value)


def test_declines_what_is_no_product():
    mod = fused(lambda emit, a, b: emit(relax.op.add(a, b)), [(4, 4), (4, 4)])
    assert declined(functions(mod)[0]) == "no block is annotated halo.op = matmul"


def test_declines_other_types():
    _, func = function((4, 5), (5, 6), dtype="float16")
    assert declined(func) == "operands and sum are float16, float16, float32: only float32 is served"


def test_declines_work_in_front():
    a, b = te.placeholder((4, 5), name="a"), te.placeholder((5, 6), name="b")
    func = te.create_prim_func([a, b, Matmul.compute(te.compute((4, 5), lambda i, j: a[i, j] + 1, name="before"), b)])
    assert declined(func) == "block before runs before the product: only stages behind it are served"


def test_declines_a_stage_that_turns():
    a, b = te.placeholder((4, 5), name="a"), te.placeholder((5, 6), name="b")
    y = Matmul.compute(a, b)
    func = te.create_prim_func([a, b, te.compute((6, 4), lambda i, j: y[j, i] + 1, name="turn")])
    assert "stage turn reads matmul at" in declined(func)


def test_declines_what_is_scheduled():
    target = x86("avx512")
    _, func = function((4, 5), (5, 6))
    done = RULE.apply(func, target, RULE.default(func, target))
    assert declined(done) == "the function is scheduled already"


def test_declines_decisions_out_of_range():
    _, func = function((4, 5), (5, 6))
    with pytest.raises(Declined, match="kc is 100, no multiple of the 16 lanes of avx512"):
        RULE.apply(func, x86("avx512"), Decision(8, 2, 64, 100))
    with pytest.raises(Declined, match="mr is 99, the rule serves 1 to 16"):
        RULE.apply(func, x86("avx512"), Decision(99, 2, 64, 128))


def test_declines_an_output_that_stages_read():
    a, b = te.placeholder((4, 5), name="a"), te.placeholder((5, 6), name="b")
    y = Matmul.compute(a, b)
    func = te.create_prim_func([a, b, y, te.compute((4, 6), lambda i, j: y[i, j] + 1, name="more")])
    assert declined(func) == "the product is an output, and so are stages behind it: it would not be stored"


def test_declines_a_product_stored_transposed():
    @T.prim_func(s_tir=True)
    def turned(a: T.Buffer((4, 5), "float32"), b: T.Buffer((5, 6), "float32"), c: T.Buffer((6, 4), "float32")):
        for i, j, k in T.grid(4, 6, 5):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                T.sblock_attr({"halo.op": "matmul"})
                with T.init():
                    c[vj, vi] = T.float32(0)
                c[vj, vi] = c[vj, vi] + a[vi, vk] * b[vk, vj]

    assert "is stored at other indices than it runs over" in declined(turned)


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize(("isa", "mr"), [("avx2", 6), ("avx512", 12)])
def test_the_inner_loop_multiplies_and_loads(isa, mr, form):
    """12 x 2 (AVX-512) or 6 x 2 (AVX2) sums in registers: one load a vector of b, one broadcast a row, no spill."""
    _, func = function(*shapes((2,), 120, 128, 256, form), form)
    target = x86(isa)
    decision = RULE.default(func, target)
    done = RULE.apply(func, target, decision).with_attr("global_symbol", "main")
    loop = k_loops(tvm.compile(tvm.IRModule({"main": done}), target=target.tvm), "vfmadd")[0]
    assert (decision.mr, decision.vectors) == (mr, 2)
    assert loop["vfmadd"] == 2 * mr and loop["stack"] == 0
    assert loop["broadcast"] <= mr and loop["load"] <= 2  # an operand in memory is counted with its multiplication
