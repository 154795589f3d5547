"""Whole TFLite files beside LiteRT: integers stay integers, loops end where they count to, variables are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="the reference: pip install halo_tvm[tflite]")

from tflite_files import GraphFile, write_model

from halo_tvm.importers import import_model
from halo_tvm.in_process import Program, compile_in_process

CONV = {"padding": 0, "strideH": 1, "strideW": 1, "fusedActivationFunction": 1}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def compared(file: Path, steps: float, **feeds: np.ndarray) -> Program:
    """The compiled file, no further than `steps` from LiteRT in any element."""
    model = import_model(str(file))
    wanted = model.engine(feeds)
    program = compile_in_process(model)
    found = program(**feeds)
    for name, value in wanted.items():
        got = np.asarray(found[name])
        assert got.dtype == value.dtype and got.shape == value.shape
        assert np.abs(got.astype(np.float64) - value).max() <= steps
    return program


def integer_products(program: Program) -> int:
    """Operators that multiply integers, whatever kernels they become."""
    found = program.reports.lift.operators
    return sum(found.get(name, 0) for name in ("convolution_integer", "linear_integer"))


def test_integer_models_stay_integer(tmp_path: Path):
    """int8 in and out: a convolution by channels, a move, a sum on two grids, a product."""
    g, r = GraphFile(), rng()
    x = g.input((-1, 6, 6, 4), "int8", ((0.02,), (3,), 0))
    w = g.const(r.integers(-127, 128, (4, 3, 3, 4)), "int8", ((0.01, 0.02, 0.005, 0.01), (0,) * 4, 0))
    b = g.const(r.integers(-500, 500, 4), "int32", ((2e-4, 4e-4, 1e-4, 2e-4), (0,) * 4, 0))
    y = g.op(
        "CONV_2D", [x, w, b], [g.tensor((-1, 6, 6, 4), "int8", grid=((0.05,), (-128,), 0))], "Conv2DOptions", **CONV
    )
    z = g.op("ADD", [x, *y], [g.tensor((-1, 6, 6, 4), "int8", grid=((0.06,), (-20,), 0))], "AddOptions")
    rows = g.op("RESHAPE", [*z, g.const([-1, 144], "int32")], [g.tensor((-1, 144), "int8", grid=((0.06,), (-20,), 0))])
    dense = g.const(r.integers(-127, 128, (5, 144)), "int8", ((0.003,), (0,), 0))
    out = g.tensor((-1, 5), "int8", grid=((0.2,), (0,), 0))
    g.op("FULLY_CONNECTED", [*rows, dense, -1], [out], "FullyConnectedOptions")
    file = tmp_path / "int8.tflite"
    file.write_bytes(g.write([out]))
    program = compared(file, 1, x0=r.integers(-128, 128, (2, 6, 6, 4)).astype(np.int8))
    assert integer_products(program) == 2


def test_weights_in_bytes_beside_floats_are_products_of_integers(tmp_path: Path):
    g, r = GraphFile(), rng(1)
    x = g.input((-1, 64))
    w = g.const(r.integers(-127, 128, (8, 64)), "int8", (r.uniform(0.01, 0.02, 8), (0,) * 8, 0))
    half = g.op("DEQUANTIZE", [g.const(r.standard_normal(8), "float16")], [g.tensor((8,))])
    y = g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor((-1, 8))], "FullyConnectedOptions")
    out = g.op("ADD", [*y, *half], [g.tensor((-1, 8))], "AddOptions")
    file = tmp_path / "dynamic.tflite"
    file.write_bytes(g.write(out))
    feed = r.standard_normal((3, 64)).astype(np.float32)
    largest = np.abs(import_model(str(file)).engine({"x0": feed})["y0"]).max()
    assert integer_products(compared(file, 0.02 * largest, x0=feed)) == 1


def test_sparse_weights_are_dense_when_they_are_read(tmp_path: Path):
    """Rows dense, columns sparse: [[0, 5, 0], [7, 0, 9]]."""
    from ai_edge_litert import schema_py_generated as schema

    g = GraphFile()
    x = g.input((1, 3))
    w = g.tensor((2, 3), data=np.float32([5, 7, 9]))
    sparsity = g.tensors[w].sparsity = schema.SparsityParametersT()
    sparsity.traversalOrder, sparsity.blockMap = [0, 1], []
    rows, columns = schema.DimensionMetadataT(), schema.DimensionMetadataT()
    rows.format, rows.denseSize, columns.format = 0, 2, 1
    for which, values in (("arraySegments", [0, 1, 3]), ("arrayIndices", [1, 0, 2])):
        vector = schema.Uint8VectorT()
        vector.values = values
        setattr(columns, which, vector)
        setattr(columns, f"{which}Type", 3)
    sparsity.dimMetadata = [rows, columns]
    dense = g.op("DENSIFY", [w], [g.tensor((2, 3))], "DensifyOptions")
    out = g.op("FULLY_CONNECTED", [x, *dense, -1], [g.tensor((1, 2))], "FullyConnectedOptions")
    file = tmp_path / "sparse.tflite"
    file.write_bytes(g.write(out))
    compared(file, 1e-6, x0=np.float32([[1, 2, 3]]))


def counting(limit: int | None) -> bytes:
    """x0 [3] doubled until a counter reaches `limit`, or x1; then halved where its sum is above 100."""
    main, condition, body, half, same = (GraphFile() for _ in range(5))
    x = main.input((3,))
    end = main.input((), "int32") if limit is None else main.const(limit, "int32")
    made = [main.tensor((), "int32"), main.tensor((3,)), main.tensor((), "int32")]
    main.op("WHILE", [main.const(0, "int32"), x, end], made, "WhileOptions", condSubgraphIndex=1, bodySubgraphIndex=2)
    total = main.op("SUM", [made[1], main.const([0], "int32")], [main.tensor(())], "ReducerOptions")
    large = main.op("GREATER", [*total, main.const(100.0)], [main.tensor((), "bool")])
    options = {"thenSubgraphIndex": 3, "elseSubgraphIndex": 4}
    out = main.op("IF", [*large, made[1]], [main.tensor((3,))], "IfOptions", **options)
    for g in (condition, body):
        g.values = [g.input((), "int32"), g.input((3,)), g.input((), "int32")]
    less = condition.op("LESS", [condition.values[0], condition.values[2]], [condition.tensor((), "bool")])
    following = body.op("ADD", [body.values[0], body.const(1, "int32")], [body.tensor((), "int32")], "AddOptions")
    doubled = body.op("ADD", [body.values[1], body.values[1]], [body.tensor((3,))], "AddOptions")
    halved = half.op("MUL", [half.input((3,)), half.const(0.5)], [half.tensor((3,))], "MulOptions")
    graphs = [
        (main, out),
        (condition, less),
        (body, [*following, *doubled, body.values[2]]),
        (half, halved),
        (same, [same.input((3,))]),
    ]
    return write_model(graphs, {"serving_default": 0})


@pytest.mark.parametrize("limit", [5, None])
def test_loops_and_branches(limit: int | None, tmp_path: Path):
    file = tmp_path / "loop.tflite"
    file.write_bytes(counting(limit))
    for value in (1.0, 20.0):
        feeds = {"x0": np.float32([value, 2, 3])} | ({} if limit else {"x1": np.int32(4)})
        compared(file, 1e-5, **feeds)


def test_variables_are_state(tmp_path: Path):
    """A running sum: what a call leaves, the next one finds."""
    main, first = GraphFile(), GraphFile()
    for g in (main, first):
        g.handle = g.tensor((), "resource")
    first.op("VAR_HANDLE", [], [first.handle], "VarHandleOptions", sharedName=b"total")
    first.op("ASSIGN_VARIABLE", [first.handle, first.const([0.0, 0.0])], [])
    x = main.input((2,))
    main.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=1)
    main.op("VAR_HANDLE", [], [main.handle], "VarHandleOptions", sharedName=b"total")
    before = main.op("READ_VARIABLE", [main.handle], [main.tensor((2,))])
    after = main.op("ADD", [*before, x], [main.tensor((2,))], "AddOptions")
    main.op("ASSIGN_VARIABLE", [main.handle, *after], [])
    file = tmp_path / "state.tflite"
    file.write_bytes(write_model([(main, after), (first, [])], {"serving_default": 0}))
    model = import_model(str(file))
    assert model.source["state"] == ["state_total"] and model.outputs == ("y0", "state_total")
    found = compile_in_process(model)(x0=np.float32([1, 2]), state_total=np.float32([10, 20]))
    np.testing.assert_array_equal(np.asarray(found["y0"]), [11, 22])
    np.testing.assert_array_equal(np.asarray(found["state_total"]), [11, 22])
