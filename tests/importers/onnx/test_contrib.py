"""Operators of com.microsoft against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.importers.onnx.unsigned import with_unsigned_weights
from halo_tvm.in_process import compile_in_process

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(7)
_CLOSE = {"float32": (2e-4, 2e-5), "float16": (4e-3, 4e-3)}
SMALL = (RNG.standard_normal((2, 5, 24)) * 0.5).astype(np.float32)


def f32(*shape: int, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape) * scale).astype(np.float32)


def model_of(
    op: str, inputs: list, outputs: int, weights: tuple[int, ...], domain: str = "com.microsoft", **attrs: object
) -> tuple[onnx.ModelProto, dict]:
    """One node of `domain`; inputs at `weights` are constants, None is an input left out."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    feeds = {n: x for i, (n, x) in enumerate(zip(names, inputs)) if n and i not in weights}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    held = [onnx.numpy_helper.from_array(inputs[i], names[i]) for i in weights]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=n) for n in node.output], held)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    model.ir_version = 9
    return model, feeds


def check(
    op: str,
    inputs: list,
    outputs: int = 1,
    weights: tuple[int, ...] = (),
    steps: int = 0,
    close: tuple[float, float] = (2e-4, 2e-5),
    **attrs: object,
) -> None:
    """Compare with onnxruntime; integers may differ by `steps`, floats relatively or by an amount as `close` says."""
    model, feeds = model_of(op, inputs, outputs, weights, **attrs)
    exact = with_unsigned_weights(model.SerializeToString())
    wanted = ort.InferenceSession(exact, providers=["CPUExecutionProvider"]).run(None, feeds)
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    del typed.graph.output[:]
    typed.graph.output.extend(
        helper.make_tensor_value_info(f"y{i}", helper.np_dtype_to_tensor_dtype(w.dtype), w.shape)
        for i, w in enumerate(wanted)
    )
    found = compile_in_process(import_proto(typed, name="test"))(**feeds)
    for index, want in enumerate(wanted):
        got = np.asarray(found[f"y{index}"])
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, *close)
        else:
            assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= steps


@pytest.mark.parametrize(
    "extra, attrs",
    [
        ([None, None, None], {}),
        ([np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32), None, None], {}),
        ([np.array([5, 3], np.int32), None, None], {}),
        ([np.array([5, 4, 0, 2], np.int32), None, None], {}),  # behind the ends of rows where they begin
        ([None, None, f32(2, 4, 5, 5)], {"unidirectional": 1}),
    ],
)
def test_attention(extra, attrs):
    check("Attention", [SMALL, f32(24, 72), f32(72), *extra], weights=(1, 2), num_heads=4, **attrs)


def test_attention_with_past():
    check(
        "Attention",
        [SMALL, f32(24, 72), f32(72), None, f32(2, 2, 4, 3, 6)],
        2,
        weights=(1, 2),
        num_heads=4,
        unidirectional=1,
    )


@pytest.mark.parametrize(
    "inputs, outputs",
    [
        ([SMALL, f32(2, 7, 24), f32(2, 7, 24), f32(72)], 1),
        ([SMALL, f32(2, 7, 24), f32(2, 7, 24), None, np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)], 1),
        ([SMALL, f32(2, 4, 7, 6), f32(2, 4, 7, 6)], 1),
        ([SMALL, SMALL, SMALL, None, None, f32(1, 4, 5, 8), f32(2, 4, 3, 6), f32(2, 4, 3, 6)], 3),
    ],
)
def test_multi_head_attention(inputs, outputs):
    check("MultiHeadAttention", inputs, outputs, num_heads=4)


@pytest.mark.covering
@pytest.mark.parametrize(
    "attrs",
    [{}, {"local_window_size": 3}, {"softcap": 2.0}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}],
)
@pytest.mark.parametrize("past", [0, 6])
def test_group_query_attention(attrs, past):
    s = 1 if past else 5
    tables = [np.cos(f32(16, 8)), np.sin(f32(16, 8))] if "do_rotary" in attrs else []
    lengths = np.array([past + s - 1, past - 2 if past else s - 1], np.int32)
    cache = [f32(2, 2, past, 16), f32(2, 2, past, 16)] if past else [None, None]
    inputs = [
        *(f32(2, s, 64), f32(2, s, 32, scale=0.4), f32(2, s, 32, scale=0.3), *cache),
        *(lengths, np.array(past + s, np.int32), *tables),
    ]
    check("GroupQueryAttention", inputs, 3, weights=(6,), num_heads=4, kv_num_heads=2, **attrs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("attrs", [{"smooth_softmax": -1}, {"smooth_softmax": 1}, {"local_window_size": 3}])
def test_a_softmax_with_one_more_score(attrs, dtype):
    """A score of every head, or for all heads a 0, whose weight goes nowhere; -1 says that there is none."""
    sink = [] if "smooth_softmax" in attrs else [None] * 4 + [np.array([2, -1, 0.5, 9], dtype)]
    q, k, v = (f32(2, 5, width, scale=scale).astype(dtype) for width, scale in ((64, 0.5), (32, 0.4), (32, 0.3)))
    inputs = [q, k, v, None, None, np.array([4, 4], np.int32), np.array(5, np.int32), *sink]
    check("GroupQueryAttention", inputs, 3, weights=(6,), close=_CLOSE[dtype], num_heads=4, kv_num_heads=2, **attrs)


@pytest.mark.parametrize(
    "op, inputs, outputs",
    [
        ("SkipLayerNormalization", [SMALL, SMALL * 2, f32(24), f32(24), f32(24)], 1),
        ("SkipLayerNormalization", [SMALL, SMALL * 2, f32(24)], 1),
        ("SkipSimplifiedLayerNormalization", [SMALL, SMALL * 2, f32(24), f32(24)], 1),
        ("BiasGelu", [SMALL, f32(24)], 1),
        ("FastGelu", [SMALL, f32(24)], 1),
        ("FastGelu", [SMALL], 1),
        ("QuickGelu", [SMALL], 1),
        ("Gelu", [SMALL], 1),
    ],
)
def test_fused_pointwise(op, inputs, outputs):
    check(op, inputs, outputs, weights=tuple(range(2 if "Skip" in op else 1, len(inputs))))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("outputs", [1, 2])
def test_simplified_layer_normalization(axis, outputs):
    """The second output is the inverse of the root mean square."""
    scale = f32(*SMALL.shape[axis:])
    check("SimplifiedLayerNormalization", [SMALL, scale], outputs, weights=(1,), domain="", axis=axis)


def test_embed_layer_norm():
    ids, kinds = np.array([[1, 5, 2], [0, 3, 9]], np.int32), np.array([[0, 0, 1], [1, 0, 0]], np.int32)
    mask = np.array([[1, 2, 1], [1, 1, 0]], np.int32)  # only ones are counted
    check(
        "EmbedLayerNormalization",
        [ids, kinds, f32(10, 24), f32(6, 24), f32(2, 24), f32(24), f32(24), mask],
        2,
        weights=(2, 3, 4, 5, 6),
    )


@pytest.mark.parametrize("attrs", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}])
@pytest.mark.parametrize("weights", [(), (1,)])
def test_fused_matmul(attrs, weights):
    a = f32(2, 6, 5) if "transA" in attrs else f32(2, 5, 6)
    check("FusedMatMul", [a, f32(7, 6) if "transB" in attrs else f32(6, 7)], weights=weights, **attrs)


@pytest.mark.parametrize("attrs", [{}, {"transA": 1, "transB": 1}])
@pytest.mark.parametrize("weights", [(), (1,)])
def test_fused_matmul_with_batches_behind_the_first_axis(attrs, weights):
    a, b = (f32(6, 2, 3, 5), f32(7, 2, 3, 6)) if attrs else (f32(5, 2, 3, 6), f32(6, 2, 3, 7))
    check("FusedMatMul", [a, b], weights=weights, transBatchA=1, transBatchB=1, **attrs)


@pytest.mark.parametrize("name", ["Elu", "HardSigmoid", "LeakyRelu", "Selu", "Softplus", "Softsign", "ThresholdedRelu"])
def test_activations_of_fused_gemm(name):
    numbers = {f"activation_{key}": value for key, value in (("alpha", 0.3), ("beta", 0.4), ("gamma", 1.2))}
    check("FusedGemm", [f32(4, 6), f32(6, 7), f32(7)], weights=(1, 2), activation=name, **numbers)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_n_bits(bits, zeros):
    rng, (k, n, block) = np.random.default_rng(3), (48, 7, 16)
    packed = rng.integers(0, 256, (n, k // block, block * bits // 8), np.uint8)
    zero = rng.integers(0, 256, (n, -(-(k // block) * bits // 8)), np.uint8) if zeros else None
    inputs = [f32(3, k), packed, np.abs(f32(n, k // block)) + 0.01] + ([zero] if zeros else [])
    attrs = {"K": k, "N": n, "block_size": block} | ({"bits": bits} if bits != 4 else {})  # 4 where nothing is said
    check("MatMulNBits", inputs, weights=tuple(range(1, len(inputs))), **attrs)


@pytest.mark.parametrize("zeros", ["none", "floats", "packed"])
def test_blocks_of_columns_in_the_order_of_their_activations(zeros):
    """As GPTQ makes them. onnxruntime takes packed zero points for 8 there: those are compared with the definition."""
    rng, (k, n, block) = np.random.default_rng(4), (50, 7, 16)
    packed = rng.integers(0, 256, (n, 4, 8), np.uint8)
    scales, order = np.abs(f32(n, 4)) + 0.01, rng.permutation(np.arange(k) // block).astype(np.int32)
    zero = {"none": None, "floats": f32(n, 4) + 7, "packed": rng.integers(0, 256, (n, 2), np.uint8)}[zeros]
    inputs, attrs = [f32(3, k), packed, scales, zero, order], {"K": k, "N": n, "block_size": block}
    weights = tuple(i for i in range(1, 5) if inputs[i] is not None)
    if zeros != "packed":
        return check("MatMulNBits", inputs, weights=weights, **attrs)
    model, feeds = model_of("MatMulNBits", inputs, 1, weights, **attrs)
    numbers, centres = (np.stack([x & 15, x >> 4], -1).reshape(n, -1).astype(float) for x in (packed, zero))
    wanted = feeds["x0"] @ ((numbers[:, :k] - centres[:, order]) * scales[:, order]).T
    found = compile_in_process(import_proto(model, name="test"))(**feeds)["y0"]
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


_PADS = np.array([1, 0, 2, 0, 3, -1], np.int64)


@pytest.mark.parametrize(
    ("op", "inputs", "weights", "attrs"),
    [
        ("Trilu", [f32(2, 4, 5), np.array(1, np.int64)], (1,), {"upper": 0}),
        ("Range", [np.array(1, np.float32), np.array(4, np.float32)], (), {}),
        ("Range", [np.array(9, np.int64), np.array(1, np.int64), np.array(-3, np.int64)], (1, 2), {}),
        ("Pad", [f32(2, 3, 4), _PADS, np.array([7], np.float32)], (1,), {}),
        ("Pad", [f32(2, 3, 4), np.abs(_PADS)[None] // 2], (), {"mode": "reflect"}),
        ("ExpandDims", [f32(2, 3), np.array(-1, np.int32)], (1,), {}),
        ("GatherND", [f32(3, 4, 5), np.array([[2, 1], [-1, 0]], np.int64)], (), {}),
        ("Inverse", [f32(3, 4, 4) + 3 * np.eye(4, dtype=np.float32)], (), {}),
        ("CDist", [f32(5, 6), f32(4, 6)], (), {"metric": "euclidean"}),
        ("CDist", [f32(5, 6).astype(np.float64), f32(4, 6).astype(np.float64)], (), {"metric": "sqeuclidean"}),
    ],
)
def test_what_onnx_has_as_well(op, inputs, weights, attrs):
    check(op, inputs, weights=weights, **attrs)


def bytes_of(*shape: int, dtype: str = "uint8") -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(11).integers(limits.min, limits.max + 1, shape, dtype)


SCALE, ZERO = np.array(0.03, np.float32), np.array(120, np.uint8)


@pytest.mark.parametrize("depth", [9, 600])
def test_integer_matmuls(depth):
    b, b_scale, b_zero = bytes_of(depth, 7, dtype="int8"), np.abs(f32(7)) + 0.01, np.array(3, np.int8)
    check("DynamicQuantizeMatMul", [f32(3, depth), b, b_scale, None, f32(7)], weights=(1, 2, 4))
    check("MatMulIntegerToFloat", [bytes_of(3, depth), b, SCALE, b_scale, ZERO, b_zero], weights=(1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    "op, inputs, attrs",
    [
        ("QLinearAdd", [bytes_of(2, 5), SCALE, ZERO, bytes_of(2, 5), SCALE * 2, ZERO, SCALE * 3, ZERO], {}),
        ("QLinearMul", [bytes_of(2, 5), SCALE, ZERO, bytes_of(1, 5), SCALE * 2, ZERO, SCALE * 3, ZERO], {}),
        ("QLinearConcat", [SCALE, ZERO, bytes_of(2, 5), SCALE * 2, ZERO, bytes_of(2, 3), SCALE * 3, ZERO], {"axis": 1}),
        ("QLinearSoftmax", [bytes_of(2, 5), SCALE, ZERO, SCALE / 8, np.array(0, np.uint8)], {"axis": -1, "opset": 13}),
        ("QLinearSigmoid", [bytes_of(2, 5), SCALE, ZERO, SCALE / 8, np.array(0, np.uint8)], {}),
        ("QLinearLeakyRelu", [bytes_of(2, 5), SCALE, ZERO, SCALE, ZERO], {"alpha": 0.1}),
        ("QLinearGlobalAveragePool", [bytes_of(1, 3, 4, 5), SCALE, ZERO, SCALE, ZERO], {}),
        ("QLinearGlobalAveragePool", [bytes_of(1, 3, 4, 5), SCALE, ZERO, SCALE, ZERO], {"channels_last": 1}),
        (
            "QLinearConv",
            [
                *(bytes_of(1, 6, 5, 4), SCALE, ZERO, bytes_of(7, 4, 3, 3, dtype="int8"), np.abs(f32(7)) / 9 + 0.01),
                *(np.zeros(7, np.int8), SCALE * 60, ZERO, bytes_of(7).astype(np.int32)),
            ],
            {"pads": [1, 0, 1, 0], "channels_last": 1},
        ),
        (
            "QLinearAveragePool",
            [bytes_of(1, 4, 5, 3), SCALE, ZERO, SCALE, ZERO],
            {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1], "channels_last": 1},
        ),
        (
            "QLinearAveragePool",
            [bytes_of(1, 3, 4, 5), SCALE, ZERO, SCALE, ZERO],
            {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]},
        ),
        (
            "QGemm",
            [
                bytes_of(4, 6),
                SCALE,
                ZERO,
                bytes_of(6, 7, dtype="int8"),
                SCALE,
                np.array(2, np.int8),
                bytes_of(7).astype(np.int32),
                SCALE * 9,
                ZERO,
            ],
            {},
        ),
    ],
)
def test_quantised(op, inputs, attrs):
    data = {"QLinearConcat": {2, 5}, "QLinearAdd": {0, 3}, "QLinearMul": {0, 3}}.get(op, {0})
    check(op, inputs, weights=tuple(i for i in range(len(inputs)) if i not in data), steps=1, **attrs)


@pytest.mark.parametrize(
    "attrs",
    [
        {"activation": "Relu"},
        {"activation": "Clip", "activation_params": [-0.1, 0.2]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ],
)
def test_fused_conv(attrs) -> None:
    inputs = [f32(1, 4, 6, 7), f32(6, 2, 3, 3), f32(6), f32(1, 6, 6, 7) if attrs["activation"] == "Relu" else None]
    check("FusedConv", inputs, weights=(1, 2), group=2, pads=[1, 1, 1, 1], **attrs)


def test_what_dynamic_quantisation_makes_of_attention_and_embeddings() -> None:
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    projection = [bytes_of(2, 5, 24), bytes_of(24, 72, dtype="int8"), f32(72), SCALE / 8, SCALE / 8]
    check("QAttention", [*projection, mask, ZERO, np.array(0, np.int8)], weights=(1, 2, 3, 4, 6, 7), num_heads=4)
    ids = np.array([[1, 2, 3, 0], [4, 8, 0, 5]], np.int32)
    tables = [bytes_of(9, 24), bytes_of(6, 24), bytes_of(2, 24), bytes_of(24), bytes_of(24)]
    inputs = [ids, ids % 2, *tables, mask[:, :4], *[SCALE] * 5, *[ZERO] * 5]
    check("QEmbedLayerNormalization", inputs, 2, weights=(*range(2, 7), *range(8, 18)))


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_table_in_blocks(bits) -> None:
    table, zero = bytes_of(7, 48 * bits // 8), bytes_of(7, -(-3 * bits // 8))
    ids = np.array([[3, -1], [0, 6]])
    for given in ([table, ids, f32(7, 3)], [table, ids, f32(7, 3), zero]):
        held = tuple(i for i in range(len(given)) if i != 1)
        check("GatherBlockQuantized", given, weights=held, quantize_axis=1, block_size=16, bits=bits)


@pytest.mark.parametrize(
    ("more", "attrs", "said"),
    [
        ([], {"qk_output": 1}, "qk_output=0"),
        ([None] * 9 + [np.array([1], np.int32)], {}, "no input 16 .*lengths of queries"),
    ],
)
def test_what_is_not_compiled_says_so(more: list, attrs: dict, said: str) -> None:
    lengths = [np.array([0], np.int32), np.array(1, np.int32)]
    inputs = [f32(1, 1, 16), f32(1, 1, 16), f32(1, 1, 16), None, None, *lengths, *more]
    model, _ = model_of("GroupQueryAttention", inputs, 1, (6,), num_heads=2, kv_num_heads=2, **attrs)
    with pytest.raises(Exception, match=said):
        import_proto(model, name="test")


def test_a_file_for_one_processor_says_where_it_came_from():
    model, _ = model_of("Conv", [f32(1, 16, 4, 4), f32(16, 16, 1, 1)], 1, (1,))
    model.graph.node[0].domain = "com.microsoft.nchwc"
    model.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    with pytest.raises(Exception, match="nchwc.Conv .*save it at ORT_ENABLE_EXTENDED"):
        import_proto(model, name="test")
