"""Attention over a cache of symbolic length, in order, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

SHAPES = {"q": ["b", "s", 32], "k": ["b", "s", 16], "v": ["b", "s", 16]} | dict.fromkeys(("pk", "pv"), ["b", 2, "p", 8])


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.sampled(1)
def test_keys_behind_a_query_are_hidden(scores: bool) -> None:
    attrs = {"is_causal": 1, "q_num_heads": 4, "kv_num_heads": 2, "qk_matmul_output_mode": 3}
    results = ["y", "present_k", "present_v", *(["scores"] if scores else [])]
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], results, **attrs)
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in SHAPES.items()]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results]
    graph = helper.make_graph([node], "attention", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    program = compile_in_process(import_proto(model, name="attention"))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for s, p in ((3, 4), (1, 7), (5, 1)):
        sizes = {"b": 2, "s": s, "p": p}
        feed = {
            n: rng.standard_normal([sizes.get(d, d) for d in shape]).astype("float32") for n, shape in SHAPES.items()
        }
        for found, expected in zip(program(**feed).values(), session.run(None, feed), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
