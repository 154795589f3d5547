"""The exported ONNX model, run by onnxruntime, equals the operators' NumPy references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import tiny_llama
from tvm import relax, tirx

from halo_tvm import reference
from halo_tvm.errors import UnsupportedModel
from halo_tvm.exporters._graph import Spelling
from halo_tvm.exporters.onnx import FUSED, PLAIN, export_onnx, write_onnx
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.models import FAMILIES
from halo_tvm.models._t5 import T5Config
from halo_tvm.models.bert import BertConfig
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.params import ParamSource, ParamTable
from halo_tvm.relay_ops import OPERATORS

ort = pytest.importorskip("onnxruntime")


def imported_model(body, inputs: dict[str, tuple], weights: dict[str, np.ndarray] | None = None) -> ImportedModel:
    """`body(bb, *inputs, *weights)` as a model; inputs are name -> (shape with dimension names, dtype)."""
    bb = relax.BlockBuilder()
    dims: dict[str, tirx.Var] = {}

    def dim(d):
        return dims.setdefault(d, tirx.Var(d, "int64")) if isinstance(d, str) else d

    weights = weights or {}
    params = [relax.Var(n, relax.TensorType([dim(d) for d in shape], dtype)) for n, (shape, dtype) in inputs.items()]
    params += [relax.Var(n, relax.TensorType(a.shape, str(a.dtype))) for n, a in weights.items()]
    with bb.function("main", params, attrs={"num_input": len(inputs)}):
        with bb.dataflow():
            result = body(bb, *params)
            out = bb.emit_output(result)
        bb.emit_func_output(out)
    mod = bb.get()
    count = len(mod["main"].ret_ty.fields) if hasattr(mod["main"].ret_ty, "fields") else 1
    return ImportedModel(
        name="test",
        mod=mod,
        params=ParamTable({n: ParamSource(a.shape, str(a.dtype), lambda a=a: a) for n, a in weights.items()}),
        inputs=tuple(InputSpec(n, shape, dtype) for n, (shape, dtype) in inputs.items()),
        outputs=tuple(f"y{i}" for i in range(count)),
        ranges=dict.fromkeys(dims, (1, 64)),
        typical=dict.fromkeys(dims, 8),
        source={"kind": "test"},
        report={},
    )


def run(
    imported: ImportedModel, tmp_path: Path, feeds: dict[str, np.ndarray], spelling: Spelling = PLAIN
) -> list[np.ndarray]:
    path = tmp_path / "m.onnx"
    write_onnx(imported, path, spelling)
    if spelling.rms_norm == "parts":  # the contrib spelling is registered with onnxruntime only
        onnx.checker.check_model(str(path), full_check=spelling == PLAIN)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


# Importers and passes make these; built-in definitions, which are what is exported, do not.
NOT_EXPORTED = (
    "causal_convolution",
    "convolution_integer",
    "convolution_integer_winograd",
    "convolution_winograd",
    "append_heads",
    "experts",
    "fourier",
    "gated_delta",
    "kv_append",
    "linear_integer",
    "linear_w8a8",
    "quantisation_grid",
    "quantize",
    "recurrence",
    "route",
    "selective_scan",
)


@pytest.mark.parametrize("name", NOT_EXPORTED)
def test_operators_without_a_spelling_are_named(name, tmp_path):
    case = OPERATORS[name].cases()[0]
    kinds = [(a.shape, str(a.dtype)) if isinstance(a, np.ndarray) else (a, "float32") for a in case["args"]]
    inputs = {f"i{i}": kind for i, kind in enumerate(kinds)}
    imported = imported_model(lambda bb, *args: bb.emit(OPERATORS[name].call(*args, **case["attrs"])), inputs, {})
    with pytest.raises(UnsupportedModel, match=f"expected operators with an ONNX spelling, found\n.*halo.{name}"):
        write_onnx(imported, tmp_path / "m.onnx", PLAIN)


def test_attention_over_a_cache_is_named(tmp_path):
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "has_lengths": True}
    kinds = {"q": ((1, 1, 2, 16), "float32"), **dict.fromkeys(("k", "v"), ((1, 9, 2, 16), "float32"))}
    imported = imported_model(
        lambda bb, *args: bb.emit(OPERATORS["attention"].call(*args, **attrs)), {**kinds, "n": ((1,), "int32")}
    )
    with pytest.raises(UnsupportedModel, match="attributes without an ONNX spelling: has_lengths=True"):
        write_onnx(imported, tmp_path / "m.onnx", PLAIN)


def test_a_bounded_cell_is_named(tmp_path):
    kinds = {name: (shape, "float32") for name, shape in (("x", (3, 1, 5)), ("w", (1, 8, 5)), ("r", (1, 8, 2)))}
    imported = imported_model(lambda bb, *args: bb.emit(OPERATORS["lstm"].call(*args, hidden=2, cell_clip=0.5)), kinds)
    with pytest.raises(UnsupportedModel, match="halo.lstm: a layer whose cell state is bounded"):
        write_onnx(imported, tmp_path / "m.onnx", PLAIN)


def test_a_permission_changes_nothing(tmp_path):
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "scale": 0.5, "packed": True, "products": "bfloat16"}
    imported = imported_model(
        lambda bb, qkv: bb.emit(OPERATORS["attention"].call(qkv, **attrs)), {"qkv": ((1, "s", 24), "float32")}
    )
    qkv = np.random.default_rng(0).standard_normal((1, 5, 24), dtype=np.float32)
    (out,) = run(imported, tmp_path, {"qkv": qkv})
    np.testing.assert_allclose(out, OPERATORS["attention"].reference(qkv, **attrs), rtol=1e-5, atol=1e-6)


SPELLINGS = {"plain": PLAIN, "fused": FUSED, "parts": Spelling(gelu="parts"), "opset 24": Spelling.of("portable", 24)}
ONE_SPELLING = ("convolution", "gru", "lstm", "pooling", "rnn")  # whole in every opset


def _operator_cases():
    for name, operator in sorted(OPERATORS.items()):
        if name in NOT_EXPORTED:
            continue
        for i, case in enumerate(operator.cases()):
            packed_weight = case["attrs"].get("layout") == "packed"
            over_a_cache = name == "attention" and case["attrs"].get("has_lengths")
            beyond_onnx = any(case["attrs"].get(word) for word in ("quantised", "has_r_scale", "cell_clip"))
            if not packed_weight and not over_a_cache and not beyond_onnx:
                for spelling in ("plain",) if name in ONE_SPELLING else SPELLINGS:
                    yield pytest.param(name, case, spelling, id=f"{name}-{i}-{spelling}")


# Arguments from this one on are weights; operators that are missing here take activations only.
FIRST_WEIGHT = {"linear": 1, "ffn": 1, "layer_norm": 1, "rms_norm": 1, "embedding": 1, "rotary": 2}


@pytest.mark.parametrize(("name", "case", "spelling"), list(_operator_cases()))
def test_every_operator_case_equals_its_reference(name, case, spelling, tmp_path):
    rng = np.random.default_rng(0)
    operator, attrs = OPERATORS[name], case["attrs"]
    arrays = [a if isinstance(a, np.ndarray) else rng.standard_normal(a, dtype=np.float32) for a in case["args"]]
    first = FIRST_WEIGHT.get(name, len(arrays))
    if name == "embedding" and (arrays[0].min() < 0 or arrays[0].max() >= attrs["n"]):
        pytest.skip("ONNX leaves indices outside the table undefined")
    inputs = {f"i{i}": (a.shape, str(a.dtype)) for i, a in enumerate(arrays[:first])}
    weights = {f"w{i}": a for i, a in enumerate(arrays[first:])}
    imported = imported_model(lambda bb, *args: bb.emit(operator.call(*args, **attrs)), inputs, weights)
    found = run(imported, tmp_path, {f"i{i}": a for i, a in enumerate(arrays[:first])}, SPELLINGS[spelling])
    double = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    wanted = operator.reference(*double, **attrs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, expected in zip(found, wanted, strict=True):
        assert_equal(name, got, expected)


def assert_equal(name, got, expected):
    assert got.shape == expected.shape
    if name == "attention":  # rows that see no key are zeros in the reference and undefined in the export
        got = np.where((expected == 0).all(-1, keepdims=True), 0, got)
    near = 1e-3 if name in ("gru", "lstm", "rnn") else 2e-5  # onnxruntime approximates activations of cells
    np.testing.assert_allclose(got, expected, rtol=near, atol=near)


def relax_cases():
    op = relax.op
    x = ("b", "s", 12)
    yield (
        "reshape heads",
        lambda bb, x: op.reshape(x, [*x.ty.shape.values[:2], 3, 4]),
        {"x": x},
        lambda x: x.reshape(*x.shape[:2], 3, 4),
    )
    yield (
        "reshape rows",
        lambda bb, x: op.reshape(x, [x.ty.shape.values[0] * x.ty.shape.values[1], 12]),
        {"x": x},
        lambda x: x.reshape(-1, 12),
    )
    yield (
        "reshape arithmetic",
        lambda bb, x: op.reshape(x, [x.ty.shape.values[1], x.ty.shape.values[0], 12]),
        {"x": x},
        lambda x: x.reshape(x.shape[1], x.shape[0], 12),
    )
    yield "transpose", lambda bb, x: op.permute_dims(x, [0, 2, 1]), {"x": x}, lambda x: x.transpose(0, 2, 1)
    yield "reverse", lambda bb, x: op.permute_dims(x), {"x": x}, lambda x: x.transpose()
    yield "expand", lambda bb, x: op.expand_dims(x, [1]), {"x": x}, lambda x: x[:, None]
    yield "squeeze", lambda bb, x: op.squeeze(op.expand_dims(x, [1]), [1]), {"x": x}, lambda x: x
    yield (
        "concat",
        lambda bb, x: op.concat([x, op.tanh(x)], axis=1),
        {"x": x},
        lambda x: np.concatenate([x, np.tanh(x)], 1),
    )
    yield "split sections", lambda bb, x: op.split(x, 3, axis=-1), {"x": x}, lambda x: np.split(x, 3, -1)
    yield "split indices", lambda bb, x: op.split(x, [2, 7], axis=-1), {"x": x}, lambda x: np.split(x, [2, 7], -1)
    yield (
        "slice last",
        lambda bb, x: op.strided_slice(x, [1], [x.ty.shape.values[1] - 1], [x.ty.shape.values[1]]),
        {"x": x},
        lambda x: x[:, -1:],
    )
    yield "slice step", lambda bb, x: op.strided_slice(x, [2], [1], [12], [3]), {"x": x}, lambda x: x[..., 1:12:3]
    yield (
        "arange",
        lambda bb, x: op.add(
            op.expand_dims(op.astype(op.arange(0, x.ty.shape.values[1], 1, "int64"), "float32"), [0, 2]), x
        ),
        {"x": x},
        lambda x: x + np.arange(x.shape[1])[None, :, None],
    )
    yield (
        "arange int32",
        lambda bb, x: op.arange(0, x.ty.shape.values[1] * 2, 2, "int32"),
        {"x": x},
        lambda x: np.arange(0, 2 * x.shape[1], 2),
    )
    yield (
        "broadcast",
        lambda bb, x: op.broadcast_to(op.mean(x, axis=1, keepdims=True), relax.ShapeExpr(x.ty.shape.values)),
        {"x": x},
        lambda x: np.broadcast_to(x.mean(1, keepdims=True), x.shape),
    )
    yield (
        "full",
        lambda bb, x: op.full(x.ty.shape.values[:2], relax.const(2.5, "float32"), "float32"),
        {"x": x},
        lambda x: np.full(x.shape[:2], 2.5),
    )
    yield (
        "sizes rounded down below zero",
        lambda bb, x: op.full(
            [tirx.floordiv(x.ty.shape.values[1] - 5, 2) + 4, tirx.floordiv(0 - x.ty.shape.values[1], 3) + 6],
            relax.const(2.5, "float32"),
            "float32",
        ),
        {"x": x},
        lambda x: np.full([(x.shape[1] - 5) // 2 + 4, -x.shape[1] // 3 + 6], 2.5),
    )
    yield "mean", lambda bb, x: op.mean(x, axis=-1), {"x": x}, lambda x: x.mean(-1)
    yield "sum all", lambda bb, x: op.sum(x), {"x": x}, lambda x: x.sum()
    yield "softmax", lambda bb, x: op.nn.softmax(x, 1), {"x": x}, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)
    yield "rsqrt", lambda bb, x: op.rsqrt(op.power(x, relax.const(2.0, "float32"))), {"x": x}, lambda x: 1 / np.abs(x)
    yield (
        "where",
        lambda bb, x: op.where(
            op.greater(x, relax.const(0.0, "float32")), x, op.multiply(x, relax.const(0.1, "float32"))
        ),
        {"x": x},
        lambda x: np.where(x > 0, x, x * 0.1),
    )
    yield (
        "arithmetic",
        lambda bb, x: op.subtract(op.divide(x, relax.const(3.0, "float32")), op.sqrt(op.abs(x))),
        {"x": x},
        lambda x: x / 3 - np.sqrt(np.abs(x)),
    )
    yield (
        "relu silu",
        lambda bb, x: op.add(op.nn.relu(x), op.nn.silu(x)),
        {"x": x},
        lambda x: np.maximum(x, 0) + x / (1 + np.exp(-x)),
    )
    yield (
        "matmul",
        lambda bb, x: op.matmul(x, op.permute_dims(x, [0, 2, 1])),
        {"x": x},
        lambda x: x @ x.transpose(0, 2, 1),
    )
    yield "clip", lambda bb, x: op.clip(x, 0, 1), {"x": x}, lambda x: np.clip(x, 0, 1)
    ones = np.ones(12, "float32")
    yield (
        "layer_norm",
        lambda bb, x: op.nn.layer_norm(x, relax.const(ones), relax.const(ones), axes=[-1], epsilon=1e-3),
        {"x": x},
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) + 1,
    )


@pytest.mark.parametrize(("body", "inputs", "reference"), [pytest.param(*c[1:], id=c[0]) for c in relax_cases()])
@pytest.mark.parametrize("sizes", [(2, 5), (1, 1), (3, 8)])
def test_relax_operators_with_symbolic_dimensions(body, inputs, reference, sizes, tmp_path):
    imported = imported_model(body, {n: (shape, "float32") for n, shape in inputs.items()})
    x = np.random.default_rng(1).standard_normal((*sizes, 12), dtype=np.float32)
    expected = reference(x.astype(np.float64))
    expected = expected if isinstance(expected, list) else [expected]
    got = run(imported, tmp_path, {"x": x})
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_take_gathers_rows(tmp_path):
    table = np.arange(24, dtype=np.float32).reshape(6, 4)
    imported = imported_model(
        lambda bb, ids, w: relax.op.take(w, ids, axis=0), {"ids": (("b", "s"), "int64")}, {"w": table}
    )
    ids = np.array([[0, 5, 2]])
    np.testing.assert_array_equal(run(imported, tmp_path, {"ids": ids})[0], table[ids])


@pytest.mark.parametrize("spelling", [PLAIN, FUSED], ids=["plain", "fused"])
def test_key_mask_hides_keys_for_every_query(spelling, tmp_path):
    b, s, h, d = 2, 7, 2, 16
    attrs = {"num_heads": h, "num_kv_heads": h, "head_dim": d, "scale": d**-0.5, "has_key_mask": True}
    shape = (("b", "s", h, d), "float32")
    imported = imported_model(
        lambda bb, *args: OPERATORS["attention"].call(*args, **attrs),
        {"q": shape, "k": shape, "v": shape, "mask": (("b", "s"), "int64")},
    )
    rng = np.random.default_rng(3)
    q, k, v = rng.standard_normal((3, b, s, h, d), dtype=np.float32)
    mask = np.array([[1, 1, 1, 0, 0, 0, 0], [1] * 7])
    got = run(imported, tmp_path, {"q": q, "k": k, "v": v, "mask": mask}, spelling)[0]
    scores = np.einsum("bshd,bthd->bhst", q.astype(np.float64), k) * d**-0.5
    weights = np.exp(scores) * mask[:, None, None, :]
    expected = np.einsum("bhst,bthd->bshd", weights / weights.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


_T5 = {
    "layers": 2,
    "decoder_layers": 2,
    "hidden": 32,
    "heads": 2,
    "head_dim": 16,
    "feed_forward": 48,
    "vocabulary": 67,
    "buckets": 16,
    "distance": 20,
}
TINY_MODELS = {
    "gpt2": {"layers": 2, "hidden": 32, "heads": 2, "vocabulary": 61, "positions": 24, "feed_forward": 64},
    "bert": {"layers": 2, "hidden": 32, "heads": 2, "vocabulary": 61, "positions": 24, "feed_forward": 64},
    "llama": {
        "layers": 2,
        "hidden": 32,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "feed_forward": 48,
        "vocabulary": 61,
        "positions": 24,
        "tied": True,
    },
    "t5": _T5,
    "t5-cross": _T5,
    "t5-decoder": _T5,
}


@pytest.mark.parametrize("spelling", [PLAIN, FUSED], ids=["plain", "fused"])
@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_built_in_models_equal_their_float64_evaluation(name, spelling, tmp_path):
    family = FAMILIES[name]
    config_type = {"gpt2": gpt2, "bert": BertConfig, "llama": tiny_llama}.get(name, T5Config)
    imported = family.build(name, config_type(**TINY_MODELS[name]), RandomWeights(1), {"kind": "builtin"})
    arrays = reference.cases_of(imported, seed=0)
    for case in ("case0", "case1"):
        feeds = {k.removeprefix(f"{case}.input."): v for k, v in arrays.items() if k.startswith(f"{case}.input.")}
        expected = [arrays[f"{case}.output.{output}"] for output in imported.outputs]
        for a, b in zip(run(imported, tmp_path, feeds, spelling), expected, strict=True):
            assert a.shape == b.shape
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


def test_weights_are_external_aligned_and_stored_once(tmp_path):
    table = np.random.default_rng(0).standard_normal((40, 8), dtype=np.float32)
    head = np.random.default_rng(1).standard_normal((48, 8), dtype=np.float32)

    def body(bb, ids, w, u, unused):
        x = bb.emit(OPERATORS["embedding"].call(ids, w, layout="nk", n=40))
        y = bb.emit(OPERATORS["linear"].call(x, u, layout="nk", n=48))
        z = bb.emit(OPERATORS["linear"].call(x, w, layout="nk", n=40))
        return bb.emit(relax.op.concat([y, z], axis=-1))

    weights = {"w": table, "u": head, "unused": np.ones((3, 3), np.float32)}
    imported = imported_model(body, {"ids": (("b",), "int64")}, weights)
    ids = np.array([3, 1])
    got = run(imported, tmp_path, {"ids": ids})[0]
    np.testing.assert_allclose(
        got, np.concatenate([table[ids] @ head.T, table[ids] @ table.T], -1), rtol=1e-5, atol=1e-5
    )
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    stored = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data}
    assert sorted(stored) == ["u", "w"], "the unused weight must not be written"
    assert all(int(e["offset"]) % 4096 == 0 and e["location"] == "m.onnx.data" for e in stored.values())
    shapes = {t.name: list(t.dims) for t in model.graph.initializer}
    assert shapes["u"] == [8, 48], "a weight only linear reads is stored ready for MatMul"
    assert shapes["w"] == [40, 8], "a tied weight keeps the layout of the table"
    assert [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim] == ["b"]


def _linear(weight):
    def body(bb, x, w):
        return bb.emit(OPERATORS["linear"].call(x, w, layout="kn", n=weight.shape[1]))

    return imported_model(body, {"x": (("b", len(weight)), "float32")}, {"w": weight})


def test_an_export_that_fails_leaves_the_old_model_with_its_weights(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    x = np.ones((2, 64), np.float32)
    expected = run(_linear(np.full((64, 32), 2.0, np.float32)), tmp_path, {"x": x})[0]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(onnx.helper, "make_model", fail)
        export_onnx(_linear(np.full((64, 32), 3.0, np.float32)), tmp_path / "m.onnx")
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_without_external_weights_there_is_no_data_file(tmp_path):
    run(_linear(np.full((64, 32), 2.0, np.float32)), tmp_path, {"x": np.ones((1, 64), np.float32)})
    run(_linear(np.ones((2, 2), np.float32)), tmp_path, {"x": np.ones((1, 2), np.float32)})
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_all_unsupported_operators_are_listed_at_once(tmp_path):
    def body(bb, x):
        x = bb.emit(relax.op.log_add_exp(x, x))
        x = bb.emit(relax.op.sort(x))
        x = bb.emit(relax.op.sort(x))
        return bb.emit(relax.op.nn.gelu(x))

    imported = imported_model(body, {"x": (("b", 4), "float32")})
    with pytest.raises(UnsupportedModel) as error:
        export_onnx(imported, tmp_path / "m.onnx")
    text = str(error.value)
    assert "log_add_exp: no converter (1 times)" in text and "sort: no converter (2 times)" in text
    assert "leave out what needs them" in text
    assert not (tmp_path / "m.onnx").exists()


def test_an_attribute_without_spelling_is_refused(tmp_path):
    def body(bb, x, w):
        return bb.emit(OPERATORS["linear"].call(x, w, layout="kn", n=4, residual_scale=2.0))

    imported = imported_model(body, {"x": (("b", 4), "float32")}, {"w": np.ones((4, 4), np.float32)})
    with pytest.raises(UnsupportedModel, match="attributes without an ONNX spelling: residual_scale=2.0"):
        export_onnx(imported, tmp_path / "m.onnx")
