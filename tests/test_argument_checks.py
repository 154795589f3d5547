"""What a library checks when it is called, and what its kernels still do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from graphs import small_model
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from halo_tvm.argument_checks import OTHER_SIZES, PIPELINE, only_sizes
from halo_tvm.build import build_library
from halo_tvm.code_generation import compiled
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.imported import InputSpec
from halo_tvm.launcher import DENSE
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.runtime import load
from halo_tvm.targets import resolve


@T.prim_func(s_tir=True)
def rows(a: T.handle, b: T.handle, k: T.int64) -> None:
    n = T.int64()
    A = T.match_buffer(a, (n, 16), "float32")
    B = T.match_buffer(b, (n, k), "float32")
    for i in range(n):
        with T.sblock("first"):
            v = T.axis.spatial(n, i)
            B[v, 0] = A[v, 0]


def asserted(func: tirx.PrimFunc) -> list[str]:
    found: list[str] = []
    tvm_ffi.structural_walk(func.body, (tirx.AssertStmt, lambda check: found.append(check.message_parts[0].value)))
    return found


def test_one_check_of_a_kernel_is_left() -> None:
    mod = tirx.transform.BindTarget(tvm.target.Target("llvm").with_host("llvm"))(tvm.IRModule({"rows": rows}))
    packed = tirx.get_tir_pipeline("default")[0](mod)
    assert len(asserted(packed["rows"])) > 10
    assert asserted(only_sizes(packed)["rows"]) == [OTHER_SIZES]


def test_sizes_are_compared() -> None:
    built = tirx.build(tvm.IRModule({"rows": rows.with_attr("global_symbol", "rows")}), "llvm", pipeline=PIPELINE)
    tensors = {n: tvm.runtime.tensor(np.ones((n, 16), np.float32)) for n in (3, 4)}
    narrow = tvm.runtime.tensor(np.zeros((3, 5), np.float32))
    built["rows"](tensors[3], narrow, 5)
    np.testing.assert_array_equal(narrow.numpy()[:, 0], 1)
    for wrong in ((tensors[4], narrow, 5), (tensors[3], narrow, 6), (narrow, tensors[3], 16)):
        with pytest.raises(ValueError, match=rf"{OTHER_SIZES.strip()}rows\(A: Tensor\(\[n, 16\], float32\)"):
            built["rows"](*wrong)


@I.ir_module(s_tir=True)
class Twice:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        n = T.int64()
        y = R.call_tir(Twice.twice, (x,), out_ty=R.Tensor((n, 4), "float32"))
        return y

    @T.prim_func(s_tir=True)
    def twice(x: T.handle, y: T.handle) -> None:
        n = T.int64()
        X, Y = T.match_buffer(x, (n, 4), "float32"), T.match_buffer(y, (n, 4), "float32")
        for i, j in T.grid(n, 4):
            with T.sblock("twice"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[vi, vj] + X[vi, vj]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Callable[[object], object]:
    """A library's main, called as whoever has the library alone calls it."""
    path = tmp_path_factory.mktemp("library") / "model.so"
    build_library(Twice, resolve("cpu"), path, plan_memory=True)
    return relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]


X = np.arange(48, dtype=np.float32).reshape(6, 8)


@pytest.mark.parametrize("x", [X[:, :4].copy(), X[:1, :4], X[:0, :4]], ids=["dense", "a row of more", "nothing"])
def test_dense_tensors_enter(twice: Callable[[object], object], x: np.ndarray) -> None:
    np.testing.assert_array_equal(twice(tvm_ffi.from_dlpack(x)).numpy(), 2 * x)


@pytest.mark.parametrize("start", [1, 2, 5, 15])
def test_tensors_enter_wherever_their_elements_may_begin(twice: Callable[[object], object], start: int) -> None:
    x = np.arange(16 + 400, dtype=np.float32)[start : start + 400].reshape(100, 4)
    np.testing.assert_array_equal(twice(tvm_ffi.from_dlpack(x)).numpy(), 2 * x)


@pytest.mark.parametrize(
    "x",
    [X[:, :4], X[:, ::2], X.reshape(12, 4)[::2], X[:4, :4].T],
    ids=["part of rows", "every other", "rows apart", "turned"],
)
def test_others_do_not(twice: Callable[[object], object], x: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected a tensor without gaps.* as tensor 0 of the function"):
        twice(tvm_ffi.from_dlpack(x))


def test_the_machine_compares_the_rest(twice: Callable[[object], object]) -> None:
    for other, said in ((X, "4"), (X[:, :4].astype(np.int32), "float32"), (X[0], "ndim")):
        with pytest.raises((ValueError, TypeError, RuntimeError), match=said):
            twice(tvm.runtime.tensor(other))


def test_a_kernel_that_anybody_may_call_checks_all() -> None:
    run = compiled(tvm.IRModule({"rows": rows.with_attr("global_symbol", "rows")}), resolve("cpu"))["rows"]
    out = tvm.runtime.tensor(np.zeros((3, 5), np.float32))
    run(tvm.runtime.tensor(np.ones((3, 16), np.float32)), out, 5)
    for other in (np.ones((3, 16), np.int32), np.ones(3, np.float32)):
        with pytest.raises((TypeError, ValueError), match="Mismatched A"):
            run(tvm.runtime.tensor(other), out, 5)


def test_the_check_is_no_kernel_of_a_profile(tmp_path: Path) -> None:
    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        return {"y": m.emit(relax.op.add(m.inputs["x"], m.inputs["x"]))}

    model = small_model((InputSpec("x", (4, 8), "float32"),), body)
    path = compile_model(CompileConfig(model="", output=str(tmp_path / "twice.halo"), threads=1), model).path
    with load(path) as module:
        calls = module.trace(rounds=1).calls
    assert DENSE in [call.function for call in calls if call.builtin]
    assert len([call for call in calls if not call.builtin]) == 1
