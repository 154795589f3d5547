"""Whatever a user hands over, the answer is one clear sentence and the right exit code, never a traceback."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halo_tvm.array_files import write_npz
from halo_tvm.cli import main


def onnx_model(op_type: str, domain: str = "") -> bytes:
    """A model of one operator over a 4x4 input, with a weight that makes it long enough to cut."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], np.ones(16, "float32"))
    node = helper.make_node(op_type, ["x", "w"], ["y"], name="the_node", domain=domain)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y], [weight]), opset_imports=opsets, ir_version=8
    ).SerializeToString()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "mlp.halo"
    assert main(["compile", "--model", "mlp", "-o", str(path), "--no-validate"]) == 0
    return path


@pytest.fixture
def copy(artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact, tmp_path / "mlp.halo"))


def refused(capsys: pytest.CaptureFixture[str], argv: list[str], code: int, *words: str) -> None:
    capsys.readouterr()
    found = main(argv)
    err = capsys.readouterr().err
    last = err.strip().splitlines()[-1]
    assert last.startswith("halo-tvm: error: "), err
    assert found == code, last
    assert "Traceback" not in err
    for word in words:
        assert word in last, last


@pytest.mark.parametrize(
    ("name", "content", "code", "word"),
    [
        ("missing.onnx", None, 1, "missing.onnx"),
        ("missing_directory/", None, 1, "missing_directory"),
        ("text.onnx", b"this is no model, it is a sentence", 2, "text.onnx"),
        ("empty.onnx", b"", 2, "empty.onnx"),
        ("truncated.onnx", onnx_model("MatMul")[:-40], 2, "truncated.onnx"),
        ("unsupported.onnx", onnx_model("Frobnicate", "com.example"), 2, "Frobnicate"),
        ("model.pt", b"PK", 2, "model.pt"),
    ],
)
def test_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, code: int, word: str
) -> None:
    model = tmp_path / name
    if content is not None:
        model.write_bytes(content)
    output = tmp_path / "out.halo"
    refused(capsys, ["compile", "--model", str(tmp_path) + "/" + name, "-o", str(output)], code, word)
    assert not output.exists()


def test_an_empty_directory_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["compile", "--model", str(tmp_path), "-o", str(tmp_path / "o.halo")], 2, "config.json")


@pytest.mark.parametrize(
    ("argv", "code", "word"),
    [
        (["compile", "--model", "gpt3"], 1, "did you mean 'gpt2'"),
        (["compile", "--model", "mlp", "--target", "x68"], 1, "did you mean 'x86'"),
        (["compile", "--model", "mlp", "--disable", "fuze"], 1, "did you mean 'fuse'"),
        (["compile", "--model", "mlp", "--shape", "x=0x1024"], 1, "x=0x1024"),
        (["compile", "--model", "mlp", "--shape", "y=1x1024"], 1, "unknown input 'y'"),
        (["compile", "--model", "mlp", "--config", "nowhere.toml"], 1, "nowhere.toml"),
        (["tune", "--model", "mlp", "--budget", "-3m"], 1, "'-3m'"),
        (["tune", "--model", "mlp", "--budget", "soon"], 1, "'soon'"),
        (["tune", "--model", "mlp", "--json", "no/such/directory/r.json"], 1, "no/such/directory"),
        (["compile", "--model", "mlp", "--seed", "-1"], 1, "seed must be at least 0"),
        (["tune", "--model", "mlp", "--seed", "-1"], 1, "seed must be at least 0"),
        (["run", "nowhere.halo", "--seed", "-1"], 1, "seed must be at least 0"),
        (["bench", "nowhere.halo", "--seed", "-1"], 1, "seed must be at least 0"),
        (["validate", "nowhere.halo", "--seed", "-1"], 1, "seed must be at least 0"),
        (["tune", "--model", "mlp", "--log", "/dev/null/log"], 1, "a tuning log must be writable"),
        (["tune", "--model", "mlp", "--log", ""], 1, "--log must name a file or a directory, but is empty"),
        (["tune", "--model", "mlp", "--log", "/proc/log"], 1, "a tuning log must be writable"),
        (["bench", "nowhere.halo"], 1, "nowhere.halo"),
        (["run", "nowhere.halo"], 1, "nowhere.halo"),
        (["profile", "nowhere.halo"], 1, "nowhere.halo"),
        (["inspect", "nowhere.halo"], 1, "nowhere.halo"),
        (["validate", "nowhere.halo"], 1, "nowhere.halo"),
    ],
)
def test_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    code: int,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(capsys, argv, code, word)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["model.so", "params.bin", "reference.npz", "manifest.json"])
def test_one_changed_byte(copy: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    data = bytearray((copy / file).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / file).write_bytes(bytes(data))
    refused(capsys, ["validate", str(copy)], 3, file)


def change_manifest(path: Path, change: Callable[[dict], None]) -> None:
    """Rewrite the manifest with a checksum that fits: someone made this on purpose."""
    data = json.loads((path / "manifest.json").read_text())
    change(data)
    data["checksum"] = "0" * 64
    blank = json.dumps(data)
    (path / "manifest.json").write_text(blank.replace("0" * 64, hashlib.sha256(blank.encode()).hexdigest()))


def test_a_higher_abi(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_manifest(copy, lambda data: data.update(abi=2))
    refused(capsys, ["run", str(copy)], 5, "abi 2", "upgrade")


def test_an_isa_this_host_lacks(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_manifest(copy, lambda data: data["variants"][0].update(isa="avx9000", requires=["avx9000"]))
    refused(capsys, ["run", str(copy)], 5, "avx9000")


@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        (["--shape", "batch=0"], 1, "batch=0"),
        (["--shape", "batch=99999"], 1, "1024"),
        (["--shape", "bach=1"], 1, "unknown dimension 'bach'"),
        (["--input", "x=nowhere.npy"], 1, "nowhere.npy"),
        (["--input", "z={array}"], 1, "unknown input 'z'"),
        (["--input", "x={array}"], 1, "input 'x'"),
        (["--threads", "4096"], 1, "4096"),
        (["--output", "no/such/directory/out.npz"], 1, "no/such/directory"),
    ],
)
def test_run(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, word: str
) -> None:
    array = tmp_path / "array.npy"
    np.save(array, np.zeros((2, 7), "float32"))
    refused(capsys, ["run", str(artifact), *(w.format(array=array) for w in words)], code, word)


def test_a_directory_that_is_not_writable(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).startswith(str(tmp_path)))  # root writes anywhere
    for argv in (
        ["compile", "--model", "mlp", "-o", str(tmp_path / "o.halo")],
        ["run", str(artifact), "-o", str(tmp_path / "o.npz")],
        ["validate", str(artifact), "--json", str(tmp_path / "o.json")],
        ["tune", "--model", "mlp", "--log", str(tmp_path / "log")],
    ):
        refused(capsys, argv, 1, "writable", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_outputs_on_a_full_disk(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("halo_tvm.array_files.write_npz", full)
    refused(capsys, ["run", str(artifact), "-o", str(tmp_path / "o.npz")], 1, "No space left on device", "o.npz")
    assert list(tmp_path.iterdir()) == []


def test_names_that_python_uses(tmp_path: Path) -> None:
    """Inputs and outputs may have the names of parameters: of a method, or of numpy.savez."""
    nodes = [
        helper.make_node("Add", ["self", "file"], ["allow_pickle"]),
        helper.make_node("Sub", ["self", "file"], ["name"]),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in names]
        for names in (("self", "file"), ("allow_pickle", "name"))
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    compiled, results = str(tmp_path / "m.halo"), str(tmp_path / "o.npz")
    assert main(["compile", "--model", str(tmp_path / "m.onnx"), "-o", compiled]) == 0
    with (tmp_path / "i.npz").open("wb") as file:
        write_npz(file, {"self": np.float32([1, 2])})
    assert main(["run", compiled, "--input", str(tmp_path / "i.npz"), "-o", results]) == 0
    with np.load(results) as found:
        np.testing.assert_array_equal(found["allow_pickle"] + found["name"], [2, 4])
    assert main(["bench", compiled, "--rounds", "1"]) == 0


@pytest.mark.parametrize("engines", [[], ["--vs", "onnxruntime"]], ids=["alone", "with-a-peer"])
def test_bench_needs_no_reference_of_a_built_in_model(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], engines: list[str]
) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_model("MatMul"))
    argv = ["bench", str(artifact), *engines, "--reference", str(tmp_path / "m.onnx")]
    refused(capsys, argv, 1, "leave --reference out")


def test_dump_ir_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    argv = ["compile", "--model", "mlp", "-o", str(tmp_path / "o.halo"), "--dump-ir", str(tmp_path / "file")]
    refused(capsys, argv, 1, "--dump-ir", str(tmp_path / "file"))


def test_a_reference_that_is_no_archive(artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.npz").write_text("no archive")
    refused(capsys, ["validate", str(artifact), "--reference", str(tmp_path / "bad.npz")], 1, "bad.npz")


def test_onnx_model_helper_is_valid() -> None:
    onnx.checker.check_model(onnx.load_from_string(onnx_model("MatMul")))
