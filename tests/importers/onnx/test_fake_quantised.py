"""Fake-quantised exports hold weights as floats that are rounded in the graph: they are integers, made when read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from halo_tvm.imported import ImportedModel
from halo_tvm.importers.onnx import _rounded, import_proto
from halo_tvm.in_process import compile_in_process
from halo_tvm.interpreter import evaluate
from halo_tvm.passes.graph_pass import bindings
from halo_tvm.relay_ops.operator import op_name

RNG = np.random.default_rng(0)
Step = tuple[str, Sequence[str], str, Mapping[str, object]]
ROWS: list[Step] = [
    ("QuantizeLinear", ["x", "xs", "xz"], "xq", {}),
    ("DequantizeLinear", ["xq", "xs", "xz"], "xd", {}),
]
GRID = {"xs": np.float32(0.03), "xz": np.uint8(120)}


def model_of(steps: Sequence[Step], held: Mapping[str, np.ndarray], x: Sequence[int]) -> onnx.ModelProto:
    nodes = [helper.make_node(op, list(inputs), [output], **attrs) for op, inputs, output, attrs in steps]
    made = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
        for n, shape in (("x", x), (nodes[-1].output[0], None))
    ]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "fake", made[:1], made[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def calls(imported: ImportedModel) -> list[str]:
    used = relax.transform.DeadCodeElimination()(tvm.IRModule({"main": imported.mod["main"]}))["main"]
    return [op_name(binding.value) for binding in bindings(used)]


@pytest.mark.parametrize("size", [20, 200])
@pytest.mark.parametrize(
    ("dtype", "axis", "block"),
    [("int8", 1, 0), ("uint8", None, 0), ("int16", 0, 0), ("int4", 1, 40), ("uint4", -2, 30), ("float8_e4m3fn", 0, 0)],
)
def test_a_known_weight_is_rounded_as_the_reference_does(dtype, axis, block, size) -> None:
    """Halves, and what saturates, are among its numbers; no size of a weight leaves the rounding to a run."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weight = RNG.integers(-300, 300, (size, size)).astype(np.float32) / 2
    grid = [-(-size // block) if block and i == (axis or 0) % 2 else size for i in range(2)] if block else [size]
    scale = (2.0 ** RNG.integers(-3, 1, () if axis is None else grid)).astype(np.float32)
    low, high = (0, 1) if "float" in dtype else (0 if dtype.startswith("u") else -3, 7)
    zero = RNG.integers(low, high, scale.shape).astype(kind)
    attrs = {} if axis is None else {"axis": axis, **({"block_size": block} if block else {})}
    steps: list[Step] = [
        ("QuantizeLinear", ["w", "s", "z"], "q", attrs),
        ("DequantizeLinear", ["q", "s", "z"], "d", attrs),
        ("Mul", ["x", "d"], "y", {}),
    ]
    model = model_of(steps, {"w": weight, "s": scale, "z": zero}, [size, size])
    imported, x = import_proto(model, name="test"), np.ones((size, size), np.float32)
    assert calls(imported) == ["relax.multiply"]
    np.testing.assert_array_equal(evaluate(imported, {"x": x})["y"], ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_what_is_far_beyond_the_grid_is_its_end() -> None:
    weight = np.array([[1e30, -1e30, np.inf, -np.inf, np.nan, 2.5, 3.5]], np.float32)
    steps: list[Step] = [
        ("QuantizeLinear", ["w", "s", "z"], "q", {}),
        ("DequantizeLinear", ["q", "s", "z"], "d", {}),
        ("Mul", ["x", "d"], "y", {}),
    ]
    model = model_of(steps, {"w": weight, "s": np.float32(1), "z": np.int8(0)}, [1, 7])
    found = evaluate(import_proto(model, name="test"), {"x": np.ones((1, 7), np.float32)})["y"]
    assert found.tolist() == [[127, -128, 127, -128, -128, 2, 4]]


def test_products_multiply_the_integers_of_a_float_weight_which_importing_does_not_read(monkeypatch) -> None:
    read = []
    rounded = _rounded.Grid.rounded
    monkeypatch.setattr(_rounded.Grid, "rounded", lambda grid, x: read.append(x.shape) or rounded(grid, x))
    weight = RNG.standard_normal((256, 192)).astype(np.float32)
    held = {**GRID, "w": weight, "s": (np.abs(weight).max(0) / 127).astype(np.float32), "z": np.zeros(192, np.int8)}
    steps: list[Step] = [
        *ROWS,
        ("QuantizeLinear", ["w", "s", "z"], "wq", {"axis": 1}),
        ("DequantizeLinear", ["wq", "s", "z"], "wd", {"axis": 1}),
        ("MatMul", ["xd", "wd"], "y", {}),
    ]
    model = model_of(steps, held, [5, 256])
    imported, x = import_proto(model, name="test"), RNG.standard_normal((5, 256)).astype(np.float32)
    names = calls(imported)
    assert names.count("relax.halo.linear_integer") == names.count("relax.round") == 1 and not read
    wanted = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(compile_in_process(imported)(x=x)["y"], wanted, rtol=1e-5, atol=1e-4)
    assert (256, 192) in read


TURNED = [("Transpose", ["wd"], "wt", {"perm": [1, 0]})]
THROUGH_THREE = [
    ("Unsqueeze", ["wd", "one"], "w3", {}),
    ("Identity", ["w3"], "wi", {}),
    ("Transpose", ["wi"], "wu", {"perm": [2, 1, 0]}),
    ("Reshape", ["wu", "flat"], "wt", {}),
]


@pytest.mark.parametrize("columns", [24, 40000])  # folded, and moved when it is read
@pytest.mark.parametrize("moves", [TURNED, THROUGH_THREE])
@pytest.mark.parametrize("grid", ["tensor", "columns", "rows"])
def test_a_stored_weight_in_another_layout_stays_integers(grid, moves, columns) -> None:
    """Scales go along where they are one per column of the product; one per row of it has no integer product."""
    size = {"tensor": (), "columns": columns, "rows": 32}[grid]
    held = {
        **GRID,
        "w": RNG.integers(-128, 128, (columns, 32)).astype(np.int8),
        "s": RNG.uniform(0.01, 0.02, size).astype(np.float32),
        "one": np.array([1]),
        "flat": np.array([32, columns]),
    }
    steps: list[Step] = [
        *ROWS,
        ("DequantizeLinear", ["w", "s"], "wd", {"axis": 1 if grid == "rows" else 0}),
        *moves,
        ("MatMul", ["xd", "wt"], "y", {}),
    ]
    model = model_of(steps, held, [3, 32])
    imported, x = import_proto(model, name="test"), RNG.standard_normal((3, 32)).astype(np.float32)
    names = calls(imported)
    assert ("relax.halo.linear_integer" in names) == (grid != "rows")
    if columns == 24:
        wanted = ReferenceEvaluator(model).run(None, {"x": x})[0]
        np.testing.assert_allclose(compile_in_process(imported)(x=x)["y"], wanted, rtol=1e-4, atol=1e-4)
