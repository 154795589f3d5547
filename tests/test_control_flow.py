"""Loops and branches: values, captured variables and dimensions, long loops, scan outputs, memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_general_graphs import imported, program_of
from tvm import relax

from halo_tvm import phases
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.describe import manifest_of
from halo_tvm.importers.loops import allocate_rows, first_rows, if_then_else, while_loop, write_row
from halo_tvm.phase_reports import Reports
from halo_tvm.targets import resolve

R = relax.op


def _const(value: object, dtype: str = "int64") -> relax.Expr:
    return relax.const(value, dtype)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("dataflow", [True, False])
def test_loop_carries_its_state(level: int, dataflow: bool) -> None:
    """x doubled n times, with a captured tensor w of the caller's own dimension and one computed before the loop."""

    def build(bb: relax.BlockBuilder, n: relax.Var, x: relax.Var, w: relax.Var) -> relax.Expr:
        before = bb.emit(R.exp(w))
        i, y = while_loop(
            bb,
            [_const(0), x],
            lambda s: R.less(s[0], n),
            lambda s: [R.add(s[0], _const(1)), R.add(R.multiply(s[1], _const(0.5, "float32")), R.add(before, w))],
        )
        return relax.Tuple([i, bb.emit(R.negative(y))])

    inputs = {"n": ((), "int64"), "x": (("k", 3), "float32"), "w": (("k", 1), "float32")}
    program = program_of(imported(inputs, build, ("i", "y"), dataflow=dataflow), level)
    x, w = (np.random.default_rng(0).standard_normal(s).astype("float32") for s in ((4, 3), (4, 1)))
    for n in (0, 1, 2, 5, 6, 21, 22, 100):
        expected = x
        for _ in range(n):
            expected = expected * np.float32(0.5) + (np.exp(w) + w)
        found = program(np.int64(n), x, w)
        assert found["i"] == n
        np.testing.assert_allclose(found["y"], -expected, rtol=1e-5, atol=1e-6)


def test_long_loop_needs_no_stack() -> None:
    def build(bb: relax.BlockBuilder, n: relax.Var) -> relax.Expr:
        return while_loop(bb, [_const(0)], lambda s: R.less(s[0], n), lambda s: [R.add(s[0], _const(1))])[0]

    program = program_of(imported({"n": ((), "int64")}, build))
    for n in (100_000, 300_001):
        assert program(np.int64(n))["y"] == n


@pytest.mark.parametrize("level", [0, 3])
def test_scan_outputs(level: int) -> None:
    """Two stacks of equal shape stay two; the loop may end before its last row; runs do not share memory."""

    def build(bb: relax.BlockBuilder, x: relax.Var, stop: relax.Var) -> relax.Expr:
        t, k = x.ty.shape
        stacks = [allocate_rows(bb, t, [k], "float32") for _ in range(2)]

        def body(s: list[relax.Expr]) -> list[relax.Expr]:
            i, total, a, b = s
            row = bb.emit(R.take(x, i, 0))
            total = bb.emit(R.add(total, row))
            return [R.add(i, _const(1)), total, write_row(bb, a, i, total), write_row(bb, b, i, bb.emit(R.exp(row)))]

        zero = bb.emit(R.zeros([k], "float32"))
        i, _, a, b = while_loop(bb, [_const(0), zero, *stacks], lambda s: R.less(s[0], stop), body)
        return relax.Tuple([a, bb.emit(R.negative(first_rows(bb, b, i)))])

    model = imported({"x": (("t", "k"), "float32"), "stop": ((), "int64")}, build, ("a", "b"))
    program = program_of(model, level)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    first, later = program(x, np.int64(5)), program(x + 1, np.int64(4))
    np.testing.assert_allclose(first["a"], np.cumsum(x, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first["b"], -np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(later["a"][:4], np.cumsum(x + 1, 0)[:4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(later["b"], -np.exp(x + 1)[:4], rtol=1e-5)


def test_state_may_grow() -> None:
    def build(bb: relax.BlockBuilder, n: relax.Var, x: relax.Var) -> relax.Expr:
        return while_loop(
            bb,
            [_const(0), x],
            lambda s: R.less(s[0], n),
            lambda s: [R.add(s[0], _const(1)), R.concat([s[1], x], 0)],
            varying=(1,),
        )[1]

    program = program_of(imported({"n": ((), "int64"), "x": (("k",), "float32")}, build))
    x = np.arange(3, dtype="float32")
    for n in (0, 1, 7):
        np.testing.assert_array_equal(program(np.int64(n), x)["y"], np.tile(x, n + 1))


@pytest.mark.parametrize("level", [0, 3])
def test_branch(level: int) -> None:
    """Branches with blocks of their own, nested, over captured values; results of different length."""

    def build(bb: relax.BlockBuilder, c: relax.Var, x: relax.Var) -> relax.Expr:
        y = bb.emit(R.exp(x))

        def inner() -> list[relax.Expr]:
            return if_then_else(bb, R.less(R.sum(x), _const(0.0, "float32")), lambda: [y], lambda: [R.negative(y)])

        (z,) = if_then_else(bb, c, lambda: [bb.emit(R.add(inner()[0], x))], lambda: [R.concat([x, y], 0)])
        return R.multiply(z, _const(2.0, "float32"))

    program = program_of(imported({"c": ((), "bool"), "x": (("k",), "float32")}, build), level)
    for x in (np.float32([1, 2, 3]), np.float32([-1, -2])):
        inner = np.exp(x) if x.sum() < 0 else -np.exp(x)
        np.testing.assert_allclose(program(np.bool_(True), x)["y"], 2 * (inner + x), rtol=1e-5)
        np.testing.assert_allclose(program(np.bool_(False), x)["y"], 2 * np.concatenate([x, np.exp(x)]), rtol=1e-5)


def test_nested_loops() -> None:
    def build(bb: relax.BlockBuilder, n: relax.Var) -> relax.Expr:
        def outer(s: list[relax.Expr]) -> list[relax.Expr]:
            i, total = s
            _, total = while_loop(
                bb, [_const(0), total], lambda s: R.less(s[0], i), lambda s: [R.add(s[0], _const(1)), R.add(s[1], i)]
            )
            return [R.add(i, _const(1)), total]

        return while_loop(bb, [_const(0), _const(0)], lambda s: R.less(s[0], n), outer)[1]

    program = program_of(imported({"n": ((), "int64")}, build))
    for n in (0, 1, 9):
        assert program(np.int64(n))["y"] == sum(i * i for i in range(n))


def test_artifact_needs_the_bare_runtime_only(tmp_path: Path) -> None:
    """Branch, loop, sort and a length that depends on values: built as a file, run where no compiler is loaded."""

    def build(bb: relax.BlockBuilder, n: relax.Var, x: relax.Var) -> relax.Expr:
        total = while_loop(
            bb, [_const(0), x], lambda s: R.less(s[0], n), lambda s: [R.add(s[0], _const(1)), R.add(s[1], x)]
        )[1]
        (total,) = if_then_else(bb, R.less(n, _const(3)), lambda: [total], lambda: [R.negative(total)])
        return relax.Tuple([bb.emit(R.nonzero(total)), bb.emit(R.sort(total, 0))])

    model = imported({"n": ((), "int64"), "x": (("k",), "float32")}, build, ("places", "sorted"))
    target = resolve("cpu")
    config = CompileConfig(model="t", records=False)
    compilation = Compilation.of(config, target)
    mod, _ = phases.lower(model, compilation)
    mod, _ = phases.schedule(mod, compilation)
    models = {"main": model}
    modules, reports, _kept = phases.build({"main": mod}, compilation, models, tmp_path / "model.so")
    assert reports["main"].planned_bytes > 0
    manifest = manifest_of(models, modules, target, {"main": Reports()})
    assert manifest.functions["main"].outputs[0].shape == ("places.0", "places.1")
    script = f"""
import sys, numpy as np
from pathlib import Path
from halo_tvm.runtime.host import load_tvm_runtime
from halo_tvm.runtime.session import Session
from halo_tvm.runtime.tensors import to_arrays, to_tensor
load_tvm_runtime()
session = Session(Path({str(tmp_path / "model.so")!r}), "main", [], 1)
x = np.float32([1, 0, -2])
places, ordered = to_arrays(session.run([to_tensor(np.array(4)), to_tensor(x)]))
assert places.tolist() == [[0, 2]] and ordered.tolist() == [-5, 0, 10], (places, ordered)
assert "tvm" not in sys.modules
session.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
