"""The search rule: right under any decision, static and symbolic, whatever reduces; declines with its reason."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from fused_functions import here, x86
from tvm import te, tirx, topi
from tvm.script import tirx as T

from halo_tvm.code_generation import compiled
from halo_tvm.errors import Declined
from halo_tvm.extremes import maximum, minimum
from halo_tvm.passes.schedule import rule_for, scheduled_by
from halo_tvm.targets import Target
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.code.lanes import in_parallel_when_large
from halo_tvm.tir_schedules.general.search import Decision

RULE = RULES["search"]


@dataclass(frozen=True)
class Case:
    """`build` of placeholders gives the outputs; a letter in a shape is a symbolic dimension of each of its `sizes`."""

    shapes: tuple[tuple[int | str, ...], ...]
    build: Callable[..., te.Tensor]
    expected: Callable[..., np.ndarray]
    dtype: str = "float32"
    sizes: Mapping[str, tuple[int, ...]] | None = None

    def func(self) -> tirx.PrimFunc:
        symbols: dict[str, tirx.Var] = {}

        def dim(d: int | str) -> int | tirx.Var:
            return symbols.setdefault(d, tirx.Var(d, "int64")) if isinstance(d, str) else tirx.IntImm("int64", d)

        inputs = [te.placeholder([dim(d) for d in s], self.dtype, name=f"x{i}") for i, s in enumerate(self.shapes)]
        return te.create_prim_func([*inputs, self.build(*inputs)])

    def arrays(self) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(0)
        found = []
        for values in itertools.product(*(self.sizes or {}).values()):
            at = dict(zip(self.sizes or {}, values))
            shapes = [[at[d] if isinstance(d, str) else d for d in shape] for shape in self.shapes]
            found.append([(rng.standard_normal(shape) * 4).astype(self.dtype) for shape in shapes])
        return found


def padded_average(x: te.Tensor) -> te.Tensor:
    """Sums of three columns of three rows, zero beyond the edges, then a stage."""
    n, c, h, w = x.shape
    none, three = tirx.IntImm("int64", 0), tirx.IntImm("int64", 3)
    a, b = te.reduce_axis((none, three), "a"), te.reduce_axis((none, three), "b")

    def tap(i: tirx.Var, j: tirx.Var, y: tirx.Expr, z: tirx.Expr) -> tirx.Expr:
        inside = tirx.all(y >= 1, y < h + 1, z >= 1, z < w + 1)
        return tirx.if_then_else(inside, x[i, j, y - 1, z - 1], tirx.const(0, x.dtype))

    total = te.compute((n, c, h, w), lambda i, j, y, z: te.sum(tap(i, j, y + a, z + b), axis=[a, b]), name="total")
    return te.compute(total.shape, lambda *i: total[i] * 0.5 + x[i], name="out")


def windows(x: np.ndarray) -> np.ndarray:
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    h, w = x.shape[2:]
    return sum(wide[:, :, a : a + h, b : b + w] for a in range(3) for b in range(3)) * 0.5 + x


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def einsum(pattern: str) -> Callable[..., te.Tensor]:
    return lambda *inputs: topi.einsum(pattern, *inputs)


CASES = {
    "sum over a middle axis": Case(((3, 7, 37),), lambda x: topi.sum(x, 1), lambda x: x.sum(1)),
    "mean of two axes": Case(((2, 5, 3, 19),), lambda x: topi.sum(x * x, [1, 3]), lambda x: (x * x).sum((1, 3))),
    "sum of everything": Case(((5, 21),), lambda x: topi.sum(x), lambda x: x.sum()),
    "int64 sums wrap in their own type": Case(((3, 5, 9),), lambda x: topi.sum(x, 1), lambda x: x.sum(1), "int64"),
    "arg-max": Case(((3, 9, 18),), lambda x: topi.argmax(x, 1), lambda x: x.argmax(1)),
    "softmax over a middle axis": Case(((2, 6, 21),), lambda x: topi.nn.softmax(x, 1), lambda x: softmax(x, 1)),
    "padded windows": Case(((1, 2, 5, 19),), padded_average, windows),
    "product of three axes": Case(
        ((3, 4, 5), (5, 18)), einsum("abk,kn->abn"), lambda a, b: np.einsum("abk,kn->abn", a, b)
    ),
    "symbolic rows and columns": Case(
        (("m", 5), (5, "n")), einsum("mk,kn->mn"), lambda a, b: a @ b, sizes={"m": (1, 3, 9), "n": (1, 2, 16, 37)}
    ),
    "symbolic depth": Case(((3, "k"),), lambda x: topi.sum(x, 1), lambda x: x.sum(1), sizes={"k": (1, 5, 16, 70)}),
    "symbolic batch, of which one is large": Case(
        (("b", 4, 196, 8), ("b", 4, 196, 8)),
        lambda x, y: topi.nn.softmax(topi.einsum("bhik,bhjk->bhij", x, y), 3),
        lambda x, y: softmax(np.einsum("bhik,bhjk->bhij", x, y), 3),
        sizes={"b": (1, 2)},
    ),
    "symbolic windows": Case(((1, 2, "h", "w"),), padded_average, windows, sizes={"h": (1, 4), "w": (1, 7, 33)}),
}


def built(funcs: Mapping[str, tirx.PrimFunc], target: Target) -> tvm.runtime.Module:
    """Functions of one module, so that many decisions are one build."""
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in funcs.items()})
    return compiled(mod, target)


def check(case: Case, run: Callable[..., None]) -> None:
    for arrays in case.arrays():
        expected = np.asarray(case.expected(*(a.astype("float64") if a.dtype.kind == "f" else a for a in arrays)))
        out = tvm.runtime.tensor(
            np.full(expected.shape, 77, case.dtype if expected.dtype.kind == "f" else expected.dtype)
        )
        run(*map(tvm.runtime.tensor, arrays), out)
        np.testing.assert_allclose(out.numpy(), expected, rtol=2e-5, atol=2e-5)


def decisions(func: tirx.PrimFunc, target: Target, count: int, seed: int) -> list[Decision]:
    """Decisions that apply: the best by the model, then any, serial and parallel."""
    space = list(RULE.space(func, target))
    chosen = [space[0], *random.Random(seed).sample(space, min(count, len(space)))]
    return [replace(d, serial_below=(0, 1 << 20)[n % 2]) for n, d in enumerate(chosen)]


def check_case(name: str, target: Target, count: int, seed: int = 0) -> None:
    case = CASES[name]
    func = case.func()
    chosen = decisions(func, target, count, seed)
    module = built({f"f{n}": scheduled_by(RULE, func, target, d) for n, d in enumerate(chosen)}, target)
    for n in range(len(chosen)):
        check(case, module[f"f{n}"])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(5)
def test_numbers(name: str) -> None:
    target = x86("avx512" if here("avx512") else "avx2")
    check_case(name, target, count=3)


def test_no_branch_for_less_than_one_row() -> None:
    """In a branch that only an empty batch takes TVM divides by its sizes, which are 0 there."""
    rows = tirx.Var("rows", "int64")
    asked: list[bool] = []

    def emit(parallel: bool) -> tirx.Stmt:
        asked.append(parallel)
        return tirx.Evaluate(tirx.const(int(parallel), "int32"))

    in_parallel_when_large(rows * 20000, 1 << 14, emit)
    assert asked == [True]
    in_parallel_when_large(rows * 200, 1 << 14, emit)
    assert asked == [True, True, False]


@pytest.mark.slow
@pytest.mark.covering
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("name", CASES)
def test_numbers_of_many_decisions(isa: str, name: str, seed: int) -> None:
    if not here(isa):
        pytest.skip(f"this processor does not run {isa}")
    check_case(name, x86(isa), count=20, seed=seed)


def test_stands_before_the_fallback_and_makes_vectors() -> None:
    target = x86("avx2")
    func = CASES["padded windows"].func()
    choice = rule_for(func, target)
    assert choice.rule is RULE
    listing = built({"f": scheduled_by(RULE, func, target, choice.decision)}, target).mod.inspect_source("asm")
    assert "vmaskmovps" in listing, "a condition that differs between lanes is a mask"
    assert "vaddps" in listing and "ymm" in listing


@pytest.mark.parametrize(("choice", "numpy_of"), [(maximum, np.max), (minimum, np.min)])
def test_the_extreme_of_everything_is_found_in_vectors(choice: Callable, numpy_of: Callable) -> None:
    """Of floats it is a choice that NaN ends, of which there are partial results as of sums."""
    target, shape = x86("avx512" if here("avx512") else "avx2"), (7, 70)
    x = te.placeholder([tirx.IntImm("int64", n) for n in shape], name="x")
    i, j = (te.reduce_axis((0, n)) for n in x.shape)
    reducer = te.comm_reducer(choice, lambda dtype: tirx.const(0.0, dtype), name="extreme")
    func = te.create_prim_func([x, te.compute((), lambda: reducer(x[i, j], axis=[i, j]))])
    assert RULE.default(func, target).lanes[0] > 1
    module = built(
        {f"f{n}": scheduled_by(RULE, func, target, d) for n, d in enumerate(decisions(func, target, 4, 0))}, target
    )
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    for place in (None, (0, 0), (3, 33), (6, 69)):
        if place is not None:
            values[:] = np.where(np.isnan(values), 1.0, values)
            values[place] = np.nan
        for n in range(4):
            out = tvm.runtime.tensor(np.zeros((), "float32"))
            module[f"f{n}"](tvm.runtime.tensor(values), out)
            np.testing.assert_array_equal(out.numpy(), numpy_of(values))


def test_a_decision_that_does_not_fit_is_declined() -> None:
    target, func = x86("avx2"), CASES["arg-max"].func()
    good = RULE.default(func, target)
    for reason, wrong in {
        "a tile of 64 along an iterator of 18": replace(
            good, vector=(1,), lanes=(8,), vectors=(8,), row=(-1,), height=(1,)
        ),
        "the function has 1": replace(good, vector=(1, 1)),
        "lanes is 3, the rule serves 1 to 64, powers of two": replace(good, lanes=(3,), vectors=(1,)),
        "iterator 7 shall be vectorised": replace(good, vector=(7,)),
        "the steps of the reduction come in order": replace(good, vector=(2,), row=(-1,), height=(1,)),
        "lanes is 1024, the rule serves 1 to 64": replace(good, lanes=(1024,)),
    }.items():
        with pytest.raises(Declined, match=reason):
            RULE.apply(func, target, wrong)


def scatter() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(x: T.Buffer((4, 8), "float32"), at: T.Buffer((4,), "int64"), y: T.Buffer((9,), "float32")) -> None:
        for i, k in T.grid(4, 8):
            with T.sblock("s"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[at[vi]] = T.float32(0)
                y[at[vi]] = y[at[vi]] + x[vi, vk]

    return func


def test_declines() -> None:
    x = te.placeholder((tirx.IntImm("int64", 4), tirx.IntImm("int64", 8)), "float32", name="x")
    for func, reason in (
        (te.create_prim_func([x, topi.exp(x)]), "no block reduces"),
        (scatter(), "a store is not at one iterator per axis"),
        (
            RULE.apply(CASES["arg-max"].func(), x86("avx2"), decisions(CASES["arg-max"].func(), x86("avx2"), 0, 0)[0]),
            "scheduled already",
        ),
    ):
        with pytest.raises(Declined, match=reason):
            RULE.default(func, x86("avx2"))
