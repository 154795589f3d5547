"""Names of tensors and sizes that C and CUDA take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from path_names import name_by_paths
from tvm import ir, te, tirx

import halo_tvm
from halo_tvm.config import CompileConfig
from halo_tvm.cuda.toolkit import find_nvcc
from halo_tvm.source_names import source_names


def names(func: tirx.PrimFunc) -> set[str]:
    found: set[str] = set()
    tvm_ffi.structural_walk(func, (ir.Var, lambda var: found.add(str(var.name))))
    return found


def test_names_fit_and_nothing_else_changes() -> None:
    size = te.var("seq.len", "int64")
    x = te.placeholder((2, size), "float32", name="/layer/0")
    y = te.compute((2, size), lambda i, j: x[i, j] + x[i, 0], name="10@1")
    z = te.compute((2, size), lambda i, j: y[i, j] * 2.0, name="new")
    func = te.create_prim_func([x, z])
    named = source_names(tvm.IRModule({"f": func}))["f"]
    assert {"/layer/0", "10@1", "new", "seq.len"} <= names(func)
    assert {"_layer_0", "v_10_1", "new_", "seq_len"} <= names(named)
    assert all(name.isidentifier() and name.isascii() for name in names(named))
    tvm.ir.assert_structural_equal(named, func)


def test_names_that_fit_are_left_alone() -> None:
    x = te.placeholder((2,), "float32", name="x")
    func = te.create_prim_func([x, te.compute((2,), lambda i: x[i] + 1.0, name="y")])
    assert source_names(tvm.IRModule({"f": func}))["f"].same_as(func)


@pytest.mark.slow
@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: install NVIDIA's CUDA toolkit 13")
def test_nvcc_takes_a_net_whose_names_are_paths(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        net (float[n, 16] x) => (float[n, 16] y)
        {
            a = Exp (x)
            b = Softmax <axis = 1> (a)
            c = MatMul (b, w)
            y = CumSum (c, axis)
        }""")
    name_by_paths(model, {"w": np.ones((16, 16), np.float32), "axis": np.array(1)})
    onnx.save(model, tmp_path / "net.onnx")
    output = str(tmp_path / "net.halo")
    config = CompileConfig(str(tmp_path / "net.onnx"), target="cuda:sm_80", output=output, validate=False)
    assert halo_tvm.compile_model(config).reports.build.device.form == "fatbin"
