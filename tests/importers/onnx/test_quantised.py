"""Quantised files in their own integers: equal to onnxruntime, and on the kernels that are meant for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from halo_tvm import onnxruntime_apart
from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.importers.onnx import import_proto
from halo_tvm.importers.onnx.unsigned import with_unsigned_weights
from halo_tvm.in_process import Program, compile_in_process
from halo_tvm.passes.graph_pass import bindings
from halo_tvm.relay_ops.operator import op_name
from halo_tvm.targets import read_host, resolve

ort = pytest.importorskip("onnxruntime")

TYPES = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}
Step = tuple[str, Sequence[str], Sequence[str], Mapping[str, object]]


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def model_of(steps: Sequence[Step], feeds: Mapping[str, Sequence], held: Mapping[str, np.ndarray], outputs: Mapping):
    """A graph of `steps` (operator, inputs, outputs, attributes); `feeds` and `outputs` are name -> (dtype, shape)."""
    microsoft = ("QGemm", "QLinearAdd", "QLinearGlobalAveragePool", "DynamicQuantizeMatMul", "QLinearConcat")
    nodes = [
        helper.make_node(op, list(i), list(o), **attrs, **({"domain": "com.microsoft"} if op in microsoft else {}))
        for op, i, o, attrs in steps
    ]
    infos = [
        [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name, (dtype, shape) in tensors.items()]
        for tensors in (feeds, outputs)
    ]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "quantised", *infos, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def compare(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], atol: float = 1e-5, **how: str) -> Program:
    """The compiled model, whose outputs equal those of onnxruntime's unoptimised graph, multiplied exactly."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = with_unsigned_weights(model.SerializeToString())
    session = ort.InferenceSession(exact, options, providers=["CPUExecutionProvider"])
    program = compile_in_process(import_proto(model, name="test"), **how)
    found = program(**feeds)
    for output, wanted in zip(session.get_outputs(), session.run(None, dict(feeds))):
        got = np.asarray(found[output.name])
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=1e-6, atol=atol)
    return program


def rules(program: Program) -> dict[str, str]:
    return {f.function: f.rule for f in program.reports.schedule.functions}


def calls(model: onnx.ModelProto, name: str) -> list[relax.Call]:
    """The calls of operator `name` that the imported model needs."""
    main = import_proto(model, name="test").mod["main"]
    used = relax.transform.DeadCodeElimination()(tvm.IRModule({"main": main}))["main"]
    return [b.value for b in bindings(used) if op_name(b.value) == name]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_function_of_one_byte_is_looked_up(dtype):
    """x * sigmoid(x) on grids: two ways from one byte to another, with a rounding behind each operator."""
    shape, zero = ("float32", ["n", 30]), 3
    grid = [(name, scale) for name, scale in (("x", 0.04), ("g", 0.004), ("y", 0.03))]
    held = {name + "s": np.float32(scale) for name, scale in grid} | {"z": np.array(zero, dtype)}
    held["w"] = rng(1).uniform(0.5, 1.5, 30).astype("float32")
    there = {name: ("QuantizeLinear", [name, name + "s", "z"], [name + "q"], {}) for name, _ in grid}
    back = {name: ("DequantizeLinear", [name + "q", name + "s", "z"], [name + "d"], {}) for name, _ in grid}
    steps = [
        *(there["x"], back["x"]),
        ("Sigmoid", ["xd"], ["g"], {}),
        *(there["g"], back["g"]),
        ("Mul", ["xd", "gd"], ["y"], {}),
        *(there["y"], back["y"]),
        ("Mul", ["yd", "w"], ["scaled"], {}),  # by channel: no function of the byte alone
    ]
    program = compare(
        model_of(steps, {"x": shape}, held, {"scaled": shape}), {"x": 3 * rng(2).standard_normal((9, 30), "float32")}
    )
    assert program.reports.optimise.others["byte_tables"] == {"tables": 1}
    assert sum("byte_table" in name for name in rules(program)) == 1


@pytest.mark.parametrize("spelled", ["QDQ", "QLinearConcat"])
def test_parts_on_several_grids_are_joined_as_bytes(spelled):
    """One of the three is on the grid of the result, and is not rounded again."""
    names, zeros = ("a", "b", "c"), (3, 0, 128)
    held = {f"{n}s": np.float32(0.01 * (i + 1)) for i, n in enumerate(names)}
    held |= {f"{n}z": np.uint8(z) for n, z in zip(names, zeros)}
    feeds = {n: ("uint8", ["n", 5 + i]) for i, n in enumerate(names)}
    if spelled == "QDQ":
        steps = [("DequantizeLinear", [n, f"{n}s", f"{n}z"], [f"{n}d"], {}) for n in names]
        steps += [("Concat", ["ad", "bd", "cd"], ["joined"], {"axis": 1})]
        steps += [("QuantizeLinear", ["joined", "bs", "bz"], ["y"], {})]
    else:
        inputs = [name for n in names for name in (n, f"{n}s", f"{n}z")]
        steps = [("QLinearConcat", ["bs", "bz", *inputs], ["y"], {"axis": 1})]
    model = model_of(steps, feeds, held, {"y": ("uint8", ["n", 18])})
    compare(model, {n: rng(i).integers(0, 256, (7, 5 + i)).astype("uint8") for i, n in enumerate(names)})
    assert [str(call.ty.dtype) for call in calls(model, "relax.concat")] == ["uint8"]
    assert len(calls(model, "relax.round")) == 2


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_channels_by_themselves_are_read_as_bytes(dtype):
    """QDQ around a depthwise convolution: nothing is restored in front of it, and padding stands for 0."""
    low = 0 if dtype == "uint8" else -128
    held = {
        "w": rng(1).integers(-128, 128, (6, 1, 3, 3)).astype("int8"),
        "ws": rng(2).uniform(0.001, 0.01, 6).astype("float32"),
        "wz": np.zeros(6, "int8"),
        "b": rng(3).standard_normal(6).astype("float32"),
        "s": np.float32(0.02),
        "z": np.array(low + 100, dtype),
    }
    steps = [
        ("DequantizeLinear", ["x", "s", "z"], ["xd"], {}),
        ("DequantizeLinear", ["w", "ws", "wz"], ["wd"], {"axis": 0}),
        ("Conv", ["xd", "wd", "b"], ["y"], {"group": 6, "pads": [1, 2, 1, 0], "strides": [2, 1]}),
    ]
    model = model_of(steps, {"x": (dtype, ["n", 6, 9, 11])}, held, {"y": ("float32", ["n", 6, "h", "w"])})
    x = rng(4).integers(low, low + 256, (2, 6, 9, 11)).astype(dtype)
    program = compare(model, {"x": x}, atol=1e-4)
    assert set(rules(program).values()) == {"channelwise", "elementwise"}
    (convolution,) = calls(model, "relax.halo.convolution")
    assert str(convolution.args[0].ty.dtype) == dtype


@pytest.mark.parametrize(("groups", "inner", "outer"), [(6, 4, 4), (2, 3, 5), (3, 8, 8)])
@pytest.mark.sampled(1)
def test_groups_of_channels_are_multiplied_as_bytes(groups, inner, outer):
    """In QDQ and in ConvInteger, whose weight's zero point fits no signed byte."""
    channels, m, window = groups * inner, groups * outer, {"pads": [1, 2, 1, 0], "strides": [2, 1], "group": groups}
    held = {
        "w": rng(1).integers(-128, 128, (m, inner, 3, 3)).astype("int8"),
        "ws": rng(2).uniform(0.001, 0.01, m).astype("float32"),
        "wz": np.zeros(m, "int8"),
        "v": rng(3).integers(0, 256, (m, inner, 3, 3)).astype("uint8"),
        "vz": np.uint8(7),
        "s": np.float32(0.02),
        "z": np.uint8(100),
    }
    steps = [
        ("DequantizeLinear", ["x", "s", "z"], ["xd"], {}),
        ("DequantizeLinear", ["w", "ws", "wz"], ["wd"], {"axis": 0}),
        ("Conv", ["xd", "wd"], ["y"], window),
        ("ConvInteger", ["x", "v", "z", "vz"], ["i"], window),
    ]
    outputs = {"y": ("float32", ["n", m, "h", "w"]), "i": ("int32", ["n", m, "h", "w"])}
    model = model_of(steps, {"x": ("uint8", ["n", channels, 9, 11])}, held, outputs)
    x = rng(5).integers(0, 256, (2, channels, 9, 11)).astype("uint8")
    program = compare(model, {"x": x}, atol=1e-3)
    assert program.reports.optimise.others["channels_last"]["convolutions"] == {"in bytes, in groups": 3}
    assert set(rules(program).values()) == {"convolution", "elementwise"}


def test_what_is_no_number_becomes_zero():
    """By every kernel alike, whatever its vectors do; of uint8 as onnxruntime has it on x86."""
    steps = [
        ("Div", ["x", "x"], ["ones"], {}),
        ("QuantizeLinear", ["ones", "s", "z"], ["q"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["d"], {}),
        ("Mul", ["d", "w"], ["y"], {}),
    ]
    held = {"s": np.float32(0.02), "z": np.uint8(0), "w": rng(1).uniform(1, 2, 40).astype("float32")}
    model = model_of(steps, {"x": ("float32", ["n", 40])}, held, {"y": ("float32", ["n", 40])})
    x = rng(2).standard_normal((9, 40)).astype("float32")
    x[::2, 5:30] = 0
    compare(model, {"x": x})


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.sampled(1)
def test_dynamic_products_run_on_the_integer_kernel(dtype):
    """As onnxruntime's dynamic quantisation writes them; k no multiple of four, zero points that fit no signed byte."""
    k, n, low = 30, 37, -128 if dtype == "int8" else 0
    held = {
        "w": rng(1).integers(low, low + 256, (k, n)).astype(dtype),
        "wz": rng(2).integers(low, low + 256, n).astype(dtype),
        "ws": rng(3).uniform(0.001, 0.01, n).astype("float32"),
        "b": rng(4).standard_normal(n).astype("float32"),
        "v": rng(5).integers(low, low + 256, (n, 8)).astype(dtype),
        "vz": np.array(low + 128, dtype),
        "vs": np.array(0.01, "float32"),
    }
    steps = [
        ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
        ("MatMulInteger", ["q", "w", "z", "wz"], ["i"], {}),
        ("Cast", ["i"], ["f"], {"to": TensorProto.FLOAT}),
        ("Mul", ["s", "ws"], ["scale"], {}),
        ("Mul", ["f", "scale"], ["scaled"], {}),
        ("Add", ["scaled", "b"], ["added"], {}),
        ("Relu", ["added"], ["h"], {}),
        ("DynamicQuantizeMatMul", ["h", "v", "vs", "vz"], ["y"], {}),
    ]
    feeds = {"x": ("float32", ["b", "s", k])}
    model = model_of(steps, feeds, held, {"i": ("int32", ["b", "s", n]), "y": ("float32", ["b", "s", 8])})
    program = compare(model, {"x": rng(6).standard_normal((2, 5, k)).astype("float32")}, atol=1e-4)
    found = rules(program)
    assert [rule for name, rule in found.items() if "linear_integer" in name] == ["gemm", "gemm"], found
    assert "fallback" not in found.values(), found


def test_linear_products_stay_in_bytes():
    """QLinearMatMul of signed rows, then QGemm with its bias: bytes in, bytes out, rounded as onnxruntime does."""
    held = {
        "as": np.array(0.02, "float32"),
        "az": np.array(-7, "int8"),
        "w": rng(1).integers(-128, 128, (24, 20)).astype("int8"),
        "ws": rng(2).uniform(0.01, 0.02, 20).astype("float32"),
        "wz": np.zeros(20, "int8"),
        "ys": np.array(0.1, "float32"),
        "yz": np.array(5, "int8"),
        "v": rng(3).integers(-128, 128, (9, 20)).astype("int8"),
        "vs": np.array(0.01, "float32"),
        "vz": np.array(0, "int8"),
        "c": rng(4).integers(-900, 900, 9).astype("int32"),
        "os": np.array(0.2, "float32"),
    }
    steps = [
        ("QLinearMatMul", ["a", "as", "az", "w", "ws", "wz", "ys", "yz"], ["y"], {}),
        ("QGemm", ["y", "ys", "yz", "v", "vs", "vz", "c", "os", "yz"], ["o"], {"transB": 1}),
    ]
    model = model_of(steps, {"a": ("int8", [7, 24])}, held, {"y": ("int8", [7, 20]), "o": ("int8", [7, 9])})
    program = compare(model, {"a": rng(5).integers(-128, 128, (7, 24)).astype("int8")}, atol=0)
    assert "fallback" not in rules(program).values(), rules(program)


@pytest.mark.slow
def test_convolutions_stay_in_bytes():
    """A chain of QLinearConv: 3 channels, padding by the zero point, strides, groups, bias, a pooling in between."""

    def scale(*shape: int) -> np.ndarray:
        return rng(*shape, 1).uniform(0.005, 0.02, shape).astype("float32")

    held = {
        "xs": scale(),
        "xz": np.array(113, "uint8"),
        "w": rng(1).integers(-128, 128, (8, 3, 3, 3)).astype("int8"),
        "ws": scale(8),
        "wz": np.zeros(8, "int8"),
        "b": rng(2).integers(-500, 500, 8).astype("int32"),
        "ys": np.array(0.09, "float32"),
        "yz": np.array(120, "uint8"),
        "g": rng(3).integers(0, 256, (8, 1, 3, 3)).astype("uint8"),
        "gs": scale(),
        "gz": np.array(99, "uint8"),
        "v": rng(4).integers(0, 256, (5, 8, 1, 1)).astype("uint8"),
        "vz": np.array(7, "uint8"),
    }
    steps = [
        (
            "QLinearConv",
            ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"],
            ["a"],
            {"pads": [1, 0, 1, 1], "strides": [2, 1]},
        ),
        ("MaxPool", ["a"], ["p"], {"kernel_shape": [2, 2]}),
        ("QLinearConv", ["p", "ys", "yz", "g", "gs", "gz", "ys", "yz"], ["d"], {"group": 8, "auto_pad": "SAME_UPPER"}),
        ("QLinearConv", ["d", "ys", "yz", "v", "gs", "vz", "ys", "yz"], ["e"], {}),
        ("QLinearAdd", ["e", "ys", "yz", "e", "ys", "yz", "ys", "yz"], ["o"], {}),
    ]
    outputs = {"a": ("uint8", ["n", 8, 6, 10]), "o": ("uint8", ["n", 5, 5, 9])}
    model = model_of(steps, {"x": ("uint8", ["n", 3, 12, 11])}, held, outputs)
    program = compare(model, {"x": rng(9).integers(0, 256, (2, 3, 12, 11)).astype("uint8")}, atol=0)
    assert program.reports.optimise.others["channels_last"]["convolutions"]["in bytes"] == 3
    found = list(rules(program).values())
    assert found.count("convolution") == 1 and found.count("gemm") == 2, rules(program)


def test_convolutions_of_bytes_in_tiles():
    """Kernels of 3 x 3 and of 3, open sizes, a zero point that surrounds the image: the sums are onnxruntime's."""
    if not resolve("x86-64-v3").isa.requires <= read_host().flags:
        pytest.skip("this processor does not run x86-64-v3")
    held = {
        "z": np.array(9, "uint8"),
        "w": rng(1).integers(-128, 128, (24, 32, 3, 3)).astype("int8"),
        "v": rng(2).integers(-128, 128, (64, 64, 3)).astype("int8"),
    }
    steps = [
        ("ConvInteger", ["x", "w", "z"], ["i"], {"pads": [1, 0, 1, 2]}),
        ("ConvInteger", ["t", "v", "z"], ["j"], {"pads": [1, 1]}),
    ]
    feeds = {"x": ("uint8", ["n", 32, "h", 21]), "t": ("uint8", [2, 64, 401])}
    outputs = {"i": ("int32", ["n", 24, "h", 21]), "j": ("int32", [2, 64, 401])}
    given = {"x": rng(3).integers(0, 256, (2, 32, 13, 21)), "t": rng(4).integers(0, 256, (2, 64, 401))}
    model = model_of(steps, feeds, held, outputs)
    given = {name: value.astype("uint8") for name, value in given.items()}
    program = compare(model, given, atol=0, target="x86-64-v3")
    assert program.reports.optimise.others["channels_last"]["convolutions"] == {"in bytes, in tiles": 2}
    assert list(rules(program).values()).count("convolution_winograd") == 2, rules(program)


@pytest.mark.parametrize("zero", [128, 255])
def test_convolutions_of_floats_quantised_when_they_run(zero):
    """DynamicQuantizeLinear and ConvInteger over one axis, unsigned weights with and without room for their zero."""
    held = {"w": rng(1).integers(0, 256, (3, 5, 4)).astype("uint8"), "wz": np.array(zero, "uint8")}
    steps = [
        ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
        ("ConvInteger", ["q", "w", "z", "wz"], ["i"], {"pads": [2, 1], "dilations": [2]}),
    ]
    model = model_of(steps, {"x": ("float32", [2, 5, "t"])}, held, {"i": ("int32", [2, 3, "u"])})
    found = rules(compare(model, {"x": rng(2).standard_normal((2, 5, 19)).astype("float32")}, atol=0))
    assert "fallback" not in found.values(), found


def test_pairs_around_products_are_integer_products():
    """QDQ: a convolution, a residual, pooling and reshaping on bytes, a product with a scale per row of its weight."""

    def pair(x: str, grid: str) -> list[Step]:
        scale_and_zero = [f"{grid}s", f"{grid}z"]
        return [
            ("QuantizeLinear", [x, *scale_and_zero], [f"{x}_q"], {}),
            ("DequantizeLinear", [f"{x}_q", *scale_and_zero], [f"{x}_d"], {}),
        ]

    held = {
        "xs": np.array(0.03, "float32"),
        "xz": np.array(-5, "int8"),
        "as": np.array(0.06, "float32"),
        "az": np.array(-100, "int8"),
        "w": rng(1).integers(-127, 128, (6, 3, 3, 3)).astype("int8"),
        "ws": rng(2).uniform(0.004, 0.006, 6).astype("float32"),
        "b": rng(3).integers(-500, 500, 6).astype("int32"),
        "r": rng(4).integers(-127, 128, (6, 6, 1, 1)).astype("int8"),
        "rs": np.array(0.01, "float32"),
        "v": rng(5).integers(-127, 128, (7, 96)).astype("int8"),
        "vs": rng(6).uniform(0.001, 0.002, 7).astype("float32"),
        "c": rng(7).standard_normal(7).astype("float32"),
    }
    steps = [
        *pair("x", "x"),
        ("DequantizeLinear", ["w", "ws"], ["wd"], {"axis": 0}),
        ("DequantizeLinear", ["b", "ws"], ["bd"], {"axis": 0}),
        ("Conv", ["x_d", "wd", "bd"], ["conv"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["conv"], ["a"], {}),
        *pair("a", "a"),
        ("DequantizeLinear", ["r", "rs"], ["rd"], {}),
        ("Conv", ["a_d", "rd"], ["again"], {}),
        ("Add", ["again", "a_d"], ["sum"], {}),
        *pair("sum", "a"),
        ("MaxPool", ["sum_d"], ["pool"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        *pair("pool", "a"),
        ("Flatten", ["pool_d"], ["flat"], {}),
        ("DequantizeLinear", ["v", "vs"], ["vd"], {"axis": 0}),
        ("Gemm", ["flat", "vd", "c"], ["y"], {"transB": 1}),
    ]
    outputs = {"y": ("float32", [2, 7]), "sum_q": ("int8", [2, 6, 8, 8])}
    model = model_of(steps, {"x": ("float32", [2, 3, 8, 8])}, held, outputs)
    program = compare(model, {"x": rng(8).standard_normal((2, 3, 8, 8)).astype("float32")}, atol=1e-5)
    found = rules(program)
    counts = Counter(found.values())  # the kernel of one pixel and the product are products of rows
    assert (counts["gemm"], counts["convolution"], counts["fallback"]) == (2, 1, 0), found


@pytest.mark.parametrize(
    "op, inputs, held, said",
    [
        ("QuantizeLinear", ["x", "s"], {"s": 0.0}, "scale"),
        ("QuantizeLinear", ["x", "s"], {"s": np.nan}, "scale"),
        ("QuantizeLinear", ["x", "s"], {"s": -0.5}, "scale"),
        ("QuantizeLinear", ["x", "s"], {"s": [0.5] * 3}, "one scale, or 4 along axis 1"),
        ("DequantizeLinear", ["q", "s", "z"], {"s": 0.5, "z": np.array(3, "int8")}, "zero point of uint8"),
    ],
)
def test_grids_that_fit_nothing_are_refused(op, inputs, held, said):
    constants = {k: v if isinstance(v, np.ndarray) else np.array(v, "float32") for k, v in held.items()}
    source, result = ("float32", "uint8") if op == "QuantizeLinear" else ("uint8", "float32")
    model = model_of([(op, inputs, ["y"], {})], {inputs[0]: (source, [2, 4])}, constants, {"y": (result, [2, 4])})
    with pytest.raises(UnsupportedModel, match=said):
        import_proto(model, name="test")


@pytest.mark.parametrize(
    ("scales", "attrs", "said"),
    [
        ((4,), {"axis": 9}, "an axis below 2, found 9"),
        ((5,), {}, "one scale, or 4 along axis 1, found 5"),
        ((2, 3), {"axis": 0, "block_size": 3}, r"per block of 3 along axis 0, of the shape \[2, 4\], found \[2, 3\]"),
    ],
)
def test_grids_of_constants_are_checked_as_those_of_inputs(scales, attrs, said):
    held = {"w": np.zeros((6, 4), "int8"), "s": np.ones(scales, "float32")}
    steps = [("DequantizeLinear", ["w", "s"], ["d"], attrs), ("Add", ["x", "d"], ["y"], {})]
    model = model_of(steps, {"x": ("float32", [6, 4])}, held, {"y": ("float32", [6, 4])})
    with pytest.raises(UnsupportedModel, match=said):
        import_proto(model, name="test")


@pytest.mark.parametrize("op, exact", [("QuantizeLinear", True), ("Relu", False)])
def test_the_reference_of_a_quantised_file_is_the_graph_as_it_is_written(op, exact, tmp_path, monkeypatch):
    inputs, result = (["x", "s"], "uint8") if op == "QuantizeLinear" else (["x"], "float32")
    held = {"s": np.array(0.5, "float32")} if op == "QuantizeLinear" else {}
    model = model_of([(op, inputs, ["y"], {})], {"x": ("float32", [3])}, held, {"y": (result, [3])})
    onnx.save(model, tmp_path / "model.onnx")
    imported = import_model(str(tmp_path / "model.onnx"))
    kept, made = [], onnxruntime_apart.Model

    def model(*given, **options):
        kept.append(options)
        return made(*given, **options)

    monkeypatch.setattr("halo_tvm.importers.onnx.Model", model)
    assert imported.engine({"x": np.ones(3, "float32")})["y"].shape == (3,)
    assert kept == [{"exact": exact}]


def test_the_largest_number_is_the_smallest_integer_of_a_negative_scale() -> None:
    held = {"scale": np.float32(-0.1), "zero": np.uint8(7), "ws": np.float32(0.02), "wz": np.int8(0)}
    held["w"] = rng(6).integers(-9, 9, (4, 3, 1, 1), np.int8)
    steps: list[Step] = [
        ("DequantizeLinear", ["x", "scale", "zero"], ["numbers"], {}),
        ("MaxPool", ["numbers"], ["largest"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("DequantizeLinear", ["w", "ws", "wz"], ["weight"], {}),
        ("Conv", ["largest", "weight"], ["y"], {}),
    ]
    model = model_of(steps, {"x": ("uint8", [1, 3, 6, 8])}, held, {"y": ("float32", [1, 4, 3, 4])})
    compare(model, {"x": rng(5).integers(0, 256, (1, 3, 6, 8), np.uint8)})
