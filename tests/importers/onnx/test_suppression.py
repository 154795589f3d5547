"""Boxes of detectors: suppression against a loop of NumPy, and sizes that are known when the model runs only."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process


def model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list]], output: int, constants: dict) -> object:
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    out = helper.make_tensor_value_info("y", output, None)
    weights = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "g", infos, [out], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return compile_in_process(import_proto(proto, name="t"), threads=1)


@pytest.fixture(scope="module")
def suppression() -> dict[int, object]:
    """By whether boxes come with their centre."""
    inputs = {"b": (T.FLOAT, ["batch", "n", 4]), "s": (T.FLOAT, ["batch", "classes", "n"])}
    inputs |= {"m": (T.INT64, [1]), "o": (T.FLOAT, [1]), "l": (T.FLOAT, [1])}
    return {
        centre: model(
            [helper.make_node("NonMaxSuppression", list(inputs), ["y"], center_point_box=centre)], inputs, T.INT64, {}
        )
        for centre in (0, 1)
    }


def chosen(boxes: np.ndarray, scores: np.ndarray, limit: int, overlap: np.float32, least: np.float32) -> np.ndarray:
    """Box after box, each compared with those chosen before it; `boxes` are two opposite corners each."""
    found = []
    low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    area = (high - low).prod(-1)
    for b, c in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for i in np.argsort(-scores[b, c], kind="stable"):
            if len(kept) == limit or not scores[b, c, i] > least:
                break
            common = np.maximum(np.minimum(high[b, kept], high[b, i]) - np.maximum(low[b, kept], low[b, i]), 0).prod(-1)
            union = area[b, i] + area[b, kept] - common
            if not (common[union > 0] / union[union > 0] > overlap).any():
                kept.append(int(i))
        found += [(b, c, i) for i in kept]
    return np.asarray(found, np.int64).reshape(-1, 3)


@settings(deadline=None, max_examples=100)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 70)),
    grid=st.integers(2, 12),  # few places: equal boxes, boxes without area, scores that tie
    limit=st.integers(0, 80),
    overlap=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    least=st.sampled_from([-1.0, 0.0, 0.5]),
    centre=st.integers(0, 1),
    seed=st.integers(0, 99),
)
def test_suppression(suppression, sizes, grid, limit, overlap, least, centre, seed):
    (batch, classes, n), rng = sizes, np.random.default_rng(seed)
    ends = rng.integers(0, grid, (batch, n, 4)).astype(np.float32)
    scores = (rng.integers(0, grid, (batch, classes, n)) / np.float32(grid)).astype(np.float32)
    boxes = ends
    if centre:  # powers of two: centres and sizes are exact
        low, high = np.minimum(ends[..., :2], ends[..., 2:]), np.maximum(ends[..., :2], ends[..., 2:])
        boxes = np.concatenate([(low + high) / 2, high - low], -1)
    limits = np.asarray([limit]), np.asarray([overlap], np.float32), np.asarray([least], np.float32)
    (found,) = suppression[centre](boxes, scores, *limits).values()
    wanted = chosen(ends, scores, limit, np.float32(overlap), np.float32(least))
    np.testing.assert_array_equal(np.asarray(found), wanted)


def above_half(nodes: list[onnx.NodeProto], constants: dict) -> object:
    """A net over v, the elements of x [8] above a half, and k, how many they are."""
    found = [
        helper.make_node("Greater", ["x", "half"], ["mask"]),
        helper.make_node("NonZero", ["mask"], ["at"]),
        helper.make_node("Squeeze", ["at", "zero"], ["places"]),
        helper.make_node("Gather", ["x", "places"], ["v"]),
        helper.make_node("Shape", ["v"], ["k"]),
    ]
    constants = {"half": np.float32(0.5), "zero": np.asarray([0]), **constants}
    return model([*found, *nodes], {"x": (T.FLOAT, [8])}, T.FLOAT, constants)


X = np.asarray([0.9, 0.1, 0.6, 0.3, 0.8, 0.7, 0.2, 0.95], np.float32)


def test_a_slice_of_all_elements_has_their_size():
    """v[0:k, None] + w [k, 4]: max(k, 0) is k, so that neither is computed from the other."""
    nodes = [
        helper.make_node("Slice", ["v", "zero", "k"], ["cut"]),
        helper.make_node("Mul", ["cut", "two"], ["twice"]),
        helper.make_node("Unsqueeze", ["twice", "one"], ["column"]),
        helper.make_node("Gather", ["table", "places"], ["w"]),
        helper.make_node("Add", ["w", "column"], ["y"]),
    ]
    table = np.arange(32, dtype=np.float32).reshape(8, 4)
    net = above_half(nodes, {"one": np.asarray([1]), "two": np.float32(2), "table": table})
    for x in (X, X * 0):
        (y,) = net(x).values()
        np.testing.assert_allclose(np.asarray(y), table[x > 0.5] + 2 * x[x > 0.5][:, None], rtol=1e-6)
