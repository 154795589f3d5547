"""Assignments to parts of tensors, as torch's exporter writes them: ScatterND at places that are known."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process
from halo_tvm.passes.graph_pass import bindings
from halo_tvm.relay_ops.operator import op_name

SIZE = (3, 7, 8)
# A part of [3, 7, 8] -> whether it is a box, each place once.
PARTS: dict[str, tuple[object, bool]] = {
    "rows": ((slice(1, 3),), True),
    "columns": ((slice(None), slice(None), slice(2, 5)), True),
    "one column": ((slice(None), slice(None), slice(6, 7)), True),
    "from the end": ((slice(None), slice(-3, None)), True),
    "steps": ((slice(0, 3, 2), slice(1, 7, 3), slice(None, None, 2)), True),
    "everything": ((slice(None), slice(None)), True),
    "places apart": ((slice(None), [0, 1, 5]), False),
    "backwards": ((slice(None), [5, 4, 3]), False),
    "one place twice": ((slice(None), [2, 2, 3]), False),
}


def places(part: tuple[object, ...]) -> np.ndarray:
    """[*counts, len(part)]: the places of `part`, those of its last axis counted from the end."""
    axes = [np.arange(size)[at] for size, at in zip(SIZE, part)]
    axes[-1] = axes[-1] - SIZE[len(part) - 1]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


def model(part: tuple[object, ...], last: int | str, dtype: int = T.FLOAT) -> tuple[object, list[int]]:
    at = places(part)
    shape = [*SIZE[:2], last if len(part) < 3 else SIZE[2]]
    counts = [*at.shape[:-1], *shape[len(part) :]]
    node = helper.make_node("ScatterND", ["x", "places", "u"], ["y"])
    infos = [helper.make_tensor_value_info(name, dtype, dims) for name, dims in (("x", shape), ("u", counts))]
    out = helper.make_tensor_value_info("y", dtype, shape)
    graph = helper.make_graph([node], "g", infos, [out], [numpy_helper.from_array(at, "places")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), counts


@pytest.mark.parametrize("last", [8, "n"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_written(part: str, last: int | str) -> None:
    chosen, is_box = PARTS[part]
    proto, counts = model(chosen, last)
    imported = import_proto(proto, name="t")
    kernels = {
        b.value.args[0].name_hint for b in bindings(imported.mod["main"]) if op_name(b.value) == "relax.call_tir"
    }
    assert any(name.startswith("write_box") for name in kernels) == is_box
    rng = np.random.default_rng(0)
    x = rng.standard_normal(SIZE).astype("float32")
    u = rng.standard_normal([8 if n == "n" else n for n in counts]).astype("float32")
    at, want = places(chosen), x.copy()
    want[tuple(np.moveaxis(at, -1, 0))] = u
    np.testing.assert_array_equal(compile_in_process(imported)(x=x, u=u)["y"], want)


def test_a_place_outside_is_dropped() -> None:
    """It is no box: what ONNX leaves open writes no foreign memory."""
    proto, counts = model(PARTS["rows"][0], 8)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([[1], [9]]), "places"))
    x, u = np.zeros(SIZE, "float32"), np.ones(counts, "float32")
    y = compile_in_process(import_proto(proto, name="t"))(x=x, u=u)["y"]
    assert y[1].all() and not y[[0, 2]].any()


def test_known_parts_of_known_tensors_are_constants() -> None:
    """Places of more than a MiB: relative positions of a vision transformer are written so."""
    rows = np.stack(np.meshgrid(np.arange(300), np.arange(300), [1], indexing="ij"), -1)
    nodes = [
        helper.make_node("Concat", ["front", "back"], ["places"], axis=-1),
        helper.make_node("ScatterND", ["grid", "places", "u"], ["written"]),
        helper.make_node("Add", ["x", "written"], ["y"]),
    ]
    arrays = {"front": rows[..., :1], "back": rows[..., 1:], "grid": np.zeros((300, 300, 2), "float32")}
    arrays["u"] = np.arange(90000, dtype="float32").reshape(300, 300, 1)
    x, y = (helper.make_tensor_value_info(name, T.FLOAT, [300, 300, 2]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    imported = import_proto(proto, name="t")
    assert [op_name(b.value) for b in bindings(imported.mod["main"])][:1] == ["relax.add"]
    found = compile_in_process(imported)(x=np.ones((300, 300, 2), "float32"))["y"]
    assert not (found[..., 0] - 1).any() and np.array_equal(found[..., 1:] - 1, arrays["u"])
