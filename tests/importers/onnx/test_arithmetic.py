"""Element-wise operators, reductions, casts and losses where the node tests of ONNX do not look: symbolic sizes,
overflow, division by zero, NaN, and accuracy in every floating-point type."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")

from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

I32 = np.int32
LOWEST = np.iinfo(np.int32).min


def model(
    op: str,
    inputs: dict[str, np.ndarray],
    outputs: int = 1,
    opset: int = 22,
    symbolic: bool = True,
    constants=(),
    **attrs,
):
    """A model of one node; sizes are symbolic, equal ones share a name."""
    given = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(v.dtype), [f"d{d}" if symbolic and d > 1 else d for d in v.shape]
        )
        for name, v in inputs.items()
        if name not in constants
    ]
    held = [onnx.numpy_helper.from_array(inputs[name], name) for name in constants]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, list(inputs), results, **attrs)
    graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name=n) for n in results], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def run(op: str, *xs: np.ndarray, **options) -> list[np.ndarray]:
    inputs = {f"x{i}": x for i, x in enumerate(xs)}
    constants = options.get("constants", ())
    program = compile_in_process(import_proto(model(op, inputs, **options), name="one"))
    return list(program(**{n: x for n, x in inputs.items() if n not in constants}).values())


def reference(op: str, *xs: np.ndarray, **options) -> list[np.ndarray]:
    inputs = {f"x{i}": x for i, x in enumerate(xs)}
    proto = model(op, inputs, **options)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(proto).run(None, {i.name: inputs[i.name] for i in proto.graph.input})


@pytest.mark.parametrize(
    ("op", "a", "b", "attrs", "expected"),
    [
        ("Div", [7, -7, LOWEST, 5], [2, 2, -1, 0], {}, [3, -3, LOWEST, 0]),
        ("Mod", [7, -7, LOWEST, 5], [-2, 2, -1, 0], {}, [-1, 1, 0, 0]),
        ("Mod", [7, -7, LOWEST, 5], [-2, 2, -1, 0], {"fmod": 1}, [1, -1, 0, 0]),
        ("Pow", [-3, 2, -1, 7], [5, 40, -3, 0], {}, [-243, 0, -1, 1]),
        ("BitShift", [-8, 8, 127, 1], [1, 32, -1, 31], {"direction": "LEFT", "opset": 28}, [-16, 0, 0, LOWEST]),
        ("BitShift", [-8, 8, -127, 1], [1, 32, -1, 31], {"direction": "RIGHT", "opset": 28}, [-4, 0, -1, 0]),
    ],
)
def test_integers_wrap_and_never_trap(op, a, b, attrs, expected) -> None:
    (found,) = run(op, np.array(a, I32), np.array(b, I32), **attrs)
    np.testing.assert_array_equal(found, np.array(expected, I32))


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes_hand_nan_on(op) -> None:
    a, b = np.array([1, np.nan, 3, -0.5], np.float32), np.array([np.nan, 1, 5, -1], np.float32)
    np.testing.assert_array_equal(run(op, a, b)[0], reference(op, a, b)[0])


def test_clip_keeps_nan_and_prefers_max() -> None:
    x = np.array([-3, np.nan, 0.5, 9], np.float32)
    (found,) = run("Clip", x, np.array(2, np.float32), np.array(1, np.float32), constants=("x1", "x2"))
    np.testing.assert_array_equal(found, np.array([1, np.nan, 1, 1], np.float32))


_ACCURATE = {
    "Sinh": (np.sinh, 20),
    "Cosh": (np.cosh, 20),
    "Atanh": (np.arctanh, 0.999),
    "Tanh": (np.tanh, 30),
    "Softplus": (lambda x: np.logaddexp(x, 0), 60),
    "Elu": (lambda x: np.where(x < 0, np.expm1(x), x), 10),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("op", sorted(_ACCURATE))
@pytest.mark.sampled(6, 12)
def test_accuracy(op, dtype) -> None:
    """Relative error, near zero too; results that the type cannot hold are left out."""
    function, most = _ACCURATE[op]
    rng = np.random.default_rng(0)
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    info = ml_dtypes.finfo(kind)
    x = np.concatenate([rng.uniform(-most, most, 500), rng.uniform(-1e-3, 1e-3, 101)]).astype(kind)
    found, wanted = run(op, x)[0].astype(np.float64), function(x.astype(np.float64))
    held = (np.abs(wanted) < float(info.max)) & (np.abs(wanted) > float(info.smallest_normal))
    np.testing.assert_allclose(found[held], wanted[held], rtol=8 * float(info.eps))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"])
@pytest.mark.parametrize(("axes", "keepdims"), [([1], 0), ([0, 2], 1), ([], 1), ([-1], 1)])
@pytest.mark.sampled(5, 10)
def test_reductions_of_symbolic_sizes(op, axes, keepdims) -> None:
    x = np.random.default_rng(1).normal(size=(3, 5, 7)).astype(np.float32)
    options = {"keepdims": keepdims, "constants": ("x1",)}
    found = run(op, x, np.array(axes, np.int64), **options)[0]
    wanted = reference(op, x, np.array(axes, np.int64), **options)[0]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_float16_sums_do_not_stall() -> None:
    x = np.ones((4, 5000), np.float16)
    (found,) = run("ReduceSum", x, np.array([1], np.int64), constants=("x1",))
    np.testing.assert_array_equal(found, np.full((4, 1), 5000, np.float16))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_extremes(op, last) -> None:
    x = np.random.default_rng(2).integers(-2, 2, (4, 9, 3)).astype(np.float32)
    x[0] = -np.inf
    options = {"axis": 1, "select_last_index": last}
    np.testing.assert_array_equal(run(op, x, **options)[0], reference(op, x, **options)[0])


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_of_old_and_new_versions(op, opset) -> None:
    x = np.random.default_rng(3).normal(size=(2, 5, 3)).astype(np.float32)
    (found,) = run(op, x, opset=opset, axis=1)
    rows = x.reshape(2, 15) if opset < 13 else x
    e = np.exp(rows - rows.max(1, keepdims=True))
    soft = e / e.sum(1, keepdims=True)
    wanted = {"Softmax": soft, "LogSoftmax": np.log(soft), "Hardmax": (rows == rows.max(1, keepdims=True)) * 1.0}[op]
    np.testing.assert_allclose(found, wanted.reshape(x.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("to", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"])
def test_float8_bit_by_bit(to, saturate) -> None:
    rng = np.random.default_rng(4)
    special = [np.inf, -np.inf, np.nan, 0, -0.0, 464, 465, 61439, 61440, -248, 3e38, 1e-45]
    x = np.concatenate([rng.normal(size=500) * 10.0 ** rng.uniform(-6, 6, 500), special]).astype(np.float32)
    (found,) = run("Cast", x, to=getattr(TensorProto, to), saturate=saturate, opset=24)
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, to))
    wanted = onnx.numpy_helper.saturate_cast(x, dtype) if saturate else x.astype(dtype)
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found.view(np.uint8)[~nan], wanted.view(np.uint8)[~nan])
    back = run("Cast", found, to=TensorProto.FLOAT, opset=24)[0]
    np.testing.assert_array_equal(back, found.astype(np.float32))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhid,bhjd->bhij", [(2, 3, 5, 4), (2, 3, 7, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 5), (2, 5, 4)]),
        ("abc,cd->dab", [(2, 3, 5), (5, 4)]),
        ("ii->i", [(5, 5)]),
        ("ij,jk,kl", [(2, 3), (3, 5), (5, 4)]),
        ("blef,efd,ble->bld", [(2, 3, 4, 5), (4, 5, 6), (2, 3, 4)]),
        ("ab,ac,bd,e->cd", [(2, 3), (2, 4), (3, 5), (7,)]),
        ("ai,bi,ci,di->abcd", [(2, 5), (3, 5), (2, 5), (4, 5)]),
    ],
)
@pytest.mark.sampled(1, 4)
def test_einsum_of_symbolic_sizes(equation, shapes) -> None:
    rng = np.random.default_rng(5)
    xs = [rng.normal(size=s).astype(np.float32) for s in shapes]
    np.testing.assert_allclose(run("Einsum", *xs, equation=equation)[0], np.einsum(equation, *xs), rtol=1e-4, atol=1e-5)


def test_determinants() -> None:
    x = np.random.default_rng(6).normal(size=(3, 6, 6)).astype(np.float64)
    np.testing.assert_allclose(run("Det", x, symbolic=False)[0], np.linalg.det(x), rtol=1e-9)


@pytest.mark.parametrize(
    ("op", "xs", "attrs", "sentence"),
    [
        ("Multinomial", [np.zeros(3, np.float32)], {}, "expected an input .batch, classes."),
        ("Cast", [np.zeros(3, np.float32)], {"to": TensorProto.STRING}, "expected numbers"),
        ("LpNormalization", [np.zeros((3, 2), np.float32)], {"p": 3}, "expected 1 or 2 as p"),
        ("Gelu", [np.zeros(3, np.float32)], {"approximate": "fast"}, "expected none or tanh"),
    ],
)
def test_refusals(op, xs, attrs, sentence) -> None:
    with pytest.raises(UnsupportedModel, match=sentence):
        run(op, *xs, **attrs)
