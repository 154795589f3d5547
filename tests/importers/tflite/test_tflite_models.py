"""Whole TFLite files beside LiteRT: integers stay integers, loops end where they count to, variables are kept."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="the reference: pip install halo_tvm[tflite]")

from tflite_files import GraphFile, write_model

from halo_tvm.errors import UnsupportedModel
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


@pytest.mark.slow
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


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_variables_that_begin_with_something(dtype: str, tmp_path: Path):
    """The last input, at first what the file says: streaming nets of integers begin with their zero point."""
    main, first = GraphFile(), GraphFile()
    for g in (main, first):
        g.handle = g.tensor((), "resource")
    first.op("VAR_HANDLE", [], [first.handle], "VarHandleOptions", sharedName=b"last")
    first.op("ASSIGN_VARIABLE", [first.handle, first.const([-128, 7], dtype)], [])
    x = main.input((2,), dtype)
    main.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=1)
    main.op("VAR_HANDLE", [], [main.handle], "VarHandleOptions", sharedName=b"last")
    before = main.op("READ_VARIABLE", [main.handle], [main.tensor((2,), dtype)])
    out = main.op("CONCATENATION", [*before, x], [main.tensor((4,), dtype)], "ConcatenationOptions")
    main.op("ASSIGN_VARIABLE", [main.handle, x], [])
    file = tmp_path / "state.tflite"
    file.write_bytes(write_model([(main, out), (first, [])], {"serving_default": 0}))
    model = import_model(str(file))
    program = compile_in_process(model)
    state = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.inputs if spec.name != "x0"}
    given = [np.array(values, dtype) for values in ([1, 2], [0, 0], [-5, 100])]
    for last, values in zip([np.array([-128, 7], dtype), *given], given):
        for found in (program(x0=values, **state), model.engine({"x0": values, **state})):
            np.testing.assert_array_equal(np.asarray(found["y0"]), [*last, *values])
        state = {name: np.asarray(found[name]) for name in state}


@pytest.mark.parametrize(("padding", "size"), [(1, 8), (2, 10)])
def test_transposed_convolutions_of_mediapipe(padding: int, size: int, tmp_path: Path):
    """A custom operator with the numbers of TRANSPOSE_CONV and a bias, steps of 2 by 3; LiteRT runs the latter."""
    r = rng()
    w, b = r.standard_normal((5, 4, 4, 3)).astype(np.float32), r.standard_normal(5).astype(np.float32)
    shape = (1, size, 9 if padding == 1 else 10, 5)
    ours, known = GraphFile(), GraphFile()
    given = [ours.input((1, 4, 3, 3)), ours.const(w), ours.const(b)]
    out = ours.custom("Convolution2DTransposeBias", given, [ours.tensor(shape)], struct.pack("<3i", padding, 3, 2))
    sizes = known.const(shape, "int32")
    options = {"padding": padding - 1, "strideH": 2, "strideW": 3}
    inputs = [sizes, known.const(w), known.input((1, 4, 3, 3))]
    made = known.op("TRANSPOSE_CONV", inputs, [known.tensor(shape)], "TransposeConvOptions", **options)
    made = known.op("ADD", [*made, known.const(b)], [known.tensor(shape)], "AddOptions")
    x = r.standard_normal((1, 4, 3, 3)).astype(np.float32)
    for name, data in (("ours", ours.write(out)), ("known", known.write(made))):
        (tmp_path / f"{name}.tflite").write_bytes(data)
    found = compile_in_process(import_model(str(tmp_path / "ours.tflite")))(x0=x)
    wanted = import_model(str(tmp_path / "known.tflite")).engine({"x0": x})
    np.testing.assert_allclose(np.asarray(found["y0"]), wanted["y0"], atol=1e-5)


def test_spectra(tmp_path: Path):
    """Transforms that are padded, cut and of two dimensions; magnitudes, parts, and the cast that leaves real parts."""
    g = GraphFile()
    x = g.input((3, 1, 16))
    outputs = []
    for height, width in ((1, 32), (1, 8), (4, 16)):
        shape = (3, height, width // 2 + 1)
        pair = g.op("RFFT2D", [x, g.const([height, width], "int32")], [g.tensor(shape, "complex64")], "Rfft2dOptions")
        flat = (3, height * shape[2])
        moved = g.op("RESHAPE", [*pair, g.const([3, -1], "int32")], [g.tensor(flat, "complex64")])
        outputs += g.op("COMPLEX_ABS", pair, [g.tensor(shape)])
        outputs += g.op("IMAG", moved, [g.tensor(flat)])
        outputs += g.op("REAL", pair, [g.tensor(shape)])
        outputs += g.op("CAST", moved, [g.tensor(flat)], "CastOptions", inDataType=8, outDataType=0)
    file = tmp_path / "spectra.tflite"
    file.write_bytes(g.write(outputs))
    compared(file, 1e-5, x0=rng().standard_normal((3, 1, 16)).astype(np.float32))


def test_complex_numbers_end_where_no_operator_takes_them(tmp_path: Path):
    g = GraphFile()
    shape = (3, 1, 9)
    pair = g.op("RFFT2D", [g.input((3, 1, 16)), g.const([1, 16], "int32")], [g.tensor(shape, "complex64")])
    file = tmp_path / "complex.tflite"
    file.write_bytes(g.write(pair))
    with pytest.raises(UnsupportedModel, match="expected real results, found the complex 'y0'"):
        import_model(str(file))
    file.write_bytes(g.write(g.op("NEG", pair, [g.tensor(shape, "complex64")])))
    with pytest.raises(UnsupportedModel, match="NEG .expected real numbers, found complex ones"):
        import_model(str(file))


def test_tensors_without_elements_are_known(tmp_path: Path):
    """No buffer holds a shape of no sizes, the shape of a number."""
    g = GraphFile()
    number = g.op("RESHAPE", [g.input((1, 1)), g.tensor((0,), "int32")], [g.tensor(())])
    file = tmp_path / "number.tflite"
    file.write_bytes(g.write(number))
    compared(file, 0, x0=np.float32([[7]]))
