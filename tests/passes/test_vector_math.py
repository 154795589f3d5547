"""Vector math: every function against float64 over all magnitudes, NaN and infinities, and no library call left."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from halo_tvm.passes.vector_math import VectorMath
from halo_tvm.targets import TARGETS, Target, read_host
from halo_tvm.tir_schedules.blocks import is_choice, loads
from halo_tvm.tir_schedules.code.lets import hoist_lets, under_lets
from halo_tvm.tir_schedules.code.vector_math import BUILDERS, gelu

erf64 = np.vectorize(math.erf)
CHUNK = 4096
# float64 reference and largest relative error of a normal result, measured with a margin of a fifth
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.0e-7),
    "exp2": (np.exp2, 1.0e-7),
    "tanh": (np.tanh, 2.7e-7),
    "erf": (erf64, 2.2e-7),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 1.8e-7),
    "log": (np.log, 1.0e-7),
    "log2": (np.log2, 1.7e-7),
    "log10": (np.log10, 1.8e-7),
    "log1p": (np.log1p, 2.1e-7),
    "sin": (np.sin, 1.3e-7),
    "cos": (np.cos, 1.3e-7),
    "tan": (np.tan, 2.4e-7),
    "asin": (np.arcsin, 3.0e-7),
    "acos": (np.arccos, 3.0e-7),
    "atan": (np.arctan, 3.0e-7),
}
EXTREMES = [
    np.inf,
    -np.inf,
    np.nan,
    0.0,
    -0.0,
    1.0,
    -1.0,
    88.72283,
    88.73,
    -87.3365,
    127.99999,
    128,
    -126,
    -127,
    1e-40,
    3e38,
    -3e38,
]


def target(isa: str) -> Target:
    spec = TARGETS["x86"]
    return Target(spec=spec, isa=next(i for i in spec.isas if i.name == isa), cores=2)


def skip_unless_runs(isa: str) -> None:
    if not target(isa).isa.requires <= read_host().flags:
        pytest.skip(f"this processor does not run {isa}")


def elementwise(fn: Callable, dtype: str = "float32") -> tvm.IRModule:
    x = te.placeholder((CHUNK,), dtype, name="x")
    return vectorised([x, te.compute((CHUNK,), lambda i: fn(x[i]), name="y")])


def vectorised(tensors: list[te.Tensor]) -> tvm.IRModule:
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(tensors).with_attr("global_symbol", "main")}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    (i,) = schedule.get_loops(block)
    schedule.vectorize(schedule.split(i, [None, 16])[1])
    return schedule.mod


def compiled(mod: tvm.IRModule, isa: str) -> tvm.runtime.Executable:
    return tvm.compile(mod, target=target(isa).tvm)


def run(executable: tvm.runtime.Executable, x: np.ndarray) -> np.ndarray:
    out = []
    for part in np.array_split(x, -(-len(x) // CHUNK)):
        padded = np.zeros(CHUNK, "float32")
        padded[: len(part)] = part
        result = tvm.runtime.tensor(np.zeros(CHUNK, "float32"))
        executable["main"](tvm.runtime.tensor(padded), result)
        out.append(result.numpy()[: len(part)])
    return np.concatenate(out)


def dense() -> np.ndarray:
    """Every 40001st float32 of all that exist, and fine steps where the functions bend."""
    bits = np.arange(0, 2**32, 40001, dtype=np.uint64).astype("uint32").view("float32")
    return np.concatenate([bits, np.linspace(-100, 100, 40001), np.linspace(-5, 5, 40001), EXTREMES]).astype("float32")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_accuracy_and_extremes(isa: str, name: str) -> None:
    skip_unless_runs(isa)
    mod, report = VectorMath()(elementwise(getattr(tirx, name)))
    assert report == {"rewritten": {name: 1}, "left": {}}
    executable = compiled(mod, isa)
    reference, limit = FUNCTIONS[name]
    x = dense()
    with np.errstate(all="ignore"):
        expected = reference(x.astype("float64"))
        rounded = expected.astype("float32")
        found = run(executable, x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(found[infinite], rounded[infinite])
    normal = np.isfinite(rounded) & (np.abs(expected) > 1.2e-38)
    assert (np.abs(found[normal] - expected[normal]) / np.abs(expected[normal])).max() <= limit
    tiny = np.abs(expected) <= 1.2e-38
    assert np.abs(found[tiny]).max(initial=0.0) <= 1.2e-38
    assembly = executable.mod.inspect_source("asm")
    calls = [line.split()[-1] for line in assembly.splitlines() if line.strip().startswith(("call", "jmp"))]
    words = ("exp", "log", "erf", "tan", "pow", "sin", "cos")
    assert not [c for c in calls if any(word in c for word in words)]
    assert ("zmm" if isa == "avx512" else "ymm") in assembly and "vfmadd" in assembly


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_powers(isa: str) -> None:
    """Of every pair of special values, and of bases and exponents whose powers are numbers, overflow and vanish."""
    skip_unless_runs(isa)
    random = np.random.default_rng(0)
    special = np.array(
        [*EXTREMES, 2, -2, 3, -3, 0.5, -1.5, 1e-40, -1e-40, -149, 2.0**24 + 1, 2.0**25, 1 / 3], "float32"
    )
    first, second = (grid.ravel() for grid in np.meshgrid(special, special))
    bits = random.integers(0, 2**32, CHUNK, dtype=np.uint32).view("float32")
    near_one = 1 + random.standard_normal(CHUNK) * 1e-4
    x = [first, bits, np.exp(random.standard_normal(CHUNK) * 3), near_one, random.standard_normal(CHUNK)]
    y = [second, random.standard_normal(CHUNK) * 3, random.standard_normal(CHUNK) * 8]
    y += [random.standard_normal(CHUNK) * 1e5, random.integers(-9, 9, CHUNK)]
    pairs = np.zeros((2, -(-sum(map(len, x)) // CHUNK) * CHUNK), "float32")
    for row, parts in zip(pairs, (x, y)):
        row[: sum(map(len, parts))] = np.concatenate(parts)
    base, exponent = (te.placeholder((CHUNK,), name=name) for name in "xy")
    mod, report = VectorMath()(
        vectorised([base, exponent, te.compute((CHUNK,), lambda i: tirx.pow(base[i], exponent[i]))])
    )
    assert report == {"rewritten": {"pow": 1}, "left": {}}
    executable, found = compiled(mod, isa), []
    for chunk in range(0, pairs.shape[1], CHUNK):
        out = tvm.runtime.tensor(np.zeros(CHUNK, "float32"))
        executable(*(tvm.runtime.tensor(np.ascontiguousarray(row[chunk : chunk + CHUNK])) for row in pairs), out)
        found.append(out.numpy())
    with np.errstate(all="ignore"):
        expected = np.power(*pairs.astype("float64"))
        rounded = expected.astype("float32")
    found = np.concatenate(found)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    np.testing.assert_array_equal(np.signbit(found[~np.isnan(rounded)]), np.signbit(rounded[~np.isnan(rounded)]))
    np.testing.assert_array_equal(found[np.isinf(rounded)], rounded[np.isinf(rounded)])
    normal = np.isfinite(rounded) & (np.abs(expected) > 1.2e-38)
    assert (np.abs(found[normal] - expected[normal]) / np.abs(expected[normal])).max() <= 6.1e-8
    assert "pow" not in executable.mod.inspect_source("asm").replace("pow_", "")


@pytest.mark.parametrize("exponent", [0.3, -1.7, 5.0])
def test_a_constant_power(exponent: float) -> None:
    mod, report = VectorMath()(elementwise(lambda x: tirx.pow(x, tirx.const(exponent, "float32"))))
    assert report == {"rewritten": {"pow": 1}, "left": {}}
    x = np.exp(np.linspace(-12, 12, 10001)).astype("float32")
    expected = x.astype("float64") ** np.float32(exponent).astype("float64")
    np.testing.assert_allclose(run(compiled(mod, "avx2"), x), expected, rtol=6.1e-8)


def gelu_expression(x, half=0.5, one=1.0, before=True):
    c = lambda v: tirx.const(v, "float32")  # noqa: E731
    total = c(one) + tirx.erf(x * c(0.5**0.5))
    return x * c(half) * total if before else x * (total * c(half))


def test_gelu_is_no_worse_than_with_erff() -> None:
    x = np.concatenate([np.linspace(-12, 12, 200001), [-100, -1e30, 1e30]]).astype("float32")
    expected = 0.5 * x.astype("float64") * (1 + erf64(x.astype("float64") / math.sqrt(2)))
    with_erff = run(compiled(elementwise(gelu_expression), "avx2"), x)
    mod, report = VectorMath()(elementwise(gelu_expression))
    assert report["rewritten"] == {"gelu": 1}
    ours = run(compiled(mod, "avx2"), x)
    small = np.abs(x) < 100
    assert np.abs(ours - expected)[small].max() <= np.abs(with_erff - expected)[small].max()
    np.testing.assert_allclose(ours[~small], [0, 0, 1e30], rtol=1e-6, atol=1e-30)
    special = run(compiled(mod, "avx2"), np.array([np.nan, -np.inf, np.inf], "float32"))
    np.testing.assert_array_equal(special, [np.nan, np.nan, np.inf])  # as the formula has it: -inf * 0


def gelu_tanh_expression(x, cube=0.044715, scale=math.sqrt(2 / math.pi), spread=False):
    c = lambda v: tirx.const(v, "float32")  # noqa: E731
    inner = c(scale) * (x + c(cube) * (x * x * x)) if spread else c(scale) * x * (c(1) + c(cube) * x * x)
    return c(0.5) * x * (c(1.0) + tirx.tanh(inner))


@pytest.mark.parametrize("spread", [False, True])
def test_gelu_by_tanh_is_exact_to_a_rounding(spread) -> None:
    x = np.concatenate([np.linspace(-12, 12, 200001), [-100, -1e30, 1e30, -np.inf, np.inf]]).astype("float32")
    wide = x.astype("float64")[:-5]
    expected = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    mod, report = VectorMath()(elementwise(lambda x: gelu_tanh_expression(x, spread=spread)))
    assert report["rewritten"] == {"gelu_tanh": 1}
    found = run(compiled(mod, "avx2"), x)
    assert (np.abs(found[:-5] - expected) / np.maximum(1, np.abs(wide))).max() <= 1.2e-7
    np.testing.assert_allclose(found[-5:], [0, 0, 1e30, np.nan, np.inf], rtol=1e-6, atol=1e-10)
    assert np.isnan(run(compiled(mod, "avx2"), np.array([np.nan], "float32"))).all()


@pytest.mark.parametrize(
    ("expression", "rewritten"),
    [
        (lambda x: gelu_expression(x, before=False), {"gelu": 1}),
        (lambda x: gelu_expression(x, half=1.0), {"gelu": 1}),  # 2 * gelu
        (lambda x: gelu_expression(x, one=0.9), {"erf": 1}),  # not the same constant beside erf: no GELU
        (lambda x: x * (tirx.const(1.0, "float32") + tirx.erf(x)), {"erf": 1}),  # another scale
        (lambda x: gelu_tanh_expression(x, cube=0.05), {"tanh": 1}),
        (lambda x: gelu_tanh_expression(x, scale=0.8), {"tanh": 1}),
        (lambda x: gelu_tanh_expression(x * x), {"gelu_tanh": 1}),
        (lambda x: tirx.exp(tirx.exp(x)), {"exp": 2}),
        (lambda x: tirx.tanh(tirx.log1p(tirx.exp(x * tirx.const(0.1, "float32")))), {"exp": 1, "log1p": 1, "tanh": 1}),
        (lambda x: tirx.pow(x, tirx.const(2.0, "float32")) + tirx.pow(x, tirx.const(-1.0, "float32")), {"pow": 2}),
    ],
)
def test_compositions(expression: Callable, rewritten: dict[str, int]) -> None:
    mod = elementwise(expression)
    new, report = VectorMath()(mod)
    assert report == {"rewritten": rewritten, "left": {}}
    x = np.linspace(0.1, 4, 1000).astype("float32")
    np.testing.assert_allclose(run(compiled(new, "avx2"), x), run(compiled(mod, "avx2"), x), rtol=5e-6, atol=1e-6)


def test_gelus_of_gelus_are_stored_between_them() -> None:
    new, report = VectorMath()(elementwise(lambda x: gelu_expression(gelu_expression(x))))
    assert report["rewritten"] == {"gelu": 3} and "stage" in new.script()


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_chain_of_functions_is_stored_between_them(dtype: str, lanes: int) -> None:
    """TVM multiplies the values of nested variables: from the fourth function on, compiling did not end."""
    deep = lambda x: functools.reduce(lambda value, f: f(value), [tirx.tanh, tirx.exp, tirx.log1p] * 4, x)  # noqa: E731
    x = te.placeholder((CHUNK,), dtype, name="x")
    tensors = [x, te.compute((CHUNK,), lambda i: deep(x[i]), name="y")]
    mod = vectorised(tensors) if lanes > 1 else tvm.IRModule({"main": te.create_prim_func(tensors)})
    new, report = VectorMath()(mod)
    assert report == {"rewritten": {"tanh": 4, "exp": 4, "log1p": 4}, "left": {}}
    stages = []
    tvm_ffi.structural_walk(new["main"].body, (tirx.AllocBuffer, lambda made: stages.append(int(made.buffer.shape[0]))))
    assert stages == [lanes] * 11
    values = np.linspace(-4, 4, CHUNK).astype(dtype)
    expected = values.astype("float64")
    for _ in range(4):
        expected = np.log1p(np.exp(np.tanh(expected)))
    out = tvm.runtime.tensor(np.zeros(CHUNK, dtype))
    compiled(new, "avx2")(tvm.runtime.tensor(values), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-6 if dtype == "float32" else 4e-3)


def test_names_in_front_of_a_function_are_stored_between_them() -> None:
    """As words of random numbers in front of a cosine: each name is made of the one before, twice."""

    def deep(x: tvm.ir.Expr) -> tvm.ir.Expr:
        chain = [(tirx.Var("a0", "float32"), x * tirx.const(0.1, "float32"))]
        for i in range(1, 16):
            last = chain[-1][0]
            chain.append((tirx.Var(f"a{i}", "float32"), last + last * last))
        return under_lets(chain, tirx.cos(chain[-1][0]) * tirx.sin(chain[-1][0]))

    new, _ = VectorMath()(elementwise(deep))
    x = np.linspace(-4, 4, CHUNK).astype("float32")
    out = tvm.runtime.tensor(np.zeros(CHUNK, "float32"))
    compiled(new, "avx2")(tvm.runtime.tensor(x), out)
    expected = x * np.float32(0.1)
    for _ in range(15):
        expected = expected + expected * expected
    inside = np.abs(expected) < 50
    expected = expected.astype("float64")
    np.testing.assert_allclose(out.numpy()[inside], (np.cos(expected) * np.sin(expected))[inside], atol=2e-3)


def test_what_leaves_a_branch_keeps_its_condition() -> None:
    """It was read in front of its tensor: the condition stayed behind."""
    x, count = tirx.decl_buffer((CHUNK,), name="x"), tirx.decl_buffer((CHUNK,), "int32", name="count")
    i, t, u = tirx.Var("i", "int64"), tirx.Var("t", "float32"), tirx.Var("u", "int32")
    inside = tirx.Let(t, x[i - 3], t * t + tirx.Let(u, tirx.floordiv(7, count[i]), u).astype("float32"))
    moved = hoist_lets(tirx.if_then_else(i >= 3, inside, x[i]))
    values = []
    while isinstance(moved, tirx.Let):
        values.append(moved.value)
        moved = moved.body
    assert len(values) == 2 and all(is_choice(value) and loads(value) for value in values)
    assert is_choice(moved) and len(loads(moved)) == 1


def test_hundreds_of_functions_in_one_store() -> None:
    """Each variable was a call within a callback, and a callback that ran out of Python's stack killed the process."""
    deep = lambda x: functools.reduce(lambda value, _: tirx.tanh(value), range(60), x)  # noqa: E731
    assert VectorMath()(elementwise(deep))[1]["rewritten"] == {"tanh": 60}


def test_choices_between_choices_are_stored() -> None:
    """Numbers that are quantised three times: each clip writes its number twice, and each pair of clips four times."""

    def quantised(x: tvm.ir.Expr) -> tvm.ir.Expr:
        low, high, step = (tirx.const(value, "float32") for value in (-12.0, 12.0, 0.3))
        x = tirx.nearbyint(x / step)
        x = tirx.Select(x < low, low, x)
        return tirx.Select(high < x, high, x) * step

    mod = elementwise(lambda x: functools.reduce(lambda value, _: quantised(value * 1.7), range(3), x))
    new, _report = VectorMath()(mod)
    assert new.script().count("T.Select") < 20 < 4**3 - 1 == mod.script().count("T.Select")
    x = np.linspace(-4, 4, 1000).astype("float32")
    expected = x
    for _ in range(3):
        expected = np.clip(np.rint(expected * np.float32(1.7) / np.float32(0.3)), -12, 12).astype("f4") * np.float32(
            0.3
        )
    np.testing.assert_allclose(run(compiled(new, "avx2"), x), expected, rtol=1e-6)


def test_logarithms_in_integer_stores() -> None:
    """TVM's analysis of an integer expression refuses a variable with a range of its own."""
    x = te.placeholder((CHUNK,), "float32", "x")
    y = te.compute((CHUNK,), lambda i: te.ceil(te.log(x[i])).astype("int64"), "y")
    mod, _report = VectorMath()(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    values = np.geomspace(1e-3, 1e6, CHUNK).astype(np.float32)
    out = tvm.runtime.tensor(np.zeros(CHUNK, np.int64))
    tvm.compile(mod, target="llvm")(tvm.runtime.tensor(values), out)
    exact = np.log(values.astype(np.float64))
    clear = np.abs(exact - np.round(exact)) > 1e-5
    np.testing.assert_array_equal(out.numpy()[clear], np.ceil(exact)[clear].astype(np.int64))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_no_number_is_a_comparison(dtype: str) -> None:
    """TVM has no vectors of `isnan`, which would make single elements of a whole loop."""
    mod = elementwise(lambda x: tirx.Select(tirx.isnan(x), tirx.const(0.0, dtype), x), dtype)
    new, report = VectorMath()(mod)
    assert "isnan" not in new.script() and report == {"rewritten": {}, "left": {}}
    values = np.array([1, np.nan, -np.inf, 0] * (CHUNK // 4), dtype)
    out = tvm.runtime.tensor(np.zeros(CHUNK, dtype))
    tvm.compile(new, target="llvm")(tvm.runtime.tensor(values), out)
    np.testing.assert_array_equal(out.numpy(), np.where(np.isnan(values), 0, values))


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_angles_of_points(isa: str) -> None:
    """Every quadrant, axes, zeros and infinities of either sign, and NaN."""
    skip_unless_runs(isa)
    x, y = (te.placeholder((CHUNK,), "float32", name=n) for n in "xy")
    mod, report = VectorMath()(vectorised([y, x, te.compute((CHUNK,), lambda i: tirx.atan2(y[i], x[i]), name="z")]))
    assert report == {"rewritten": {"atan2": 1}, "left": {}}
    special = np.float32([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-38, -3e38])
    pairs = np.array(list(itertools.product(special, special)), np.float32)
    rest = np.random.default_rng(0).standard_normal((CHUNK - len(pairs), 2)) * np.geomspace(1e-3, 1e3, 2)
    values = np.concatenate([pairs, rest]).astype(np.float32)
    out = tvm.runtime.tensor(np.zeros(CHUNK, np.float32))
    compiled(mod, isa)["main"](*(tvm.runtime.tensor(np.ascontiguousarray(v)) for v in values.T), out)
    exact = np.arctan2(*values.astype(np.float64).T)
    np.testing.assert_array_equal(np.signbit(out.numpy()[~np.isnan(exact)]), np.signbit(exact[~np.isnan(exact)]))
    np.testing.assert_allclose(out.numpy(), exact.astype(np.float32), rtol=3e-7, atol=1.2e-38)


def test_what_is_left_is_counted() -> None:
    mod = elementwise(lambda x: tirx.sinh(x) + tirx.atanh(x))
    assert VectorMath()(mod)[1] == {"rewritten": {}, "left": {"atanh": 1, "sinh": 1}}
    double = elementwise(tirx.exp, "float64")
    new, report = VectorMath()(double)
    assert report == {"rewritten": {}, "left": {"exp": 1}}
    tvm.ir.assert_structural_equal(new, double)


def test_float16_goes_through_float32() -> None:
    mod, report = VectorMath()(elementwise(tirx.exp, "float16"))
    assert report["rewritten"] == {"exp": 1}
    assert 'T.Cast("float32"' in mod.script() or "float32" in mod.script()


def test_expressions_stay_small_and_lets_are_a_chain() -> None:
    """A variable is bound once, no binding holds another, and nesting adds sizes instead of multiplying them."""
    x = tirx.Var("x", "float32")
    sizes = []
    for expr in (BUILDERS["exp"](x), hoist_lets(BUILDERS["tanh"](BUILDERS["exp"](BUILDERS["erf"](x)))), gelu(x)):
        seen = set()
        while isinstance(expr, tirx.Let):
            assert expr.var not in seen
            seen.add(expr.var)
            assert "Let" not in str(type(expr.value))
            expr = expr.body
        sizes.append(len(seen))
    assert sizes[1] <= 20


def test_lets_do_not_leave_guarded_branches() -> None:
    """A load behind if_then_else may be out of bounds outside of it."""
    x = te.placeholder((CHUNK,), "float32", name="x")
    y = te.compute((CHUNK,), lambda i: tirx.exp(tirx.if_then_else(i < 8, tirx.tanh(x[i]), x[CHUNK - 1 - i])), name="y")
    new, report = VectorMath()(vectorised([x, y]))
    assert report["rewritten"] == {"exp": 1, "tanh": 1}
    values = np.linspace(-3, 3, CHUNK).astype("float32")
    expected = np.exp(np.where(np.arange(CHUNK) < 8, np.tanh(values), values[::-1]).astype("float64"))
    np.testing.assert_allclose(run(compiled(new, "avx2"), values), expected, rtol=1e-6)
