"""C source: what the system's compiler makes of it, and what is refused before it sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te, tirx

import halo_tvm
import halo_tvm._compat  # what it registers is tested here
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel
from halo_tvm.targets import can_build_here, resolve
from halo_tvm.tir_schedules.code import vector_math

pytestmark = pytest.mark.skipif(not can_build_here(resolve("c")), reason="no compiler")
FUNCTIONS = {
    "log": (lambda x: vector_math.log(x.asobject()), np.log),
    "abs": (te.abs, np.abs),
    "exp2": (tirx.exp2, np.exp2),
    "isinf": (te.isinf, np.isinf),
    "remainder": (lambda x: tirx.fmod(x, tirx.const(2, x.dtype)), lambda x: np.fmod(x, 2)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype) for name in FUNCTIONS for dtype in ("float32", "float64") if (name, dtype) != ("log", "float64")
    ],  # its polynomial is for float32
)
def test_functions_that_tvm_alone_does_not_write(name: str, dtype: str, tmp_path: Path) -> None:
    compute, expected = FUNCTIONS[name]
    x = te.placeholder((8,), dtype, name="x")
    y = te.compute((8,), lambda i: compute(x[i]), name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "f")
    target = resolve("c")
    library = tmp_path / "f.so"
    with target.tvm:
        executable = tvm.compile(tvm.IRModule({"f": func}), target=target.tvm)
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
