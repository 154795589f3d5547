"""Validation against recorded references: what passes, what fails, and with which sentence."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tiny

from halo_tvm.artifact import cost_of
from halo_tvm.errors import InputError, UsageError, ValidationFailed
from halo_tvm.runtime import validation
from halo_tvm.runtime.validation import compare, validate_artifact


def test_the_stored_reference_passes(artifact: Path) -> None:
    report = validate_artifact(artifact)
    assert report["passed"] and report["cases"] == 1
    (y, *_) = report["outputs"]
    assert y["output"] == "y" and 0 < y["max_abs_error"] < y["bound"] and y["top1"] == 1.0
    assert y["relative_l2"] < 1e-6 and y["cosine"] > 1 - 1e-9
    json.dumps(report, allow_nan=False)


def test_a_wrong_weight_fails_and_names_output_error_and_bound(artifact: Path) -> None:
    wrong = tiny.reference_arrays()
    wrong["case0.output.y"] = wrong["case0.output.y"] + 0.5
    with pytest.raises(
        ValidationFailed, match=r"output 'y' of case 0: expected an error of at most .*, found 0\.5; 1 of 3"
    ) as caught:
        validate_artifact(artifact, reference=wrong)
    assert caught.value.exit_code == 3
    assert caught.value.report["passed"] is False
    assert [c["passed"] for c in caught.value.report["outputs"]] == [False, True, True]


def test_a_recorded_bound_decides_and_the_factor_widens_it(artifact: Path) -> None:
    arrays = tiny.reference_arrays()
    arrays["case0.output.y"] = arrays["case0.output.y"] + 0.5
    arrays["case0.error.y"] = np.float64(0.6)
    assert validate_artifact(artifact, reference=arrays)["passed"]
    arrays["case0.error.y"] = np.float64(0.3)
    with pytest.raises(ValidationFailed, match="at most 0.3 .given by the reference"):
        validate_artifact(artifact, reference=arrays)
    assert validate_artifact(artifact, reference=arrays, factor=2)["passed"]
    with pytest.raises(UsageError, match="factor: expected a number above 0"):
        validate_artifact(artifact, factor=0)


def test_integers_must_be_exact(artifact: Path) -> None:
    arrays = tiny.reference_arrays()
    arrays["case0.output.ids_out"] = arrays["case0.output.ids_out"] + np.array([0, 1, 0])
    with pytest.raises(ValidationFailed, match="output 'ids_out' of case 0: expected an error of at most 0 .*found 1"):
        validate_artifact(artifact, reference=arrays)


def test_several_cases_of_several_sizes_from_a_file(artifact: Path, tmp_path: Path) -> None:
    arrays = {}
    for i, batch in enumerate((1, 5, 16)):
        arrays |= {k.replace("case0", f"case{i}"): v for k, v in tiny.reference_arrays(batch=batch).items()}
    np.savez(tmp_path / "r.npz", **arrays)
    report = validate_artifact(artifact, reference=tmp_path / "r.npz", threads=1)
    assert report["cases"] == 3 and len(report["outputs"]) == 9


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"what": np.zeros(1)}, UsageError, "expected keys like case0.input.x, found 'what'"),
        ({"case0.output.logits": np.zeros(1)}, UsageError, "expected outputs among y, x_out, ids_out, found logits"),
        ({"case0.output.y": np.array(["a"])}, UsageError, "expected numbers .*found <U1"),
        ({"case0.error.y": np.zeros(3)}, UsageError, "expected numbers .one for an error.*float64.3"),
        ({"case1.input.x": np.zeros(1)}, UsageError, "found none for case 1"),
        ({"case0.input.nothing": np.zeros(1)}, InputError, "unknown input 'nothing'"),
        ({"case0.output.y": np.zeros((1, 1))}, ValidationFailed, r"expected shape \[1, 1\], found \[3, 32\]"),
    ],
)
def test_a_reference_that_does_not_fit(
    artifact: Path, change: dict[str, np.ndarray], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        validate_artifact(artifact, reference={**tiny.reference_arrays(), **change})


def test_no_reference(artifact: Path, tmp_path: Path, threads_artifact: Path) -> None:
    with pytest.raises(UsageError, match="expected outputs to compare with, found no case"):
        validate_artifact(artifact, reference={})
    with pytest.raises(UsageError, match="expected an .npz file"):
        validate_artifact(artifact, reference=tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="expected reference.npz in .*, found none"):
        validate_artifact(threads_artifact)


@pytest.mark.parametrize("content", ["text", "npy", "pickle", "cut", "broken", "empty"])
def test_a_file_that_holds_no_arrays(artifact: Path, tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.npz"
    if content == "npy":
        with file.open("wb") as stream:
            np.save(stream, np.zeros(3))
    elif content == "pickle":
        np.savez(file, **{"case0.output.y": np.array([None])})
    elif content in ("cut", "broken"):
        np.savez(file, **tiny.reference_arrays())
        data = bytearray(file.read_bytes())
        data[300] ^= 255
        file.write_bytes(data[:-200] if content == "cut" else data)
    else:
        file.write_text("no archive" if content == "text" else "")
    with pytest.raises(UsageError, match="expected arrays in .*bad.npz") as error:
        validate_artifact(artifact, reference=file)
    assert error.value.exit_code == 1 and "\n" not in str(error.value)


def check(output: list, expected: list, dtype: str = "float32"):
    a, b = np.array(output, dtype), np.array(expected, "float64")
    return compare(a, b, case=0, name="y", error=None, factor=1.0)


def test_not_a_number_is_an_error_unless_expected() -> None:
    assert not check([[1, np.nan]], [[1, 2]]).passed
    assert not check([[1, np.inf]], [[1, 2]]).passed
    assert not check([[1, np.inf]], [[1, -np.inf]]).passed
    assert not check([[1, 2]], [[1, np.nan]]).passed
    assert check([[1, np.nan, -np.inf]], [[1, np.nan, -np.inf]]).passed


def test_tolerances_by_dtype() -> None:
    assert check([1.00005, 2], [1, 2]).passed and not check([1.001, 2], [1, 2]).passed
    assert check([1.01, 2], [1, 2], "float16").passed and not check([1.1, 2], [1, 2], "float16").passed
    assert check([], []).passed and check([0.0], [0.0]).passed


def test_measures() -> None:
    result = check([[1, 2], [4, 3]], [[1, 2], [3, 4]])
    assert result.top1 == 0.5 and result.max_abs_error == 1
    assert result.relative_l2 == pytest.approx(np.sqrt(2 / 30)) and result.cosine == pytest.approx(29 / 30)
    assert check([1, 2], [1, 2]).top1 is None


def test_an_error_in_any_chunk_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [compare(a, b, case=0, name="y", error=None, factor=1.0) for a, b in _pairs()]
    monkeypatch.setattr(validation, "_CHUNK", 7)
    for before, (a, b) in zip(whole, _pairs(), strict=True):
        chunked = compare(a, b, case=0, name="y", error=None, factor=1.0)
        assert (chunked.max_abs_error, chunked.passed) == (before.max_abs_error, before.passed)
        assert chunked.cosine == pytest.approx(before.cosine) and chunked.relative_l2 == pytest.approx(
            before.relative_l2
        )


def _pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    a = np.random.default_rng(0).standard_normal((4, 10))
    pairs = []
    for at in (0, 6, 7, 39):
        b = a.copy()
        b.flat[at] += 1
        pairs.append((a.astype(np.float32), b))
    b = a.copy()
    b.flat[20] = np.nan
    return [*pairs, (a.astype(np.float32), b)]


def test_a_lower_precision_has_its_own_bounds_and_says_so() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((20, 50))
    off = (expected + 0.05 * rng.standard_normal(expected.shape)).astype("float32")

    def checked(output: np.ndarray, precision: str) -> validation.OutputCheck:
        return compare(output, expected, case=0, name="y", error=None, factor=1.0, precision=precision)

    assert not checked(off, "fp32").passed and checked(off, "fp32").l2_bound is None
    int8 = checked(off, "int8")
    assert int8.passed and int8.l2_bound == 0.25 and int8.bound_from == "tolerance of int8"
    assert not checked(off, "fp16").passed, "an error of 5 % is too much for 16 bits"
    assert not checked((0.7 * expected).astype("float32"), "int8").passed, "no element is far off, all together are"
    wrong = expected.astype("float32")
    wrong[3, 4] += 3
    assert not checked(wrong, "int8").passed, "one element is far off"
    assert not checked(np.where(expected > 2, np.nan, off).astype("float32"), "int8").passed


def test_indices_may_differ_more_at_a_lower_precision() -> None:
    expected = np.arange(100)
    flipped = np.where(expected % 20 == 0, 0, expected)  # five in a hundred, the first by chance right
    for precision, passed in (("fp32", False), ("int8", True)):
        check = compare(flipped, expected, case=0, name="i", error=None, factor=1.0, precision=precision)
        assert check.passed is passed
    wrong = np.where(expected % 5 == 0, 0, expected)
    assert not compare(wrong, expected, case=0, name="i", error=None, factor=1.0, precision="int8").passed


def test_the_report_names_precision_and_tolerance(tmp_path: Path) -> None:
    report = validate_artifact(tiny.write_tiny(tmp_path / "tiny.halo", precision="int8"))
    assert report["precision"] == "int8" and report["tolerance"] == asdict(validation.PRECISIONS["int8"])
    assert re.fullmatch(r"int8: relative L2 error \S+ .at most 0.25., top-1 agreement 100.0%", cost_of(report))
    report = validate_artifact(tiny.write_tiny(tmp_path / "full.halo"))
    assert report["precision"] == "fp32" and report["tolerance"] is None
