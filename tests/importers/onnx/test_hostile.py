"""Hostile ONNX files: one sentence, bounded memory and time, nothing read outside, the process alive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import GraphProto, TensorProto, helper, numpy_helper

from halo_tvm.errors import HaloError, UnsupportedModel
from halo_tvm.importers.onnx import _slim, import_onnx

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def info(name: str, shape: tuple = (3, 4), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes: list, weights: dict | None = None, inputs: list | None = None, **more: list) -> Path:
    """A model of `nodes` from x [3, 4] to y; weights are arrays or tensors."""
    held = [
        w if isinstance(w, TensorProto) else numpy_helper.from_array(np.asarray(w), n)
        for n, w in (weights or {}).items()
    ]
    graph = helper.make_graph(
        nodes, "g", inputs or [info("x")], [info("y", ("a", "b"))], held, sparse_initializer=more.get("sparse")
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=more.get("functions"))
    path.write_bytes(model.SerializeToString())
    return path


def refused(path: Path, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as error:
        import_onnx(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1500


# ------------------------------------------------------------------ graphs


def test_a_cyclic_graph(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Add", ["a", "x"], ["b"]), node("Relu", ["b"], ["y"])]
    refused(save(tmp_path / "m.onnx", nodes), "topologically sorted")


@pytest.mark.slow
def test_a_million_nodes(tmp_path: Path) -> None:
    one = node("Relu", ["x"], ["y"]).SerializeToString()
    model = save(tmp_path / "m.onnx", []).read_bytes() + field(7, field(1, one) * 1_000_000)
    (tmp_path / "m.onnx").write_bytes(model)
    refused(tmp_path / "m.onnx", "expected a graph of at most .* parts")


def test_too_many_nodes_inside_branches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from halo_tvm.importers.onnx import _file

    monkeypatch.setattr(_file, "MOST_NODES", 10)
    then = helper.make_graph([node("Relu", ["x"], [f"o{i}"]) for i in range(8)], "b", [], [info("o0")])
    branches = {"then_branch": then, "else_branch": then}
    path = save(
        tmp_path / "m.onnx", [node("If", ["c"], ["y"], **branches)], inputs=[info("x"), info("c", (), TensorProto.BOOL)]
    )
    refused(path, "expected at most 10 nodes")


def field(number: int, data: bytes) -> bytes:
    """One length-delimited protobuf field."""
    return _slim._field(number, data)


def test_branches_nested_a_thousand_deep(tmp_path: Path) -> None:
    graph = b""
    for _ in range(1000):
        attribute = field(1, b"then_branch") + b"\xa0\x01\x05" + field(6, graph)
        graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute)) + field(2, b"g")
    path = save(tmp_path / "m.onnx", [])
    path.write_bytes(path.read_bytes() + field(7, graph))
    refused(path, "nested more than 100 deep")


def function(name: str, nodes: list) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, opsets)


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    itself = function("f", [node("f", ["a"], ["c"], domain="own"), node("f", ["c"], ["b"], domain="own")])
    refused(save(tmp_path / "m.onnx", [node("f", ["x"], ["y"], domain="own")], functions=[itself]), "recursive")


def test_functions_that_call_one_another_twice_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from halo_tvm.importers.onnx import _graph

    monkeypatch.setattr(_graph, "_MOST_CONVERTED", 500)
    functions = [
        function(
            f"f{i}", [node(f"f{i + 1}", ["a"], ["c"], domain="own"), node(f"f{i + 1}", ["c"], ["b"], domain="own")]
        )
        for i in range(29)
    ]
    functions.append(function("f29", [node("Relu", ["a"], ["b"])]))
    path = save(tmp_path / "m.onnx", [node("f0", ["x"], ["y"], domain="own")], functions=functions)
    refused(path, "expected at most 500 nodes with the bodies of functions")


def test_functions_two_hundred_deep(tmp_path: Path) -> None:
    functions = [function(f"f{i}", [node(f"f{i + 1}", ["a"], ["b"], domain="own")]) for i in range(200)]
    functions.append(function("f200", [node("Relu", ["a"], ["b"])]))
    refused(
        save(tmp_path / "m.onnx", [node("f0", ["x"], ["y"], domain="own")], functions=functions), "more than 32 deep"
    )


def test_names_used_twice(tmp_path: Path) -> None:
    refused(
        save(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])]), "single static assignment"
    )
    refused(save(tmp_path / "i.onnx", [node("Relu", ["x"], ["y"])], inputs=[info("x"), info("x")]), "multiple times")


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Softmax", {"axis": "a"}),
        ("Concat", {"axis": 1.5}),
        ("Transpose", {"perm": "xx"}),
        ("Cast", {"to": 1 << 40}),
        ("If", {"then_branch": 1, "else_branch": 2}),
        ("Loop", {"body": 3.0}),
        ("Transpose", {"perm": [7, -9]}),
        ("Split", {"axis": 9}),
        ("Softmax", {"axis": 1 << 62}),
    ],
)
def test_attributes_of_other_types_and_absurd_values(tmp_path: Path, op: str, attributes: dict) -> None:
    refused(
        save(tmp_path / "m.onnx", [node(op, ["x"], ["y"], **attributes)]),
        "Mismatched attribute|cannot|can be converted|input size",
    )


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1,) * 1000, tuple(f"d{i}" for i in range(5000))])
def test_inputs_of_absurd_shape(tmp_path: Path, shape: tuple) -> None:
    refused(
        save(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"])], inputs=[info("x", shape)]), "expected inputs of at most"
    )


# ------------------------------------------------------------------ small files that ask for much

TAIL = [
    node("ReduceSum", ["r"], ["s"], keepdims=0),
    node("Cast", ["s"], ["t"], to=FLOAT),
    node("Add", ["x", "t"], ["y"]),
]
BOMBS: dict[str, tuple[list, dict]] = {
    "ConstantOfShape": ([node("ConstantOfShape", ["n"], ["r"])], {"n": [1 << 20, 1 << 20]}),
    "ConstantOfShape, overflowing": ([node("ConstantOfShape", ["n"], ["r"])], {"n": [1 << 32, 1 << 32]}),
    "Expand": ([node("Expand", ["o", "n"], ["r"])], {"o": np.ones(1, "f4"), "n": [1 << 20, 1 << 20]}),
    "Expand of sizes": ([node("Shape", ["x"], ["o"]), node("Expand", ["o", "n"], ["r"])], {"n": [1 << 30, 2]}),
    "Tile": ([node("Tile", ["o", "n"], ["r"])], {"o": np.ones(1, "f4"), "n": [1 << 40]}),
    "Tile of sizes": ([node("Shape", ["x"], ["o"]), node("Tile", ["o", "n"], ["r"])], {"n": [1 << 40]}),
    "Range": ([node("Range", ["a", "b", "c"], ["r"])], {"a": 0, "b": 1 << 62, "c": 1}),
    "Range of floats": (
        [node("Range", ["a", "b", "c"], ["r"])],
        {"a": np.float32(0), "b": np.float32(1e30), "c": np.float32(1e-38)},
    ),
    "Resize": (
        [node("Resize", ["o", "", "n"], ["r"])],
        {"o": np.ones((1, 1, 8, 8), "f4"), "n": np.array([1, 1, 1e5, 1e5], "f4")},
    ),
    "Pad": ([node("Pad", ["o", "n"], ["r"])], {"o": np.ones(1, "f4"), "n": [1 << 40, 1 << 40]}),
    "OneHot": ([node("OneHot", ["i", "n", "v"], ["r"])], {"i": [1], "n": 1 << 50, "v": np.array([0, 1], "f4")}),
    "HannWindow": ([node("HannWindow", ["n"], ["r"])], {"n": 1 << 50}),
    "Add": ([node("Add", ["p", "q"], ["r"])], {"p": np.ones((1 << 17, 1), "f4"), "q": np.ones((1, 1 << 17), "f4")}),
    "MatMul": (
        [node("MatMul", ["p", "q"], ["r"])],
        {"p": np.ones((1 << 17, 1), "f4"), "q": np.ones((1, 1 << 17), "f4")},
    ),
    "Concat, doubling": (
        [node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=0) for i in range(60)] + [node("Identity", ["v60"], ["r"])],
        {"v0": np.ones(4, "f4")},
    ),
    "Tile, doubling": (
        [node("Tile", [f"v{i}", "n"], [f"v{i + 1}"]) for i in range(60)] + [node("Identity", ["v60"], ["r"])],
        {"v0": np.ones(4, "f4"), "n": [2]},
    ),
}


def test_two_billion_sizes(tmp_path: Path) -> None:
    inputs = [info("x", (1, 1, 2, 2)), info("sizes", ((1 << 31) - 1,), INT64)]
    path = save(tmp_path / "m.onnx", [node("Resize", ["x", "", "", "sizes"], ["y"])], inputs=inputs)
    refused(path, "expected at most 1024 sizes, found 2147483647")


def test_a_long_name_is_shortened(tmp_path: Path) -> None:
    name = "x" * 5000
    path = save(tmp_path / "m.onnx", [node("Relu", [name], ["y"])], inputs=[info(name, kind=TensorProto.STRING)])
    refused(path, "expected numbers as inputs, found STRING x{80} in")


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path: Path, name: str) -> None:
    nodes, weights = BOMBS[name]
    path = save(tmp_path / "m.onnx", nodes + TAIL, weights, [info("x", ("n", "m"))])
    refused(path, r"constant result would have \d+ elements|result has more than \d+ elements")


def test_many_constants_that_are_large_together(tmp_path: Path) -> None:
    nodes = [node("ConstantOfShape", ["n"], [f"v{i}"]) for i in range(100)]
    nodes += [node("Sum", [f"v{i}" for i in range(100)], ["r"])]
    refused(
        save(tmp_path / "m.onnx", nodes + TAIL, {"n": [1 << 26]}),
        "constants computed from constants would be too large",
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda i: [node("Mul", [f"v{i}"] * 2, [f"v{i + 1}"])], "expected sizes of at most"),
        (
            lambda i: [node("Div", [f"v{i}", "three"], [f"w{i}"]), node("Add", [f"w{i}", "v0"], [f"v{i + 1}"])],
            "nested divisions",
        ),
    ],
)
def test_sizes_that_grow_without_end(tmp_path: Path, step, words: str) -> None:
    nodes = [node("Shape", ["x"], ["v0"]), *(n for i in range(60) for n in step(i)), node("Identity", ["v60"], ["r"])]
    refused(save(tmp_path / "m.onnx", nodes + TAIL, {"three": 3}, [info("x", ("n", "m"))]), words)


def test_a_sparse_tensor_that_is_huge_when_dense(tmp_path: Path) -> None:
    values = helper.make_tensor("w", FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", INT64, [1], [5]), [1 << 20, 1 << 20])
    refused(
        save(tmp_path / "m.onnx", [node("Add", ["x", "w"], ["y"])], sparse=[sparse]),
        "expected sparse tensors that fill at most",
    )


# ------------------------------------------------------------------ tensors


def tensor(kind: int = FLOAT, dims: tuple = (3, 4), raw: bytes | None = None) -> TensorProto:
    held = TensorProto(name="w", data_type=kind, dims=dims)
    if raw is not None:
        held.raw_data = raw
    return held


@pytest.mark.parametrize("place", ["initialiser", "attribute"])
@pytest.mark.parametrize(
    ("held", "words"),
    [
        (tensor(raw=b"1" * 20), "expected 48 bytes of data for w"),
        (tensor(raw=b"1" * 200), "found 200"),
        (tensor(), "expected 12 values of data for w"),
        (tensor(dims=(1 << 40, 1 << 40), raw=b""), "expected tensors of at most"),
        (tensor(dims=(1 << 62, 4), raw=b""), "expected tensors of at most"),
        (tensor(dims=(-3, -4), raw=b"1" * 48), "sizes of at least 0"),
        (tensor(kind=99, raw=b"1" * 48), "expected a known element type"),
        (tensor(dims=(1,) * 1000, raw=b"1" * 4), "expected at most 64 sizes"),
    ],
)
def test_tensors_that_are_not_what_they_say(tmp_path: Path, place: str, held: TensorProto, words: str) -> None:
    use = node("Add", ["x", "w"], ["y"])
    if place == "initialiser":
        refused(save(tmp_path / "m.onnx", [use], {"w": held}), words)
        return
    constant = node("Constant", [], ["w"], value=tensor(raw=b"1" * 48))
    constant.attribute[0].t.CopyFrom(held)
    refused(save(tmp_path / "m.onnx", [constant, use]), words)


def external(path: Path, location: str, **place: object) -> Path:
    held = TensorProto(name="w", data_type=FLOAT, dims=place.pop("dims", (3, 4)), data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **place}.items():
        entry = held.external_data.add()
        entry.key, entry.value = key, str(value)
    return save(path, [node("Add", ["x", "w"], ["y"])], {"w": held})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a good data file, and others that must not be read."""
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(b"1" * 400)
    (inside / "good.bin").write_bytes(np.arange(64, dtype="float32").tobytes())
    (inside / "sub" / "w.bin").write_bytes(b"1" * 400)
    (inside / "link.bin").symlink_to("good.bin")
    (inside / "linked").symlink_to("sub")
    os.link(tmp_path / "secret.bin", inside / "hard.bin")
    os.mkfifo(inside / "fifo.bin")
    return inside


@pytest.mark.parametrize(
    ("location", "place", "words"),
    [
        ("../secret.bin", {}, "inside the model's folder"),
        ("sub/../../secret.bin", {}, "inside the model's folder"),
        ("/etc/passwd", {}, "inside the model's folder"),
        ("", {}, "inside the model's folder"),
        ("a\0b", {}, "inside the model's folder"),
        ("link.bin", {}, "found the link 'link.bin'"),
        ("linked/w.bin", {}, "found the link 'linked/w.bin'"),
        ("hard.bin", {}, "found a link or device"),
        ("fifo.bin", {}, "found a link or device"),
        ("sub", {}, "found a link or device"),
        ("missing.bin", {}, "none readable"),
        ("x" * 5000, {}, "none readable"),
        ("good.bin", {"offset": -4}, "48 at -4 of 256"),
        ("good.bin", {"offset": 250}, "48 at 250 of 256"),
        ("good.bin", {"offset": 1 << 70}, "within 'good.bin'"),
        ("good.bin", {"offset": "four"}, "expected numbers"),
        ("good.bin", {"length": 40}, "found 40 at 0"),
        ("good.bin", {"dims": (9, 9)}, "found 324 at 0 of 256"),
        ("good.bin", {"dims": (1 << 30, 1 << 30)}, "expected tensors of at most"),
    ],
)
def test_external_data_stays_in_its_folder_and_its_file(folder: Path, location: str, place: dict, words: str) -> None:
    refused(external(folder / "m.onnx", location, **place), words)


def test_external_data_is_read_where_it_should(folder: Path) -> None:
    model = import_onnx(external(folder / "m.onnx", "good.bin", offset=16, length=48))
    np.testing.assert_array_equal(model.params.materialise("w"), np.arange(4, 16, dtype="float32").reshape(3, 4))


@pytest.mark.parametrize("change", ["link", "other file", "shorter"])
def test_a_data_file_that_changes_after_the_check_is_not_read(folder: Path, change: str) -> None:
    model = import_onnx(external(folder / "m.onnx", "sub/w.bin"))
    data = folder / "sub" / "w.bin"
    if change == "link":
        data.unlink()
        data.symlink_to(folder.parent / "secret.bin")
    elif change == "other file":
        data.rename(folder / "kept.bin")
        data.write_bytes(b"2" * 400)
    else:
        os.truncate(data, 10)
    with pytest.raises(UnsupportedModel, match="expected w.bin to stay as it is"):
        model.params.materialise("w")


def test_data_kept_in_the_model_file_cannot_be_claimed_by_others(folder: Path) -> None:
    """The marks of skipped data are checked places; a file that carries such entries of its own gains nothing."""
    claimed = {"halo.folder": "/etc", "halo.parts": "passwd", "halo.identity": "1:2:3:4", "halo.offset": "0"}
    model = import_onnx(external(folder / "m.onnx", "good.bin", **claimed))
    assert model.params.materialise("w")[0, 1] == 1.0


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((300, 400)).astype("float32")
    typed = helper.make_tensor("v", FLOAT, (300, 400), weight.reshape(-1))
    nodes = [node("Add", ["w", "v"], ["u"]), node("Add", ["x", "u"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"w": weight, "v": typed}, [info("x", (300, 400))])
    from halo_tvm.importers.onnx._file import read_model, tensor_constant

    held = read_model(path).graph.initializer
    assert [t.data_location for t in held] == [TensorProto.EXTERNAL] * 2
    for t in held:
        np.testing.assert_array_equal(tensor_constant(t).array, weight)


# ------------------------------------------------------------------ mutations of a whole file


def real_model() -> bytes:
    """A small graph of many kinds of operators, with weights, a branch and a loop."""

    def body(name: str, nodes: list, inputs: list, outputs: list) -> GraphProto:
        return helper.make_graph(nodes, name, inputs, outputs)

    then = body("then", [node("Relu", ["h"], ["t"])], [], [info("t", ("n", 8))])
    otherwise = body("else", [node("Tanh", ["h"], ["e"])], [], [info("e", ("n", 8))])
    scalar, flag = info("i", (), INT64), info("go", (), TensorProto.BOOL)
    step = body(
        "step",
        [node("Identity", ["go"], ["on"]), node("Add", ["s", "s"], ["d"])],
        [scalar, flag, info("s", ("n", 8))],
        [info("on", (), TensorProto.BOOL), info("d", ("n", 8))],
    )
    nodes = [
        node("Gather", ["table", "ids"], ["g"], axis=0),
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["h"]),
        node("If", ["c"], ["k"], then_branch=then, else_branch=otherwise),
        node("Loop", ["two", "", "k"], ["l"], body=step),
        node("Shape", ["x"], ["size"]),
        node("Slice", ["size", "zero", "one"], ["rows"]),
        node("Concat", ["rows", "rest"], ["shape"], axis=0),
        node("Reshape", ["l", "shape"], ["q"]),
        node("Transpose", ["q"], ["p"], perm=[0, 2, 1]),
        node("Softmax", ["p"], ["z"], axis=-1),
        node("ReduceMean", ["z"], ["r"], axes=[1], keepdims=0),
        node("Cast", ["r"], ["f"], to=FLOAT),
        node("Concat", ["f", "g"], ["y"], axis=0),
    ]
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((5, 4)).astype("f4"),
        "w": rng.standard_normal((16, 8)).astype("f4"),
        "b": np.ones(8, "f4"),
        "two": np.array(2),
        "zero": np.array([0]),
        "one": np.array([1]),
        "rest": np.array([4, 2]),
    }
    inputs = [info("x", ("n", 16)), info("c", (), TensorProto.BOOL), info("ids", ("k",), INT64)]
    graph = helper.make_graph(
        nodes, "g", inputs, [info("y", ("a", 4))], [numpy_helper.from_array(v, n) for n, v in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


REAL = real_model()
WORKER = """
import sys
from pathlib import Path
from halo_tvm.errors import HaloError
from halo_tvm.importers.onnx import import_onnx
for line in sys.stdin:
    try:
        import_onnx(Path(line.strip()))
        print("imported", flush=True)
    except HaloError as reason:
        print(f"refused {reason.exit_code} {str(reason)!r}", flush=True)
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[subprocess.Popen]:
    """A process that imports the files named on its input; a crash of it is a failure of the test that sent the
    name."""
    arguments = [sys.executable, "-c", WORKER]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        yield child
        child.kill()


def answer(child: subprocess.Popen, path: Path) -> str:
    child.stdin.write(f"{path}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def test_the_real_model_is_imported(worker: subprocess.Popen, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(REAL)
    assert answer(worker, tmp_path / "m.onnx") == "imported"


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "cut", "repeat", "number"]),
        st.integers(0, len(REAL) - 1),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, where, value in edits:
        where %= max(len(out), 1)
        if kind == "flip" and out:
            out[where] ^= 1 << value % 8
        elif kind == "set" and out:
            out[where] = value
        elif kind == "cut":
            del out[where : where + value % 16 + 1]
        elif kind == "repeat":
            out[where:where] = out[where : where + value]
        elif kind == "number":
            out[where : where + 1] = b"\xff" * 8 + b"\x7f"
    return bytes(out)


@given(edits=EDITS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_files_are_imported_or_refused(worker: subprocess.Popen, tmp_path_factory, edits: list) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.onnx"
    path.write_bytes(edited(REAL, edits))
    found = answer(worker, path)
    assert found == "imported" or found.startswith("refused 2 "), found or "the process ended"


@given(size=st.integers(0, len(REAL) - 1))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_truncated_files_are_refused(tmp_path_factory, size: int) -> None:
    path = tmp_path_factory.getbasetemp() / "truncated.onnx"
    path.write_bytes(REAL[:size])
    with pytest.raises(HaloError) as error:
        import_onnx(path)
    assert error.value.exit_code == 2


def test_nothing_is_written(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"])])
    import_onnx(path)
    assert os.listdir(tmp_path) == ["m.onnx"]
