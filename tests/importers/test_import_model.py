"""`--model` and `--shape`: what is accepted, and one clear sentence for everything else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import run_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halo_tvm.artifact import UNBOUNDED
from halo_tvm.errors import EnvironmentProblem, HaloError, UnknownName, UnsupportedModel, UsageError
from halo_tvm.importers import import_model
from halo_tvm.importers.shapes import parse_shape


def save_onnx(path: Path, nodes: list, weights: dict[str, np.ndarray], shape=(3, 8)) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def linear_file(path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 16)).astype("float32"), "b": rng.standard_normal(16).astype("float32")}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    return save_onnx(path, nodes, weights)


def test_onnx_file_becomes_a_linear_with_the_numbers_of_onnxruntime(tmp_path: Path) -> None:
    model = import_model(str(linear_file(tmp_path / "m.onnx")))
    x = {"x": np.random.default_rng(1).standard_normal((3, 8)).astype("float32")}
    np.testing.assert_allclose(run_model(model, x), model.engine(x)["y"], rtol=1e-5, atol=1e-6)
    assert list(model.params.sources) == ["w", "b"] and model.source["kind"] == "onnx"


def test_unknown_model_lists_what_is_known_and_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"unknown model 'gpt3': known are bert-base, .*; did you mean 'gpt2'\?"):
        import_model("gpt3")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda d: d / "missing.onnx", UsageError, "expected an ONNX file, found no file"),
        (
            lambda d: _write(d / "m.onnx", b"this is no model\n"),
            UnsupportedModel,
            "expected a valid ONNX model, found m.onnx that the checker refuses",
        ),
        (lambda d: _write(d / "m.onnx", b""), UnsupportedModel, "expected a valid ONNX model"),
        (
            lambda d: _write(d / "m.onnx", linear_file(d / "whole.onnx").read_bytes()[:200]),
            UnsupportedModel,
            "expected a valid ONNX model",
        ),
        (
            lambda d: _write(d / "m.pkl", b"x"),
            UnsupportedModel,
            "expected an .onnx, .gguf, .keras, .h5, .pt2, .tflite, jax.export, StableHLO or TorchScript file, "
            "a directory",
        ),
        (lambda d: d / "nowhere" / "model", UsageError, "found nothing at"),
    ],
)
def test_a_bad_model_is_refused_in_one_sentence(tmp_path: Path, make, kind: type[HaloError], message: str) -> None:
    with pytest.raises(kind, match=message) as error:
        import_model(str(make(tmp_path)))
    assert "\n" not in str(error.value)


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_all_unsupported_operators_are_listed_with_their_nodes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Twist", ["x"], ["a"], name="first", domain="example"),
        helper.make_node("Twist", ["x"], ["b"], name="second", domain="example"),
        helper.make_node("Relu", ["b"], ["c"], name="not blamed: what it reads is missing"),
        helper.make_node("Bend", ["x"], ["y"], name="third", domain="example"),
    ]
    path = graph_file(
        tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, (3, 3))}, {"y": (TensorProto.FLOAT, (3, 3))}
    )
    listed = r"found example.Bend \(no converter\) \(1: third\); example.Twist \(no converter\) \(2: first, second\) in"
    with pytest.raises(UnsupportedModel, match=listed):
        import_model(str(path))


def graph_file(path: Path, nodes: list, inputs: dict[str, tuple], outputs: dict[str, tuple], **weights) -> Path:
    """An ONNX file; inputs and outputs are name -> (element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, *v) for n, v in inputs.items()],
        [helper.make_tensor_value_info(n, *v) for n, v in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_nodes_of_branches_are_looked_at(tmp_path: Path) -> None:
    def branch(name: str, op: str, domain: str = ""):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 3))
        return helper.make_graph(
            [helper.make_node(op, ["x"], [name], f"inner_{name}", domain=domain)], name, [], [value]
        )

    branches = {"then_branch": branch("a", "Twist", "example"), "else_branch": branch("b", "Relu")}
    node = helper.make_node("If", ["c"], ["y"], **branches)
    inputs = {"c": (TensorProto.BOOL, ()), "x": (TensorProto.FLOAT, (3, 3))}
    path = graph_file(tmp_path / "m.onnx", [node], inputs, {"y": (TensorProto.FLOAT, (3, 3))})
    with pytest.raises(UnsupportedModel, match=r"example.Twist \(no converter\) \(1: inner_a\)"):
        import_model(str(path))


def test_an_input_of_unknown_rank_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = graph_file(tmp_path / "m.onnx", [node], {"x": (TensorProto.FLOAT, None)}, {"y": (TensorProto.FLOAT, None)})
    with pytest.raises(UnsupportedModel) as error:
        import_model(str(path))
    assert "\n" not in str(error.value)


def test_row_numbers_have_the_range_of_the_smallest_table(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["large", "ids"], ["a"]),
        helper.make_node("Gather", ["small", "wide"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
        helper.make_node("Gather", ["large", "columns"], ["z"], axis=1),
    ]
    inputs = {"ids": (TensorProto.INT32, ("n", 5)), "columns": (TensorProto.INT64, (2,))}
    outputs = {"y": (TensorProto.FLOAT, ("n", 5, 4)), "z": (TensorProto.FLOAT, (12, 2))}
    tables = {"large": np.ones((12, 4), "float32"), "small": np.ones((7, 4), "float32")}
    model = import_model(str(graph_file(tmp_path / "m.onnx", nodes, inputs, outputs, **tables)))
    assert [spec.values for spec in model.inputs] == [(0, 6), (0, 3)]


def test_symbolic_dimensions_without_bounds_are_reported(tmp_path: Path, capsys) -> None:
    path = save_onnx(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}, ("batch", 8))
    model = import_model(str(path))
    assert model.ranges == {"batch": (1, UNBOUNDED)} and model.report["unbounded"] == ["batch"]
    assert capsys.readouterr().out == ""


# ------------------------------------------------------------------ --shape


def test_numbers_fix_dimensions_and_ranges_bound_them() -> None:
    model = import_model("gpt2", shapes=("input_ids=1x16..64",))
    assert model.inputs[0].shape == (1, "sequence") and model.ranges == {"sequence": (16, 64)}
    assert model.typical == {"sequence": 64}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("ids=1x2", "unknown input 'ids'"),
        ("input_ids=1", "expected 2 dimensions for input input_ids, found 1"),
        ("input_ids=1x4096", r"dimension sequence of input input_ids may lie in 1\.\.1024, found 4096\.\.4096"),
        ("input_ids=0x4", "expected dimensions of at least 1"),
        ("input_ids=4..2x4", "with the smaller bound first"),
        ("input_ids=axb", "expected a shape like"),
    ],
)
def test_a_bad_shape_is_refused(shape: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        import_model("gpt2", shapes=(shape,))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work on the machine is none of ours
@given(st.lists(st.tuples(st.integers(1, 9999), st.integers(0, 99)), min_size=1, max_size=6))
def test_shapes_parse_back(dims: list[tuple[int, int]]) -> None:
    ranges = tuple((low, low + more) for low, more in dims)
    text = "x".join(str(low) if low == high else f"{low}..{high}" for low, high in ranges)
    assert parse_shape(f"input={text}") == ("input", ranges)


@given(st.text(max_size=30))
def test_any_text_is_a_shape_or_a_usage_error(text: str) -> None:
    try:
        parse_shape(text)
    except UsageError:
        pass


def test_a_hub_that_is_out_of_reach_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.errors import HfHubHTTPError

    transport = HfHubHTTPError.__bases__[0]  # of the HTTP client: some releases' are no OSError

    def unreachable(*_: object, **__: object) -> None:
        raise transport("no such name")

    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    with pytest.raises(EnvironmentProblem, match="expected to reach the hub for nobody/nothing, found .*no such name"):
        import_model("nobody/nothing")


@pytest.mark.parametrize("name", [b"m\xff.onnx", b"d\xff/m.onnx", b"m\xff.pt2", b"m\xff.gguf", b"m\xff"])
def test_a_path_that_is_no_text_is_a_sentence(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    path.parent.mkdir(exist_ok=True)
    save_onnx(tmp_path / "whole.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}).rename(path)
    with pytest.raises(UsageError, match=r"expected a path in UTF-8, found .*udcff.*: rename the file"):
        import_model(str(path))
