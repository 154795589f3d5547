"""The elementwise rule: right for every shape and dtype, symbolic and static; declines with its reason."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from assembly import inner_loops
from covering import covering
from fused_functions import executable, functions, fused, here, random, scheduled, x86
from hypothesis import given, settings
from hypothesis import strategies as st
from injective_graphs import GRAPHS, F
from tvm import relax, te, tirx
from tvm.script import tirx as T

from halo_tvm.errors import Declined
from halo_tvm.extremes import at_least, at_most
from halo_tvm.passes.vector_math import VectorMath
from halo_tvm.tir_schedules import RULES

pytestmark = pytest.mark.covering(2)

RULE = RULES["elementwise"]
LENGTHS = (1, 2, 7, 16, 17, 64, 100, 768, "symbolic")
op = relax.op


def check(run: Callable, shapes: list[tuple[int, ...]], dtypes: list[str], reference: Callable) -> None:
    arrays = [random(s, t, seed=i) for i, (s, t) in enumerate(zip(shapes, dtypes))]
    expected, found = reference(*arrays), run(*arrays)
    assert found.shape == expected.shape
    if found.dtype == "float32":
        np.testing.assert_allclose(found, expected, rtol=5e-7, atol=1e-30)
    else:
        np.testing.assert_array_equal(found, expected)


# Every length on the widest vectors, the awkward ones on the others: each case is a compilation.
@pytest.mark.parametrize(
    ("isa", "length"), [("avx512", x) for x in LENGTHS] + [("avx2", x) for x in (1, 17, 100, "symbolic")]
)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.sampled(25, 110)
def test_numbers(isa: str, name: str, length: int | str) -> None:
    if not here(isa):
        pytest.skip(f"this processor does not run {isa}")
    graph, shapes, dtypes, reference = GRAPHS[name]
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    static = isinstance(length, int)
    run = executable(
        scheduled(fused(graph, shapes(n, length if static else d), dtypes), "elementwise", x86(isa)), x86(isa)
    )
    for rows in (1, 5, 130):
        for size in (length,) if static else (1, 3, 65, 1000):
            check(run, shapes(rows, size), dtypes, reference)


@pytest.mark.parametrize("name", ["chain with a broadcast", "add", "transpose", "one row"])
def test_every_decision_is_right(name: str) -> None:
    target = x86("avx2")
    graph, shapes, dtypes, reference = GRAPHS[name]
    for rows, size in ((5, 83), (131, 83)):  # below and above the least work for threads
        mod = fused(graph, shapes(rows, size), dtypes)
        (func,) = functions(mod)
        space = RULE.space(func, target)
        assert space[0] == RULE.default(func, target) and len(set(space)) == len(space)
        for decision in covering(space):
            check(
                executable(scheduled(mod, "elementwise", target, decision), target),
                shapes(rows, size),
                dtypes,
                reference,
            )


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 90), length=st.integers(1, 200))
def test_any_static_transpose(rows: int, length: int) -> None:
    graph, shapes, dtypes, reference = GRAPHS["transpose"]
    target = x86("avx2")
    mod = scheduled(fused(graph, shapes(rows, length), dtypes), "elementwise", target)
    check(executable(mod, target), shapes(rows, length), dtypes, reference)


def test_small_work_is_not_parallel() -> None:
    graph, shapes, dtypes, _ = GRAPHS["add"]
    for rows, parallel in ((2, False), (400, True)):
        text = scheduled(fused(graph, shapes(rows, 64), dtypes), "elementwise", x86("avx2")).script()
        assert ("T.parallel" in text) == parallel


def test_a_chain_of_bounds_does_not_double_with_each() -> None:
    """Sixteen steps of a quantised file's activations, each with both bounds, NaN kept: 4 ** 16 nodes if x were named
    twice in each."""
    steps = 16
    x = te.placeholder((9, 37), name="x")
    value = x

    def step(source: te.Tensor) -> te.Tensor:
        moved = te.compute(x.shape, lambda *i: source[i] * te.const(1.5, "float32") - te.const(0.25, "float32"))
        low = te.compute(x.shape, lambda *i: at_least(moved[i], te.const(-3.0, "float32")))
        return te.compute(x.shape, lambda *i: at_most(low[i], te.const(2.0, "float32")))

    for _ in range(steps):
        value = step(value)
    target = x86("avx2")
    func = RULE.apply(primfunc(x, value), target, RULE.default(primfunc(x, value), target))
    run = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target.tvm)
    given, found = random((9, 37)), np.empty((9, 37), "float32")
    given[::2, 3:30:5] = np.nan
    out = tvm.runtime.tensor(found)
    run["main"](tvm.runtime.tensor(given), out)
    expected = given
    for _ in range(steps):
        expected = np.clip(expected * np.float32(1.5) - np.float32(0.25), -3, 2)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


def integrated(shape: tuple[int, ...], steps: int) -> tuple[te.Tensor, te.Tensor]:
    """x and `steps` steps of x + h tanh(x) - h x^3 behind it, three blocks each."""
    x = te.placeholder(shape, name="x")
    value = x
    for _ in range(steps):
        turned = te.compute(shape, lambda *i: tirx.tanh(value[i]) * te.const(0.1, "float32"))
        cube = te.compute(shape, lambda *i: value[i] * value[i] * value[i] * te.const(0.1, "float32"))
        value = te.compute(shape, lambda *i: value[i] + turned[i] - cube[i])
    return x, value


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "int32"])
def test_names_of_other_types(dtype: str) -> None:
    """TVM has no names of vectors of truth values, and lowers bfloat16 by integers."""
    x = te.placeholder((9, 37), name="x")
    value = te.compute(x.shape, lambda *i: x[i] > te.const(0.0, "float32") if dtype == "bool" else x[i].astype(dtype))
    for _ in range(6):
        if dtype == "bool":
            value = te.compute(x.shape, lambda *i: tirx.any(tirx.all(value[i], x[i] < 1.5), tirx.Not(value[i])))
        else:
            value = te.compute(
                x.shape, lambda *i: value[i] * value[i] - value[i] * te.const(0.5 if dtype != "int32" else 1, dtype)
            )
    y = te.compute(x.shape, lambda *i: value[i].astype("float32"))
    func, target = primfunc(x, y), x86("avx2")
    applied = RULE.apply(func, target, RULE.default(func, target))
    mod, _ = VectorMath()(tvm.IRModule({"main": applied.with_attr("global_symbol", "main")}))
    given, out = random((9, 37)), tvm.runtime.tensor(np.empty((9, 37), "float32"))
    tvm.compile(mod, target=target.tvm)["main"](tvm.runtime.tensor(given), out)
    made = given > 0 if dtype == "bool" else given.astype("int32" if dtype == "int32" else "float32")
    for _ in range(6):
        made = (
            (made & (given < 1.5)) | ~made if dtype == "bool" else made * made - made * (1 if dtype == "int32" else 0.5)
        )
    np.testing.assert_allclose(out.numpy(), made.astype("float32"), rtol=0.2 if dtype == "bfloat16" else 0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_what_is_read_several_times_is_computed_once(padded: bool) -> None:
    """Eleven steps name x five times each: written out that is 5 ** 11 expressions, and compiling did not end.

    What only some elements may read has a name that keeps their condition.
    """
    n = tirx.Var("n", "int64")
    x, value = integrated((n, 37), 11)
    if padded:

        def element(i: tirx.Var, j: tirx.Var) -> tvm.ir.Expr:
            first = value[i - 2, tirx.IntImm("int64", 0)]
            return tirx.if_then_else(te.all(i >= 2, j >= 1), value[i - 2, j - 1] * first, te.const(0.0, "float32"))

        y = te.compute((n + 2, tirx.IntImm("int64", 38)), element)
    else:
        y = te.compute((n, 36), lambda i, j: value[i, j] * value[8 - (8 - i), j + 1])
    func, target = primfunc(x, y), x86("avx2")
    applied = RULE.apply(func, target, RULE.default(func, target))
    mod, _ = VectorMath()(tvm.IRModule({"main": applied.with_attr("global_symbol", "main")}))
    text = mod.script()
    assert "named" in text and len(text) < 1_000_000
    given, shape = random((9, 37)), (11, 38) if padded else (9, 36)
    out = tvm.runtime.tensor(np.empty(shape, "float32"))
    tvm.compile(mod, target=target.tvm)["main"](tvm.runtime.tensor(given), out)
    made = given.astype("float64")
    for _ in range(11):
        made = made + 0.1 * np.tanh(made) - 0.1 * made**3
    expected = np.pad(made * made[:, :1], ((2, 0), (1, 0))) if padded else made[:, :-1] * made[:, 1:]
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-5, atol=1e-6)


def test_contiguous_axes_become_one() -> None:
    """Three axes of the same contiguous tensors need no loop per axis: 30 elements are whole vectors."""
    graph, shapes, dtypes, _ = GRAPHS["add"]
    (func,) = functions(scheduled(fused(graph, shapes(3, 5), dtypes), "elementwise", x86("avx2")))
    assert "T.vectorized" in func.script() and "range(" not in func.script()


def primfunc(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors))


def identity() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    return primfunc(x, te.compute((4, 5), lambda i, j: x[i, j] * te.const(2.0)))


def reduction() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 5))
    return primfunc(x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k)))


def doubling() -> tirx.PrimFunc:
    x = te.placeholder((4,), name="x")
    left, right = (te.placeholder((4,), "int32", name=name) for name in ("left", "right"))

    def product(value: te.Tensor) -> te.Tensor:
        return te.compute((4,), lambda i: value[left[i]] * value[right[i]])

    return primfunc(x, left, right, functools.reduce(lambda value, _: product(value), range(14), x))


@T.prim_func(s_tir=True)
def predicate(x: T.Buffer((10,), "float32"), y: T.Buffer((10,), "float32")):
    for i, j in T.grid(3, 4):
        with T.sblock("y"):
            T.where(i * 4 + j < 10)
            v = T.axis.spatial(10, i * 4 + j)
            y[v] = x[v]


@T.prim_func(s_tir=True)
def two_stores(x: T.Buffer((10,), "float32"), y: T.Buffer((10,), "float32"), z: T.Buffer((10,), "float32")):
    for i in T.serial(10):
        with T.sblock("y"):
            v = T.axis.spatial(10, i)
            y[v] = x[v]
            z[v] = x[v]


@T.prim_func(s_tir=True)
def scatter(x: T.Buffer((10,), "float32"), y: T.Buffer((10,), "float32")):
    for i in T.serial(10):
        with T.sblock("y"):
            v = T.axis.spatial(10, i)
            y[9 - v] = x[v]


@T.prim_func(s_tir=True)
def in_place(y: T.Buffer((10,), "float32")):
    for i in T.serial(10):
        with T.sblock("y"):
            v = T.axis.spatial(10, i)
            y[v] = y[v] + T.float32(1)


@T.prim_func(s_tir=True)
def empty(y: T.Buffer((10,), "float32")):
    T.evaluate(0)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: identity().with_attr("tirx.is_scheduled", True), "scheduled already"),
        (reduction, "a block reduces"),
        (lambda: predicate, "a block has a predicate"),
        (lambda: two_stores, "a block stores several values"),
        (lambda: scatter, "a store is not at one iterator per axis"),
        (lambda: in_place, "a block reads the buffer it writes"),
        (lambda: empty, "the function has no blocks"),
        (doubling, "an inlined expression reads more than 2000 places of intermediates"),
    ],
)
def test_declines(make: Callable[[], tirx.PrimFunc], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.default(make(), x86("avx2"))


TURNED: dict[str, tuple[Callable, Callable, list[str], Callable]] = {
    "transpose": GRAPHS["transpose"],
    "int32": (lambda emit, x: emit(op.permute_dims(x, (1, 0))), lambda n, d: [(n, d)], ["int32"], lambda x: x.T),
    "batched": (
        lambda emit, x: emit(op.permute_dims(x, (0, 2, 1))),
        lambda n, d: [(3, n, d)],
        [F],
        lambda x: x.transpose(0, 2, 1),
    ),
    "within a chain": (
        lambda emit, x, b: emit(op.nn.relu(emit(op.permute_dims(emit(op.add(x, b)), (1, 0))))),
        lambda n, d: [(n, d), (d,)],
        [F, F],
        lambda x, b: np.maximum(x + b, 0).T,
    ),
    "beside one that stays": (
        lambda emit, x, y: emit(op.add(emit(op.permute_dims(x, (1, 0))), y)),
        lambda n, d: [(n, d), (d, n)],
        [F, F],
        lambda x, y: x.T + y,
    ),
    "two of them": (
        lambda emit, x, y: emit(op.permute_dims(emit(op.subtract(x, y)), (1, 0))),
        lambda n, d: [(n, d), (n, d)],
        [F, F],
        lambda x, y: (x - y).T,
    ),
    "under a condition": (
        lambda emit, x: emit(op.permute_dims(emit(op.nn.pad(x, (1, 2, 3, 0))), (1, 0))),
        lambda n, d: [(n, d)],
        [F],
        lambda x: np.pad(x, ((1, 2), (3, 0))).T,
    ),
    "of halves": (
        lambda emit, x: emit(op.permute_dims(x, (1, 0))),
        lambda n, d: [(n, d)],
        ["float16"],
        lambda x: x.T,
    ),
}


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize(("isa", "lanes"), [("avx512", 16), ("avx512", 4), ("avx2", 8)])
@pytest.mark.sampled(6)
def test_tiles_of_every_size_are_turned_right(name: str, isa: str, lanes: int) -> None:
    """Whole tiles in both directions, in one, in none; each rest in either direction."""
    if not here(isa):
        pytest.skip(f"this processor does not run {isa}")
    graph, shapes, dtypes, reference = TURNED[name]
    n, d = tirx.Var("n", "int64"), tirx.Var("d", "int64")
    target = x86(isa)
    for known in (False, True):
        sizes = [(16, 16), (32, 48), (33, 31)] if known else [(n, d)]
        for rows, size in sizes:
            mod = fused(graph, shapes(rows, size), dtypes)
            (func,) = functions(mod)
            decision = dataclasses.replace(RULE.default(func, target), lanes=lanes, tile=32 if lanes == 8 else 16)
            run = executable(scheduled(mod, "elementwise", target, decision), target)
            tried = [(rows, size)] if known else [(a, b) for a in (1, 15, 16, 17, 150) for b in (1, 16, 31, 64, 97)]
            for a, b in tried:
                check(run, shapes(a, b), dtypes, reference)


def mixed_rows(n: int | tirx.Var, d: int | tirx.Var) -> tirx.PrimFunc:
    """y[j, i] of rows of x, two of them for each i: what interpolation is made of."""
    x, shares = te.placeholder((7, d), name="x"), te.placeholder((n, 2), name="shares")
    rows = te.placeholder((n, 2), "int32", name="rows")

    def element(j: tirx.Var, i: tirx.Var) -> te.tensor.Tensor:
        parts = [x[rows[i, k].astype("int64"), j] * shares[i, k] for k in range(2)]
        return parts[0] + parts[1]

    return primfunc(x, shares, rows, te.compute((d, n), element, name="y"))


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "lanes"), [("avx512", 16), ("avx512", 4), ("avx2", 8)])
def test_values_of_several_rows_are_turned(isa: str, lanes: int) -> None:
    """Whole tiles and every rest, known and not; nothing is gathered from memory."""
    if not here(isa):
        pytest.skip(f"this processor does not run {isa}")
    target, n, d = x86(isa), tirx.Var("n", "int64"), tirx.Var("d", "int64")
    for sizes in ((16, 16), (33, 3), (5, 35), (n, 19), (21, d), (n, d)):
        func = mixed_rows(*sizes)
        decision = dataclasses.replace(RULE.default(func, target), lanes=lanes)
        kernel = RULE.apply(func, target, decision)
        built = tvm.compile(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), target=target.tvm)
        if all(isinstance(size, int) for size in sizes):
            assert "gather" not in built.mod.inspect_source("asm")
        known = [[size] if isinstance(size, int) else [1, 15, 16, 50] for size in sizes]
        for rows, size in itertools.product(*known):
            x, shares, places = random((7, size)), random((rows, 2), seed=1), random((rows, 2), "int32", seed=2)
            y = np.zeros((size, rows), F)
            given = [tvm.runtime.tensor(a) for a in (x, shares, places, y)]
            built["main"](*given)
            wanted = (x[places[:, 0]] * shares[:, :1] + x[places[:, 1]] * shares[:, 1:]).T
            np.testing.assert_allclose(given[-1].numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_large_transpositions_take_larger_tiles() -> None:
    """Out of memory a page that is opened should be used more than once."""
    graph, shapes, dtypes, reference = GRAPHS["transpose"]
    target = x86("avx2")
    for (rows, size), tile in (((2048, 2048), 64), ((512, 512), 16)):
        mod = fused(graph, shapes(rows, size), dtypes)
        (func,) = functions(mod)
        assert RULE.default(func, target).tile == tile
    for sizes in ((100, 2100), (2050, 2051)):
        mod = fused(graph, shapes(*sizes), dtypes)
        (func,) = functions(mod)
        decision = dataclasses.replace(RULE.default(func, target), tile=64)
        check(executable(scheduled(mod, "elementwise", target, decision), target), shapes(*sizes), dtypes, reference)


@pytest.mark.parametrize(("isa", "width", "shuffles"), [("avx512", 16, 64), ("avx2", 8, 24)])
def test_assembly_of_a_turned_tile(isa: str, width: int, shuffles: int) -> None:
    """A tile is loads, shuffles and stores of whole registers: no gather, no single element, no spill."""
    graph, shapes, dtypes, _ = GRAPHS["transpose"]
    target = x86(isa)
    mod = fused(graph, shapes(8 * width, 8 * width), dtypes)
    (func,) = functions(mod)
    decision = dataclasses.replace(RULE.default(func, target), lanes=width, tile=width, serial_below=1 << 30)
    (kernel,) = functions(scheduled(mod, "elementwise", target, decision))
    kernel = kernel.with_attr("global_symbol", "main")
    text = tvm.compile(tvm.IRModule({"main": kernel}), target=target.tvm).mod.inspect_source("asm")
    loops = [loop for loop in inner_loops(text) if any("vunpckl" in line for line in loop)]
    assert loops, "the tile is a loop of its own"
    names = [line.split()[0] for line in loops[0] if line.split() and not line.split()[0].startswith((".", "#"))]
    moves = ("vunpck", "vshuff", "vinsertf", "vperm", "vblend", "vmovlhps")
    moved = [n for n in names if n.startswith(moves)]
    assert len(moved) == shuffles, names
    assert not [n for n in names if "gather" in n or n in ("vmovss", "vinsertps", "vpinsrd", "vextractps")]
    stores = [line for line in loops[0] if re.search(r"vmov[au]p[sd]\s+%[yz]mm\d+, .*\(", line)]
    assert len(stores) == width and "%rsp" not in "".join(stores), stores


def test_images_of_one_channel_have_vectors_of_places() -> None:
    """An axis of one element behind the others hides no vectors, whatever is read along them."""
    target, shapes, dtypes = x86("avx2"), [(3, 5, 1), (40,)], [F, "int64"]
    mod = fused(lambda emit, x, i: emit(op.take(x, i, axis=1, mode="clip")), shapes, dtypes)
    mod = scheduled(mod, "elementwise", target)
    assert "T.vectorized" in mod.script()
    check(executable(mod, target), shapes, dtypes, lambda x, i: x[:, i])


@pytest.mark.parametrize(("colours", "tiled"), [(3, False), (4, False), (5, True)])
def test_pixels_of_a_few_bytes_are_read_in_order_and_not_tiled(colours: int, tiled: bool) -> None:
    def graph(emit, x, scale):
        return emit(op.multiply(emit(op.astype(emit(op.permute_dims(x, [2, 0, 1])), F)), scale))

    target, shapes, dtypes = x86("avx2"), [(9, 40, colours), (colours, 1, 1)], ["uint8", F]
    mod = scheduled(fused(graph, shapes, dtypes), "elementwise", target)
    assert ("tile" in mod.script()) == tiled
    check(executable(mod, target), shapes, dtypes, lambda x, scale: x.transpose(2, 0, 1) * scale)


def test_what_is_not_turned_is_still_right_and_said_so_by_its_code() -> None:
    """A condition around a load keeps its tile in gathers: the memory may not be there."""
    target = x86("avx2")
    for name, turns in (("within a chain", True), ("under a condition", False), ("of halves", False)):
        graph, shapes, dtypes, _ = TURNED[name]
        text = scheduled(fused(graph, shapes(64, 64), dtypes), "elementwise", target).script()
        assert ("T.Shuffle" in text) == turns, name


def test_parts_of_a_concatenation_are_loops_of_their_own():
    """Padded and concatenated along the last axis: no element asks to which part it belongs."""

    def graph(emit, x, y, z):
        joined = emit(op.concat([x, y, emit(op.nn.relu(z))], axis=1))
        return emit(op.nn.pad(joined, [0, 0, 2, 3]))

    shapes, target = [(40, width) for width in (5, 33, 16)], x86("avx2")
    mod = scheduled(fused(graph, shapes), "elementwise", target)
    assert "if_then_else" in fused(graph, shapes).script() and "if_then_else" not in mod.script()
    check(
        executable(mod, target),
        shapes,
        ["float32"] * 3,
        lambda x, y, z: np.pad(np.concatenate([x, y, np.maximum(z, 0)], 1), ((0, 0), (2, 3))),
    )
