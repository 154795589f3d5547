"""Small artifacts made by hand: relu(x @ w) and passthroughs, without the compiler under test."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from halo_tvm import launcher
from halo_tvm.artifact import FunctionSpec, Manifest, ParamHeader, TensorSpec, Variant, write_artifact

K, N = 64, 32


def weight(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((K, N), dtype=np.float32)


@functools.cache
def library() -> Path:
    """main(x[batch, K], ids[batch], scale[batch], w[K, N]) -> (relu(x @ w) * scale, x, ids)."""
    batch = tvm.tirx.Var("batch", "int64")
    x = relax.Var("x", relax.TensorType((batch, K), "float32"))
    ids = relax.Var("ids", relax.TensorType((batch,), "int64"))
    scale = relax.Var("scale", relax.TensorType((batch, 1), "float32"))
    w = relax.Var("w", relax.TensorType((K, N), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, ids, scale, w], attrs={"num_input": 3}):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.matmul(x, w)))
            y = builder.emit_output(relax.op.multiply(y, scale))
        builder.emit_func_output(relax.Tuple([y, x, ids]))
    path = Path(tempfile.mkdtemp()) / "tiny.so"
    relax.build(builder.get(), target="llvm").export_library(str(path))
    return path


SPEC = FunctionSpec(
    inputs=(
        TensorSpec("x", ("batch", K), "float32"),
        TensorSpec("ids", ("batch",), "int64", values=(0, 99)),
        TensorSpec("scale", ("batch", 1), "float32", default="ones"),
    ),
    outputs=(
        TensorSpec("y", ("batch", N), "float32"),
        TensorSpec("x_out", ("batch", K), "float32"),
        TensorSpec("ids_out", ("batch",), "int64"),
    ),
    ranges={"batch": (1, 16)},
    params=("w",),
)


def manifest(**changes: object) -> Manifest:
    fields = {
        "name": "tiny",
        "functions": {"main": SPEC},
        "variants": (Variant("any", (), (), "llvm", "model.so", "params.bin"),),
        "source": {"kind": "test"},
        "versions": {"halo_tvm": "0"},
    }
    return Manifest(**{**fields, **changes})  # type: ignore[arg-type]


def reference_arrays(seed: int = 0, batch: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    x, ids = random.standard_normal((batch, K), dtype=np.float32), random.integers(0, 100, batch)
    y = np.maximum(x.astype(np.float64) @ weight(seed).astype(np.float64), 0)
    return {
        "case0.input.x": x,
        "case0.input.ids": ids,
        "case0.output.y": y,
        "case0.output.x_out": x,
        "case0.output.ids_out": ids,
    }


def write_tiny(path: Path, seed: int = 0, **changes: object) -> Path:
    w = weight(seed)
    write_artifact(
        path,
        manifest=manifest(**changes),
        library=library(),
        params_headers=[ParamHeader("w", w.shape, "float32")],
        params=[("w", w)],
        reference=reference_arrays(seed),
    )
    return path


@functools.cache
def thread_library(pool: bool = False) -> Path:
    """main(x int64[64]) -> x + the id of the thread that computed the element, in a parallel loop.

    With `pool`, the library brings its own threads along, as compiled artifacts for CPUs do.
    """
    from tvm.script import ir as I
    from tvm.script import relax as R
    from tvm.script import tirx as T

    @I.ir_module
    class Threads:
        @T.prim_func(s_tir=True)
        def who(x: T.Buffer((64,), "int64"), out: T.Buffer((64,), "int64")):
            for i in T.parallel(64):
                with T.sblock("b"):
                    vi = T.axis.spatial(64, i)
                    out[vi] = x[vi] + T.Cast("int64", T.call_extern("int32", "gettid"))

        @R.function
        def main(x: R.Tensor((64,), "int64")):
            cls = Threads
            with R.dataflow():
                y = R.call_tir(cls.who, (x,), out_ty=R.Tensor((64,), "int64"))
                R.output(y)
            return y

    path = Path(tempfile.mkdtemp()) / "threads.so"
    relax.build(Threads, target="llvm").export_library(str(path), addons=[str(launcher.SOURCE)] if pool else None)
    return path


@functools.cache
def busy_library() -> Path:
    """main(x float32[n], rounds float32[1]) -> x after so many steps of x * 0.5 + 1, in a parallel loop."""
    from tvm.script import ir as I
    from tvm.script import relax as R
    from tvm.script import tirx as T

    @I.ir_module
    class Busy:
        @T.prim_func(s_tir=True)
        def work(a: T.handle, r: T.Buffer((1,), "float32"), b: T.handle):
            n = T.int64()
            x = T.match_buffer(a, (n,), "float32")
            out = T.match_buffer(b, (n,), "float32")
            for i in T.parallel(n):
                out[i] = x[i]
                for _ in range(T.Cast("int64", r[0])):
                    out[i] = out[i] * T.float32(0.5) + T.float32(1)

        @R.function
        def main(x: R.Tensor(("n",), "float32"), r: R.Tensor((1,), "float32")):
            n = T.int64()
            cls = Busy
            with R.dataflow():
                y = R.call_tir(cls.work, (x, r), out_ty=R.Tensor((n,), "float32"))
                R.output(y)
            return y

    path = Path(tempfile.mkdtemp()) / "busy.so"
    relax.build(Busy, target="llvm").export_library(str(path), addons=[str(launcher.SOURCE)])
    return path


def write_busy(path: Path) -> Path:
    x, rounds = TensorSpec("x", ("n",), "float32"), TensorSpec("rounds", (1,), "float32")
    spec = FunctionSpec(inputs=(x, rounds), outputs=(TensorSpec("y", ("n",), "float32"),), ranges={"n": (1, 1 << 26)})
    write_artifact(
        path,
        manifest=manifest(functions={"main": spec}, variants=(Variant("any", (), (), "llvm", "model.so"),)),
        library=busy_library(),
    )
    return path


def write_threads(path: Path, pool: bool = False) -> Path:
    spec = FunctionSpec(inputs=(TensorSpec("x", (64,), "int64"),), outputs=(TensorSpec("y", (64,), "int64"),))
    write_artifact(
        path,
        manifest=manifest(functions={"main": spec}, variants=(Variant("any", (), (), "llvm", "model.so"),)),
        library=thread_library(pool),
    )
    return path
