"""Element types of less than a byte inside a model; as its inputs or outputs, or in arithmetic, they are refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

X = np.array([[-9.0, -1.25, 0.25, 0.75, 2.5, 100.0]], np.float32)


def model(nodes: list, output: int):
    infos = [helper.make_tensor_value_info("x", T.FLOAT, ["n", 6])], [helper.make_tensor_value_info("y", output, None)]
    return helper.make_model(
        helper.make_graph(nodes, "g", *infos), opset_imports=[helper.make_opsetid("", 25)], ir_version=12
    )


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1"])
def test_quantised_and_restored(kind: str) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(getattr(T, kind))
    nodes = [
        helper.make_node("Constant", [], ["scale"], value_float=0.5),
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=getattr(T, kind)),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    found = compile_in_process(import_proto(model(nodes, T.FLOAT), name="t"), threads=1)(x=X)["y"]
    if kind == "FLOAT4E2M1":
        wanted = (X / 0.5).astype(dtype)
    else:
        limits = ml_dtypes.iinfo(dtype)
        wanted = np.clip(np.rint(X / 0.5), limits.min, limits.max)
    np.testing.assert_array_equal(found, wanted.astype(np.float32) * 0.5)


def test_anything_else_is_refused() -> None:
    cast = helper.make_node("Cast", ["x"], ["q"], to=T.INT4)
    with pytest.raises(UnsupportedModel, match="tensors of int4 can be converted"):
        import_proto(model([cast, helper.make_node("Neg", ["q"], ["y"])], T.INT4), name="t")
    with pytest.raises(UnsupportedModel, match="expected outputs of whole bytes, found int4 y"):
        import_proto(model([helper.make_node("Cast", ["x"], ["y"], to=T.INT4)], T.INT4), name="t")
