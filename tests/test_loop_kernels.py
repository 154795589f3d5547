"""Loops whose steps are kernels become one kernel: states that turn, change places or stay, any number of steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_general_graphs import imported, program_of
from tvm import relax

from halo_tvm import phases
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.importers.loops import allocate_rows, if_then_else, while_loop, write_row
from halo_tvm.phase_reports import LoopsReport
from halo_tvm.targets import resolve

R = relax.op
Step = Callable[..., list[object]]
HALF, ONE = relax.const(0.5, "float32"), relax.const(1, "int64")
# Of (x, y, z), each by relax and by NumPy.
STEPS: dict[str, tuple[Step, Step]] = {
    "one turns, two stay": (lambda x, y, z: [R.add(R.multiply(x, HALF), y), y, z], lambda x, y, z: [x / 2 + y, y, z]),
    "all turn, and read each other": (
        lambda x, y, z: [R.multiply(R.add(y, z), HALF), R.subtract(x, z), R.maximum(x, y)],
        lambda x, y, z: [(y + z) / 2, x - z, np.maximum(x, y)],
    ),
    "three in a ring": (lambda x, y, z: [y, z, x], lambda x, y, z: [y, z, x]),
    "two change places, the third counts both": (
        lambda x, y, z: [y, x, R.add(R.multiply(z, HALF), x)],
        lambda x, y, z: [y, x, z / 2 + x],
    ),
    "one value twice, one constant": (
        lambda x, y, z: [w := R.multiply(R.add(x, y), HALF), w, R.full_like(z, HALF)],
        lambda x, y, z: [w := (x + y) / 2, w, np.full_like(z, 0.5)],
    ),
    "the one before": (lambda x, y, z: [R.tanh(R.add(x, y)), x, y], lambda x, y, z: [np.tanh(x + y), x, y]),
}


def report_of(build: Callable[..., relax.Expr], inputs: dict[str, tuple[tuple[int | str, ...], str]]) -> LoopsReport:
    compilation = Compilation.of(CompileConfig(model="t", records=False), resolve("cpu"))
    mod, _ = phases.lower(imported(inputs, build), compilation)
    report = phases.schedule(mod, compilation)[1].loops
    assert report is not None
    return report


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("rows", [3, pytest.param("n", marks=pytest.mark.slow)])
@pytest.mark.sampled(3, 12)
def test_every_number_of_steps(name: str, rows: int | str) -> None:
    """x, y, z [rows, 4], and the sum of the first of each step in rows of their own."""
    by_relax, by_numpy = STEPS[name]

    def build(bb: relax.BlockBuilder, count: relax.Var, *state: relax.Var) -> relax.Expr:
        def step(s: list[relax.Expr]) -> list[relax.Expr]:
            i, sums, *xs = s
            total = bb.emit(R.sum(xs[0], 1))
            changed = [bb.emit(v) for v in by_relax(*xs)]
            return [R.add(i, ONE), write_row(bb, sums, i, total), *changed]

        stack = allocate_rows(bb, 9, [state[0].ty.shape[0]], "float32")
        found = while_loop(bb, [relax.const(0, "int64"), stack, *state], lambda s: R.less(s[0], count), step)
        return relax.Tuple([*found[2:], found[1]])

    inputs = {"count": ((), "int64"), **dict.fromkeys("xyz", ((rows, 4), "float32"))}
    assert len(report_of(build, inputs).kernels) == 1
    program = program_of(imported(inputs, build, ("x", "y", "z", "sums")))
    given = np.random.default_rng(0).standard_normal((3, 3, 4)).astype("float32")
    for count in range(10):
        state, sums = list(given), []
        for _ in range(count):
            sums.append(state[0].sum(1))
            state = by_numpy(*state)
        found = program(np.int64(count), *given)
        for key, value in zip("xyz", state):
            np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["sums"][:count], np.reshape(sums, (count, 3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(given, np.random.default_rng(0).standard_normal((3, 3, 4)).astype("float32"))


def test_a_kernel_twice_in_a_step_has_two_workspaces() -> None:
    """Reductions allocate; the product comes after a threshold that data decides."""

    def build(bb: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        def step(s: list[relax.Expr]) -> list[relax.Expr]:
            places = [bb.emit(R.astype(R.argmax(bb.emit(v), 0), "float32")) for v in (s[0], R.negative(s[0]))]
            return [bb.emit(R.matmul(R.add(R.add(s[0], *places[:1]), places[1]), w))]

        return while_loop(bb, [x], lambda s: R.less(R.sum(s[0]), relax.const(1e4, "float32")), step)[0]

    inputs = {"x": ((5, 6), "float32"), "w": ((6, 6), "float32")}
    assert len(report_of(build, inputs).kernels) == 1
    rng = np.random.default_rng(1)
    x, w = rng.random((5, 6), "float32"), rng.random((6, 6), "float32")
    wanted = x
    while wanted.sum() < 1e4:
        wanted = (wanted + wanted.argmax(0) + wanted.argmin(0)) @ w
    np.testing.assert_allclose(program_of(imported(inputs, build))(x, w)["y"], wanted, rtol=1e-4)


def test_what_stays_a_loop_of_calls_says_why() -> None:
    def choosing(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        def step(s: list[relax.Expr]) -> list[relax.Expr]:
            some = R.less(R.sum(s[0]), relax.const(0, "float32"))
            return if_then_else(bb, some, lambda: [R.add(s[0], HALF)], lambda: [R.tanh(s[0])])

        return while_loop(bb, [x], lambda s: R.less(R.sum(s[0]), relax.const(1, "float32")), step)[0]

    def large(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return while_loop(bb, [x], lambda s: R.less(R.sum(s[0]), HALF), lambda s: [R.tanh(s[0])])[0]

    (reason,) = report_of(choosing, {"x": ((4,), "float32")}).left.values()
    assert reason.startswith("steps that do more than call kernels: a branch")
    (reason,) = report_of(large, {"x": ((1024, 1024), "float32")}).left.values()
    assert reason == "steps that make 4194309 bytes, more than 4194304: their kernels take most of the time"
