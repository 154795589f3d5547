"""Every class of errors.py, raised once through a public call: message and exit code."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from halo_tvm import errors
from halo_tvm.artifact import FunctionSpec, TensorSpec, read_manifest
from halo_tvm.cli import main
from halo_tvm.config import CompileConfig, TuneConfig
from halo_tvm.targets import Host, resolve


def check(kind: type[errors.HaloError], code: int, pattern: str, call: Callable[[], object]) -> None:
    """`call` raises exactly `kind`, with its exit code and a sentence on one line that matches `pattern`."""
    with pytest.raises(kind, match=pattern) as caught:
        call()
    assert caught.value.exit_code == code
    assert "Traceback" not in str(caught.value)


def tiny_function() -> FunctionSpec:
    return FunctionSpec(inputs=(TensorSpec("x", (2, "n"), "float32"),), outputs=(), ranges={"n": (1, 4)})


def broken_manifest(tmp_path: Path, **changes: object) -> Path:
    folder = tmp_path / "bent.halo"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"abi": 1, **changes}))
    return folder


def test_usage_error() -> None:
    check(errors.UsageError, 1, "threads must be at least 1, but are 0", lambda: CompileConfig(model="mlp", threads=0))


def test_unknown_name() -> None:
    check(errors.UnknownName, 1, r"unknown target 'cuba'.*did you mean 'cuda'\?", lambda: resolve("cuba"))


def test_input_error() -> None:
    from halo_tvm.runtime.inputs import bind_inputs

    check(
        errors.InputError,
        1,
        "input 'x': expected .*found",
        lambda: bind_inputs(tiny_function(), (), {"x": np.zeros((3, 2), "float32")}),
    )


def test_unsupported_model(tmp_path: Path) -> None:
    from halo_tvm.importers import import_model

    path = tmp_path / "model.onnx"
    path.write_text("this is no model")
    check(errors.UnsupportedModel, 2, "model.onnx", lambda: import_model(str(path)))


def test_artifact_corrupt(tmp_path: Path) -> None:
    check(
        errors.ArtifactCorrupt,
        3,
        "checksum: expected a string, found null",
        lambda: read_manifest(broken_manifest(tmp_path)),
    )


def test_environment_problem(tmp_path: Path) -> None:
    check(
        errors.EnvironmentProblem,
        5,
        "abi 99.*upgrade halo_tvm",
        lambda: read_manifest(broken_manifest(tmp_path, abi=99)),
    )
    host = Host("riscv64", "a CPU", frozenset(), 1, 0, 0, 0)
    check(errors.EnvironmentProblem, 5, "needs a host of a known machine", lambda: resolve("cpu", host=host))


def test_budget_is_refused() -> None:
    from halo_tvm import tune_model

    check(
        errors.UsageError, 1, "a budget is a positive time", lambda: tune_model(TuneConfig(model="mlp", budget="-3m"))
    )


def test_compile_then_spoil_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole path once: compile, validate, then other expected values are a failed validation."""
    artifact = tmp_path / "mlp.halo"
    assert main(["compile", "--model", "mlp", "-o", str(artifact)]) == 0
    assert "validation passed" in capsys.readouterr().out
    assert read_manifest(artifact).validation["passed"] is True
    with np.load(artifact / "reference.npz") as archive:
        arrays = {name: archive[name] + (1 if ".output." in name else 0) for name in archive.files}
    other = tmp_path / "other.npz"
    np.savez(other, **arrays)
    assert main(["validate", str(artifact), "--reference", str(other)]) == 3
    captured = capsys.readouterr()
    assert "FAILED in 4 of 4 outputs" in captured.out
    assert "halo-tvm: error: output 'y' of case 3: expected an error of at most" in captured.err
    assert main(["inspect", str(artifact)]) == 0
    assert "scheduled   gemm" in capsys.readouterr().out
    with monkeypatch.context() as patch:  # what fails when it is compiled does not take the place of what is there
        patch.setattr("halo_tvm.compiler.reference.cases_of", lambda *_: arrays)
        assert main(["compile", "--model", "mlp", "-o", str(artifact)]) == 3
    assert "mlp.halo was not written, which --no-validate does all the same" in capsys.readouterr().err
    assert main(["validate", str(artifact)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.halo", "other.npz"]
    capsys.readouterr()
    library = artifact / "model.so"
    spoiled = library.read_bytes()[:-1] + b"x"
    library.unlink()  # a new file: writing into the one this process has loaded would end it
    library.write_bytes(spoiled)
    assert main(["validate", str(artifact)]) == 3
    assert "model.so" in capsys.readouterr().err


def test_half_written_outputs_never_remain(tmp_path: Path) -> None:
    assert main(["compile", "--model", "no-such-model", "-o", str(tmp_path / "a.halo")]) == 1
    assert main(["compile", "--model", "mlp", "--target", "nonsense", "-o", str(tmp_path / "a.halo")]) == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_package() -> None:
    error = errors.MissingPackage("torch", "the peer torch", "pip install 'halo_tvm[torch]'")
    assert isinstance(error, errors.EnvironmentProblem)
    assert (
        str(error)
        == "the peer torch needs the package 'torch', which is not installed: run `pip install 'halo_tvm[torch]'`"
    )


def test_no_class_is_without_exit_code() -> None:
    codes = {
        c.__name__: c.exit_code
        for _, c in inspect.getmembers(errors, inspect.isclass)
        if issubclass(c, errors.HaloError)
    }
    assert set(codes.values()) <= {1, 2, 3, 4, 5}
    assert codes["UsageError"] == 1 and codes["NoValidTrial"] == 4


def test_every_class_is_raised_in_some_test() -> None:
    """Here or beside what raises it."""
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.HaloError) and kind is not errors.HaloError:
            assert (
                f"raises({name}" in tests
                or f"raises(errors.{name}" in tests
                or f"check(errors.{name}" in tests
                or f"errors.{name}(" in tests
            ), name


def test_control_flow_is_no_user_error() -> None:
    for kind in (errors.Rejected, errors.Declined):
        assert not issubclass(kind, errors.HaloError)
