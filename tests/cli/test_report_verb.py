"""`report`: artifacts are measured and compared, results from files are rendered, nothing half is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halo_tvm.artifact import update_manifest
from halo_tvm.cli import main
from halo_tvm.report import schema


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two artifacts of one model, one of them without fusion, and without the usual suffix."""
    root = tmp_path_factory.mktemp("made")
    shape = ["--shape", "x=1..8x1024", "--no-validate"]
    for name, words in (("before", ["-O1"]), ("after.halo", [])):
        assert main(["compile", "--model", "mlp", "-o", str(root / name), *shape, *words]) == 0
    return root


def test_two_artifacts_side_by_side(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rounds", "2", "--threads", "1", "--no-measure"]
    path = tmp_path / "r.json"
    assert main(["report", str(made / "before"), str(made / "after.halo"), "-o", str(path), *words]) == 0
    result = schema.from_json(json.loads(path.read_text()))
    assert [s.label for s in result.sides] == ["before", "after.halo"]
    assert [e.engine for e in result.bench.engines] == ["after.halo", "before"]
    assert all(e.median_ms > 0 and e.peak_rss_mib > 0 for e in result.bench.engines)
    before, after = result.sides
    assert before.fused == 0 and after.fused > 0 and after.saved_bytes > 0
    assert before.planned_mib >= after.planned_mib > 0
    assert before.validation.passed and after.validation.passed
    assert {call.operator for call in after.profile.calls} >= {"linear"}
    assert "wrote" in capsys.readouterr().out
    for name in ("r.html", "r.md"):
        assert main(["report", str(path), "-o", str(tmp_path / name)]) == 0, "a report is rendered later, too"
        assert "before: before" in (tmp_path / name).read_text()


def test_a_manifest_alone_says_what_was_compiled(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.md"
    assert main(["report", str(made / "after.halo"), "--no-time", "-o", str(path)]) == 0
    text = path.read_text()
    assert text.startswith("### after.halo") and "rule gemm" in text and "Time" not in text and "Accuracy" not in text


def test_reports_of_another_form_are_left_out(made: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(made / "after.halo", tmp_path / "odd.halo")
    update_manifest(tmp_path / "odd.halo", reports={"optimise": {"fuse": 3, "x": [1]}, "build": [], "schedule": "no"})
    assert main(["report", str(tmp_path / "odd.halo"), "--no-time", "-o", str(tmp_path / "r.html")]) == 0
    assert "odd.halo" in (tmp_path / "r.html").read_text()


def test_results_of_other_verbs_are_rendered(made: Path, tmp_path: Path) -> None:
    words = ["--rounds", "1", "--threads", "1", "--no-measure"]
    files = [tmp_path / f"{name}.json" for name in ("before", "after.halo")]
    for path in files:
        assert main(["profile", str(made / path.stem), *words, "--json", str(path)]) == 0
    validated = tmp_path / "v.json"
    assert main(["validate", str(made / "after.halo"), "--json", str(validated)]) == 0
    out = tmp_path / "r.html"
    assert main(["report", *map(str, files), str(validated), "-o", str(out)]) == 0
    text = out.read_text()
    assert "Operators, before and after" in text and "against NumPy (float64): passed" in text


def test_before_is_what_is_named_first(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--rounds", "1", "--threads", "1", "--no-measure"]
    old, new, out = str(tmp_path / "old.json"), str(made / "after.halo"), str(tmp_path / "r.json")
    assert main(["profile", str(made / "before"), *words, "--json", old]) == 0
    for first, second, labels in ((old, new, ["mlp", "after.halo"]), (new, old, ["after.halo", "mlp"])):
        assert main(["report", first, second, "--no-time", "-o", out]) == 0
        result = schema.from_json(json.loads(Path(out).read_text()))
        assert [side.label for side in result.sides] == labels
        assert result.title == f"{labels[0]} before, {labels[1]} after"
    assert main(["report", old, old, "-o", str(tmp_path / "both.json")]) == 0
    assert [s.label for s in schema.from_json(json.loads((tmp_path / "both.json").read_text())).sides] == [
        "mlp",
        "mlp (2)",
    ]
    capsys.readouterr()
    monkeypatch.setattr("halo_tvm.cli._reporting._bench", None)  # nothing is measured before the refusal
    assert main(["report", old, new, str(made / "before"), "-o", out]) == 1
    assert "at most 2, before and after, but 3 were named: old.json, after.halo, before" in capsys.readouterr().err
    assert main(["report", out, old, "-o", str(tmp_path / "no.md")]) == 1
    assert "a report is rendered alone" in capsys.readouterr().err


def test_a_manifest_s_numbers_may_be_anything(made: Path, tmp_path: Path) -> None:
    import shutil

    odd, huge = tmp_path / "odd.halo", int("9" * 400)
    shutil.copytree(made / "after.halo", odd)
    sizes = dict.fromkeys(("params_bytes", "library_bytes", "planned_bytes", "unplanned_bytes"), huge)
    fuse = {"fuse": {"saved_bytes": huge, "candidates": [3]}}
    update_manifest(odd, reports={"build": sizes, "optimise": fuse, "schedule": {"tuned": -huge}})
    assert main(["report", str(odd), "--no-time", "-o", str(tmp_path / "r.md")]) == 0
    text = (tmp_path / "r.md").read_text()
    assert "| memory traffic saved per run, MiB | - |" in text and "Memory" not in text, "no size of it can be shown"
    assert main(["profile", str(odd), "--rounds", "1", "--threads", "1", "--no-measure"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "one artifact, or two to compare"),
        (["a.halo", "b.halo", "c.halo"], "3 artifacts of 3 inputs were given"),
        (["a.halo", "-o", "r.pdf"], "a report is written as .html, .md, .json, but r.pdf was named"),
        (["a.halo", "-o", "nowhere/r.html"], "the directory of nowhere/r.html must exist"),
        (["missing.json"], "missing.json cannot be read as one (No such file"),
        (["broken.json"], "broken.json cannot be read as one"),
        (["other.json"], "expected a result of schema 1"),
        (["missing.halo"], "missing.halo"),
    ],
)
def test_mistakes_are_said(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("{}")
    assert main(["report", *words]) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("report.html")), "nothing is written"
