"""Every operator of TFLite files beside LiteRT: one file of many small operators, of known and of unknown batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="the reference: pip install halo_tvm[tflite]")

from tflite_files import GraphFile

from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process

Case = tuple[str, Callable[[GraphFile, Sequence[int], int], Sequence[int]]]
SAME, VALID = 0, 1
RELU6 = 3


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def one(name: str, inputs: Callable, dtype: str = "float32", kind: str = "", shape: Callable | None = None, **options):
    """A case of one operator: `inputs` of (graph, feeds) and the shape of its result for a batch of n."""

    def build(g: GraphFile, feeds: Sequence[int], n: int) -> Sequence[int]:
        out = g.tensor(shape(n) if shape else (n, 4, 6), dtype)
        return g.op(name, inputs(g, feeds), [out], kind, **options)

    return name, build


# feeds: 0 x [n, 4, 6]   1 y [n, 4, 6]   2 image [n, 7, 8, 4]   3 rows [n, 6]   4 integers [n, 4] of 0..3
def feed(*numbers: int) -> Callable:
    return lambda g, f: [f[i] for i in numbers]


def exponential(g: GraphFile, f: Sequence[int]) -> list[int]:
    """A tensor above 0."""
    return [*g.op("EXP", [f[0]], [g.tensor((f[5], 4, 6))])]


def infinite(g: GraphFile, f: Sequence[int]) -> list[int]:
    zeros = g.op("MUL", [f[0], g.const(np.zeros(6))], [g.tensor((f[5], 4, 6))], "MulOptions")
    return [*g.op("LOG", [*zeros], [g.tensor((f[5], 4, 6))])]


X, XY, IMAGE, POSITIVE = feed(0), feed(0, 1), feed(2), exponential


def weights(g: GraphFile, *shape: int, scale: float = 0.3) -> int:
    return g.const(rng(len(g.tensors)).standard_normal(shape) * scale)


def with_consts(*values: object, dtype: str = "int32", feed: int = 0) -> Callable:
    return lambda g, f: [f[feed], *(g.const(v, dtype) for v in values)]


UNARY = (
    "ABS CEIL COS ELU EXP FLOOR LOGISTIC NEG RELU RELU6 RELU_N1_TO_1 ROUND SIGN SIN SQUARE TANH HARD_SWISH ZEROS_LIKE"
)
COMPARED = "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL"
POOL = {"strideH": 2, "strideW": 1, "filterHeight": 3, "filterWidth": 2}
CONV = {"strideH": 2, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 2}

CASES: list[Case] = [
    *(one(name, X) for name in UNARY.split()),
    *(one(name, POSITIVE) for name in ("LOG", "SQRT", "RSQRT")),
    *(one(name, XY, "bool") for name in COMPARED.split()),
    *(one(name, XY) for name in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD")),
    one("ADD", XY, kind="AddOptions", fusedActivationFunction=RELU6),
    one("SUB", XY, kind="SubOptions"),
    one("MUL", with_consts(np.arange(6), dtype="float32"), kind="MulOptions"),
    one("DIV", lambda g, f: [f[0], *POSITIVE(g, f)], kind="DivOptions"),
    one("POW", lambda g, f: [*POSITIVE(g, f), f[1]]),
    one("ADD_N", XY),
    one("ZEROS_LIKE", infinite),
    one("ATAN2", XY),
    one("LEAKY_RELU", X, kind="LeakyReluOptions", alpha=0.3),
    one("PRELU", lambda g, f: [f[0], weights(g, 6)]),
    one("GELU", X, kind="GeluOptions"),
    one("GELU", X, kind="GeluOptions", approximate=True),
    one("SELECT_V2", lambda g, f: [g.op("LESS", XY(g, f), [g.tensor((f[5], 4, 6), "bool")])[0], f[0], f[1]]),
    one("SOFTMAX", X, kind="SoftmaxOptions", beta=0.5),
    one("LOG_SOFTMAX", X),
    one("L2_NORMALIZATION", X, kind="L2NormOptions"),
    one("CUMSUM", with_consts(1), kind="CumsumOptions", exclusive=True),
    one("CUMSUM", with_consts(2), kind="CumsumOptions", reverse=True),
    *(
        one(name, with_consts([1]), kind="ReducerOptions", shape=lambda n: (n, 6))
        for name in ("MEAN", "SUM", "REDUCE_PROD")
    ),
    *(
        one(name, with_consts([0, 2]), kind="ReducerOptions", keepDims=True, shape=lambda n: (1, 4, 1))
        for name in ("REDUCE_MAX", "REDUCE_MIN", "MEAN")
    ),
    one("ARG_MAX", with_consts(2), "int32", "ArgMaxOptions", lambda n: (n, 4), outputType=2),
    one("ARG_MIN", with_consts(1), "int64", "ArgMinOptions", lambda n: (n, 6), outputType=4),
    # Images.
    one(
        "CONV_2D",
        lambda g, f: [f[2], weights(g, 5, 3, 2, 4), weights(g, 5)],
        kind="Conv2DOptions",
        shape=lambda n: (n, 4, 8, 5),
        padding=SAME,
        fusedActivationFunction=RELU6,
        **CONV,
    ),
    one(
        "CONV_2D",
        lambda g, f: [f[2], weights(g, 6, 3, 3, 2), weights(g, 6)],
        kind="Conv2DOptions",
        shape=lambda n: (n, 5, 6, 6),
        padding=VALID,
        strideH=1,
        strideW=1,
    ),
    one(
        "DEPTHWISE_CONV_2D",
        lambda g, f: [f[2], weights(g, 1, 3, 2, 8), weights(g, 8)],
        kind="DepthwiseConv2DOptions",
        shape=lambda n: (n, 4, 4, 8),
        padding=SAME,
        depthMultiplier=2,
        strideH=2,
        strideW=2,
    ),
    one(
        "TRANSPOSE_CONV",
        lambda g, f: [g.const([2, 14, 16, 3], "int32"), weights(g, 3, 3, 3, 4), f[2], weights(g, 3)],
        kind="TransposeConvOptions",
        shape=lambda n: (n, 14, 16, 3),
        padding=SAME,
        strideH=2,
        strideW=2,
    ),
    one(
        "TRANSPOSE_CONV",
        lambda g, f: [g.const([2, 15, 17, 3], "int32"), weights(g, 3, 3, 3, 4), f[2]],
        kind="TransposeConvOptions",
        shape=lambda n: (n, 15, 17, 3),
        padding=VALID,
        strideH=2,
        strideW=2,
    ),
    one("AVERAGE_POOL_2D", IMAGE, kind="Pool2DOptions", shape=lambda n: (n, 4, 8, 4), padding=SAME, **POOL),
    one("MAX_POOL_2D", IMAGE, kind="Pool2DOptions", shape=lambda n: (n, 3, 7, 4), padding=VALID, **POOL),
    one("L2_POOL_2D", IMAGE, kind="Pool2DOptions", shape=lambda n: (n, 3, 7, 4), padding=VALID, **POOL),
    one(
        "LOCAL_RESPONSE_NORMALIZATION",
        IMAGE,
        kind="LocalResponseNormalizationOptions",
        shape=lambda n: (n, 7, 8, 4),
        radius=1,
        bias=1.0,
        alpha=0.3,
        beta=0.5,
    ),
    *(
        one(name, with_consts([11, 5], feed=2), kind=kind, shape=lambda n: (n, 11, 5, 4), **options)
        for name, kind in (
            ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
            ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
        )
        for options in ({}, {"alignCorners": True}, {"halfPixelCenters": True})
    ),
    one(
        "SPACE_TO_DEPTH",
        lambda g, f: [
            g.op(
                "SLICE",
                [f[2], g.const([0, 1, 0, 0], "int32"), g.const([-1, 6, 8, 4], "int32")],
                [g.tensor((f[5], 6, 8, 4))],
            )[0]
        ],
        kind="SpaceToDepthOptions",
        shape=lambda n: (n, 3, 4, 16),
        blockSize=2,
    ),
    one("DEPTH_TO_SPACE", IMAGE, kind="DepthToSpaceOptions", shape=lambda n: (n, 14, 16, 1), blockSize=2),
    one(
        "SPACE_TO_BATCH_ND",
        with_consts([2, 2], [[0, 1], [1, 1]], feed=2),
        shape=lambda n: (n if n < 0 else 4 * n, 4, 5, 4),
    ),
    # Matrices.
    one(
        "FULLY_CONNECTED",
        lambda g, f: [f[3], weights(g, 5, 6), weights(g, 5)],
        kind="FullyConnectedOptions",
        shape=lambda n: (n, 5),
        fusedActivationFunction=1,
    ),
    one(
        "FULLY_CONNECTED",
        lambda g, f: [f[0], weights(g, 5, 6), -1],
        kind="FullyConnectedOptions",
        shape=lambda n: (n, 4, 5),
        keepNumDims=True,
    ),
    one("BATCH_MATMUL", XY, kind="BatchMatMulOptions", shape=lambda n: (n, 4, 4), adjY=True),
    one("BATCH_MATMUL", XY, kind="BatchMatMulOptions", shape=lambda n: (n, 6, 6), adjX=True),
    # Shapes.
    one("RESHAPE", with_consts([-1, 3, 8]), kind="ReshapeOptions", shape=lambda n: (n, 3, 8)),
    one("TRANSPOSE", with_consts([2, 0, 1]), shape=lambda n: (6, n, 4)),
    one("EXPAND_DIMS", with_consts(-2), shape=lambda n: (n, 4, 1, 6)),
    one("SHAPE", X, "int32", "ShapeOptions", lambda n: (3,), outType=2),
    one("TILE", with_consts([1, 2, 3]), shape=lambda n: (n, 8, 18)),
    one("CONCATENATION", XY, kind="ConcatenationOptions", shape=lambda n: (n, 4, 12), axis=-1),
    one("PACK", XY, kind="PackOptions", shape=lambda n: (n, 2, 4, 6), axis=1, valuesCount=2),
    one("SLICE", with_consts([0, 1, 2], [-1, 2, -1]), shape=lambda n: (n, 2, 4)),
    one(
        "STRIDED_SLICE",
        with_consts([0, 1, 5], [0, 3, -9], [1, 1, -2]),
        kind="StridedSliceOptions",
        shape=lambda n: (n, 2, 3),
        beginMask=1,
        endMask=5,
    ),
    one(
        "STRIDED_SLICE",
        with_consts([0, 2], [0, 3], [1, 1]),
        kind="StridedSliceOptions",
        shape=lambda n: (n, 4),
        ellipsisMask=1,
        shrinkAxisMask=2,
    ),
    one(
        "STRIDED_SLICE",
        with_consts([0, 0, 1], [0, 0, 3], [1, 1, 1]),
        kind="StridedSliceOptions",
        shape=lambda n: (n, 1, 2, 6),
        beginMask=1,
        endMask=1,
        newAxisMask=2,
    ),
    one("PAD", with_consts([[0, 0], [1, 2], [0, 3]]), shape=lambda n: (n, 7, 9)),
    one(
        "PADV2",
        lambda g, f: [f[0], g.const([[0, 0], [1, 0], [2, 0]], "int32"), g.const(2.5)],
        shape=lambda n: (n, 5, 8),
    ),
    one(
        "MIRROR_PAD", with_consts([[0, 0], [1, 2], [0, 3]]), kind="MirrorPadOptions", shape=lambda n: (n, 7, 9), mode=0
    ),
    one("REVERSE_V2", with_consts([1])),
    one(
        "RESHAPE",
        lambda g, f: [
            f[3],
            g.op(
                "PACK",
                [
                    g.op(
                        "STRIDED_SLICE",
                        [
                            g.op("SHAPE", [f[0]], [g.tensor((3,), "int32")], "ShapeOptions", outType=2)[0],
                            *(g.const(v, "int32") for v in ([0], [1], [1])),
                        ],
                        [g.tensor((), "int32")],
                        "StridedSliceOptions",
                        shrinkAxisMask=1,
                    )[0],
                    g.const(2, "int32"),
                    g.const(3, "int32"),
                ],
                [g.tensor((3,), "int32")],
                "PackOptions",
                valuesCount=3,
            )[0],
        ],
        kind="ReshapeOptions",
        shape=lambda n: (n, 2, 3),
    ),
    # Indices.
    one("GATHER", with_consts([3, 0, 3]), kind="GatherOptions", shape=lambda n: (n, 3, 6), axis=1),
    one("GATHER", lambda g, f: [f[0], f[4]], kind="GatherOptions", shape=lambda n: (n, 4, 6), axis=1, batchDims=1),
    one("GATHER_ND", with_consts([[1, 2], [0, 3]]), shape=lambda n: (2, 6)),
    one("EMBEDDING_LOOKUP", lambda g, f: [g.const([3, 1], "int32"), weights(g, 5, 6)], shape=lambda n: (2, 6)),
    one(
        "ONE_HOT",
        lambda g, f: [f[4], g.const(5, "int32"), g.const(2.0), g.const(-1.0)],
        kind="OneHotOptions",
        shape=lambda n: (n, 4, 5),
        axis=-1,
    ),
    one(
        "SCATTER_ND",
        lambda g, f: [g.const([[1], [4]], "int32"), weights(g, 2, 3), g.const([6, 3], "int32")],
        shape=lambda n: (6, 3),
    ),
    one("DYNAMIC_UPDATE_SLICE", lambda g, f: [f[0], weights(g, 1, 2, 3), g.const([1, 3, 1], "int32")]),
    one(
        "REVERSE_SEQUENCE",
        lambda g, f: [f[0], g.const([2, 3], "int32")],
        kind="ReverseSequenceOptions",
        seqDim=1,
        batchDim=0,
    ),
    one("CAST", lambda g, f: [f[4]], kind="CastOptions", shape=lambda n: (n, 4), inDataType=2, outDataType=0),
]


def several(g: GraphFile, f: Sequence[int], n: int) -> Sequence[int]:
    """Operators of several results."""
    halves = g.op(
        "SPLIT", [g.const(2, "int32"), f[0]], [g.tensor((n, 4, 3)) for _ in range(2)], "SplitOptions", numSplits=2
    )
    parts = g.op(
        "SPLIT_V",
        [f[0], g.const([1, -1], "int32"), g.const(1, "int32")],
        [g.tensor((n, 1, 6)), g.tensor((n, 3, 6))],
        "SplitVOptions",
        numSplits=2,
    )
    rows = g.op("UNPACK", [f[0]], [g.tensor((n, 6)) for _ in range(4)], "UnpackOptions", num=4, axis=1)
    best = g.op(
        "TOPK_V2", [f[0], g.const(2, "int32")], [g.tensor((n, 4, 2)), g.tensor((n, 4, 2), "int32")], "TopKV2Options"
    )
    flat = g.op("SQUEEZE", [parts[0]], [g.tensor((n, 6))], "SqueezeOptions", squeezeDims=[1])
    return [halves[1], parts[1], rows[2], *best, *flat]


def write(n: int, cases: Sequence[Case]) -> tuple[bytes, list[str]]:
    g = GraphFile()
    feeds = [
        g.input((n, 4, 6)),
        g.input((n, 4, 6)),
        g.input((n, 7, 8, 4)),
        g.input((n, 6)),
        g.input((n, 4), "int32"),
        n,
    ]
    outputs, names = [], []
    for name, build in cases:
        made = build(g, feeds, n)
        outputs += made
        names += [name] * len(made)
    return g.write(outputs), names


@pytest.mark.parametrize("batch", [2, -1])
@pytest.mark.slow
def test_every_operator(batch, tmp_path: Path):
    """One file holds all of them with an unknown batch, another those whose LiteRT kernels want it known."""
    fixed = ("TRANSPOSE_CONV", "GATHER_ND", "DYNAMIC_UPDATE_SLICE", "REVERSE_SEQUENCE", "SPACE_TO_BATCH_ND")
    cases = [c for c in CASES if (batch > 0) == (c[0] in fixed)] + [("several", several)]
    data, names = write(batch, cases)
    file = tmp_path / "all.tflite"
    file.write_bytes(data)
    model = import_model(str(file))
    r = rng()
    feeds = {
        f"x{i}": r.standard_normal(s).astype(np.float32)
        for i, s in enumerate([(2, 4, 6), (2, 4, 6), (2, 7, 8, 4), (2, 6)])
    }
    feeds["x4"] = r.integers(0, 4, (2, 4)).astype(np.int32)
    wanted = model.engine(feeds)
    found = compile_in_process(model)(**feeds)
    for i, name in enumerate(names):
        got, want = np.asarray(found[f"y{i}"]), wanted[f"y{i}"]
        assert got.dtype == want.dtype and got.shape == want.shape, name
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_numbers_at_the_edges(tmp_path: Path) -> None:
    """Where the usual formulas differ from LiteRT: quotients that round up, infinities, signs of 0, saturation."""
    x = np.array([1, -7, 7, 1e9, 5, -5, 0, -0.0, np.inf, -np.inf, 300, -200, np.inf, -np.inf], np.float32)
    y = np.array([0.1, 0.7, -0.7, 3, np.inf, -np.inf, -1, -1, np.inf, np.inf, 7, 7, 2, 2], np.float32)
    g = GraphFile()
    feeds = [g.input(x.shape), g.input(x.shape), g.input((4,), "int32")]
    outputs = []
    for name in ("FLOOR_DIV", "FLOOR_MOD"):
        kind = "".join(part.capitalize() for part in name.split("_")) + "Options"
        outputs += g.op(name, feeds[:2], [g.tensor(x.shape)], kind)
    outputs += g.op("ATAN2", feeds[:2], [g.tensor(x.shape)])
    for dtype in ("int8", "uint8", "int16"):
        outputs += g.op("CAST", feeds[:1], [g.tensor(x.shape, dtype)], "CastOptions")
    hot = [feeds[2], g.const(3, "int32"), g.const(1.0), g.const(0.0)]
    outputs += g.op("ONE_HOT", hot, [g.tensor((4, 3))], "OneHotOptions", axis=-1)
    file = tmp_path / "edges.tflite"
    file.write_bytes(g.write(outputs))
    model = import_model(str(file))
    given = {"x0": x, "x1": y, "x2": np.array([-1, 0, 2, 5], np.int32)}
    wanted, found = model.engine(given), compile_in_process(model)(**given)
    for name, want in wanted.items():
        np.testing.assert_allclose(np.asarray(found[name]), want, rtol=1e-6, atol=1e-30, err_msg=name)
