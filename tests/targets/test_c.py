"""C source: what the system's compiler makes of it, and what is refused before it sees it."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from path_names import name_by_paths
from tvm import te, tirx

import halo_tvm
import halo_tvm._compat  # what it registers is tested here
from halo_tvm.code_generation import compiled
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel
from halo_tvm.exact_constants import written_parts
from halo_tvm.targets import can_build_here, resolve
from halo_tvm.tir_schedules.code import vector_math

pytestmark = pytest.mark.skipif(not can_build_here(resolve("c")), reason="no compiler")
FUNCTIONS = {
    "log": (lambda x: vector_math.log(x.asobject()), np.log),
    "exp": (lambda x: vector_math.exp(x.asobject()), np.exp),
    "tanh": (lambda x: vector_math.tanh(x.asobject()), np.tanh),
    "abs": (te.abs, np.abs),
    "exp2": (tirx.exp2, np.exp2),
    "isinf": (te.isinf, np.isinf),
    "remainder": (lambda x: tirx.fmod(x, tirx.const(2, x.dtype)), lambda x: np.fmod(x, 2)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in FUNCTIONS
        for dtype in ("float32", "float64")
        if dtype == "float32" or name not in ("log", "exp", "tanh")
    ],  # the polynomials are for float32
)
def test_functions_that_tvm_alone_does_not_write(name: str, dtype: str, tmp_path: Path) -> None:
    compute, expected = FUNCTIONS[name]
    x = te.placeholder((8,), dtype, name="x")
    y = te.compute((8,), lambda i: compute(x[i]), name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "f")
    target = resolve("c")
    library = tmp_path / "f.so"
    executable = compiled(tvm.IRModule({"f": func}), target)
    assert executable.mod.kind == "c"
    executable.export_library(str(library), **target.export_options())
    values = np.array([-3.5, -0.0, 0.0, 1.5, -np.inf, np.inf, 7.25, -2.0], dtype)
    if name == "remainder":
        values = values[np.isfinite(values)].repeat(2)[:8]
    with np.errstate(all="ignore"):
        wanted = expected(values)
    out = tvm.runtime.tensor(np.zeros(8, wanted.dtype))
    tvm.runtime.load_module(str(library))["f"](tvm.runtime.tensor(values), out)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-6)


@given(
    st.one_of(
        st.tuples(st.just("float32"), st.floats(width=32, allow_nan=False, allow_infinity=False)),
        st.tuples(st.just("float64"), st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_a_constant_is_the_sum_of_what_is_written(constant: tuple[str, float]) -> None:
    dtype, value = constant
    total, *others = (np.dtype(dtype).type(f"{part:.6e}") for part in written_parts(value, dtype))
    for part in others:
        total += part
    assert total == np.dtype(dtype).type(value)


def test_constants_are_exact(tmp_path: Path) -> None:
    """NaN, too, of which TVM writes the name of a C function."""
    values = [1 / 3, 12582912.0, np.pi, 3.4028234663852886e38, -1.1754943508222875e-38, np.nan, np.inf]
    x = te.placeholder((8,), "float32", name="x")
    y = te.compute(
        (len(values),),
        lambda i: reduce(lambda rest, at: te.if_then_else(i == at, constant(values[at]), rest), range(7), x[0]),
        name="y",
    )
    library = tmp_path / "f.so"
    target = resolve("c")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "f")
    compiled(tvm.IRModule({"f": func}), target).export_library(str(library), **target.export_options())
    out = tvm.runtime.tensor(np.zeros(len(values), np.float32))
    tvm.runtime.load_module(str(library))["f"](tvm.runtime.tensor(np.zeros(8, np.float32)), out)
    np.testing.assert_array_equal(out.numpy(), np.array(values, np.float32))


def constant(value: float) -> tirx.FloatImm:
    return tirx.const(value, "float32")


@pytest.mark.parametrize("sizes", ["2, 3, 16, 16", "n, 3, h, w"])
def test_a_net_of_many_functions_with_names_that_are_paths(sizes: str, tmp_path: Path) -> None:
    """More functions than a piece of a library has; values named by paths and numbers, as exporters do."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[{sizes}] x) => (float[n, c, k, l] y)
        {{
            a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w0)
            b = Sigmoid (a)
            c = Conv <pads = [1, 1, 1, 1], group = 8> (b, w1)
            d = Tanh (c)
            e = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d)
            f = Conv (e, w2)
            g = Softmax <axis = 1> (f)
            h = ReduceMean <keepdims = 1> (g, axes)
            i = Sub (f, h)
            j = Resize <mode = "nearest"> (i, , scales)
            k = Exp (j)
            l = ReduceL2 <keepdims = 1> (k, axes)
            m = Div (k, l)
            o = Transpose <perm = [0, 2, 3, 1]> (m)
            q = CumSum (o, axis)
            y = Transpose <perm = [0, 3, 1, 2]> (q)
        }}"""
    )
    rng = np.random.default_rng(0)
    shapes = [(8, 3, 3, 3), (8, 1, 3, 3), (8, 8, 1, 1)]
    held = {f"w{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    held |= {"scales": np.array([1, 1, 2, 2], np.float32), "axes": np.array([2, 3]), "axis": np.array(1)}
    name_by_paths(model, held)
    onnx.save(model, tmp_path / "net.onnx")
    config = CompileConfig(str(tmp_path / "net.onnx"), target="c", cache=False, output=str(tmp_path / "m.halo"))
    reports = halo_tvm.compile_model(config).reports  # validates
    assert sum(reports.schedule.rules.values()) >= 8


def test_int8_is_computed(tmp_path: Path) -> None:
    config = CompileConfig("mlp", target="c", precision="int8", force_precision=True, output=str(tmp_path / "m.halo"))
    halo_tvm.compile_model(config)  # validates


def test_float16_is_refused_in_a_sentence(tmp_path: Path) -> None:
    config = CompileConfig("mlp", target="c", precision="fp16", force_precision=True, output=str(tmp_path / "m.halo"))
    with pytest.raises(
        UnsupportedModel, match="element types that target c has code for, found float16 in fused_linear"
    ):
        halo_tvm.compile_model(config)
    assert not (tmp_path / "m.halo").exists()
