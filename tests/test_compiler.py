"""The main path: a model through all phases to a loaded, validated artifact."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint

from halo_tvm.artifact import read_manifest, read_params_header
from halo_tvm.compilation import Compilation
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UsageError
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate
from halo_tvm.models import FAMILIES
from halo_tvm.phase_reports import Reports, read, to_plain
from halo_tvm.phases import lower, schedule
from halo_tvm.reference import random_inputs
from halo_tvm.runtime import load
from halo_tvm.runtime.validation import validate_artifact
from halo_tvm.targets import resolve


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One artifact per family, compiled once."""
    root = tmp_path_factory.mktemp("artifacts")
    made = {}
    for kind in ("gpt2", "bert", "llama"):
        source, made[kind] = write_checkpoint(root / kind, kind), root / f"{kind}.halo"
        dump_ir = str(root / f"{kind}-ir")
        compile_model(CompileConfig(model=str(source), output=str(made[kind]), dump_ir=dump_ir, validate=False))
    return made


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
@pytest.mark.sampled(1, 2)
def test_one_artifact_is_right_for_every_length(artifacts: dict[str, Path], kind: str) -> None:
    model = import_model(str(artifacts[kind].with_suffix("")))
    module = load(artifacts[kind])
    for batch, sequence in ((1, 1), (1, 7), (2, 16), (3, 33), (1, 64)):
        inputs = random_inputs(model.inputs, {"batch": batch, "sequence": sequence}, seed=sequence)
        expected = evaluate(model, inputs)[model.outputs[0]]
        error = np.abs(module(**inputs) - expected).max() / np.abs(expected).max()
        assert error < 5e-6, f"{batch}x{sequence}: relative error {error:.1e}"


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_artifact_validates(artifacts: dict[str, Path], kind: str) -> None:
    assert validate_artifact(artifacts[kind])["passed"]


def test_reports_pin_what_is_recognised_and_scheduled(artifacts: dict[str, Path]) -> None:
    expected = {
        "gpt2": {"attention": 2, "embedding": 2, "ffn": 2, "layer_norm": 5, "linear": 5},
        "bert": {"attention": 2, "embedding": 3, "ffn": 2, "layer_norm": 5, "linear": 8},
        "llama": {"attention": 2, "embedding": 1, "ffn": 2, "linear": 5, "rms_norm": 5, "rotary": 2},
    }
    for kind, operators in expected.items():
        reports = read_manifest(artifacts[kind]).reports
        assert reports["lift"]["operators"] == operators
        assert "fallback" not in reports["schedule"]["rules"]
        assert reports["schedule"]["rules"]["flash_attention"] == 1


def test_tied_weights_are_stored_once(artifacts: dict[str, Path]) -> None:
    names = [n for n in read_params_header(artifacts["gpt2"] / "params.bin") if n.startswith("wte")]
    assert len(names) == 1


def test_weights_are_not_in_the_library(artifacts: dict[str, Path]) -> None:
    """Doubling the vocabulary doubles params.bin, not model.so."""
    manifest = read_manifest(artifacts["gpt2"])
    assert manifest.files["params.bin"].size_bytes > 300_000
    dumped = (artifacts["gpt2"].parent / "gpt2-ir" / "3-optimised.py").read_text()
    assert "GenericConst" not in dumped


def test_every_phase_is_dumped_in_order(artifacts: dict[str, Path]) -> None:
    names = sorted(p.name for p in (artifacts["bert"].parent / "bert-ir").iterdir())
    assert names == ["1-imported.py", "2-lifted.py", "3-optimised.py", "4-scheduled.py", "5-lowered.py"]


def test_memory_is_planned_at_the_declared_bounds(artifacts: dict[str, Path]) -> None:
    build = read_manifest(artifacts["gpt2"]).reports["build"]
    assert 0 < build["planned_bytes"] < build["unplanned_bytes"]


@pytest.mark.slow
def test_compiling_again_gives_the_same_parameters(artifacts: dict[str, Path], tmp_path: Path) -> None:
    source, again = artifacts["gpt2"].with_suffix(""), tmp_path / "again.halo"
    compile_model(CompileConfig(model=str(source), output=str(again), validate=False))
    first, second = (read_manifest(p).files["params.bin"].sha256 for p in (artifacts["gpt2"], again))
    assert first == second


@pytest.mark.slow
def test_overrides_of_a_layer_reach_its_functions_only(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "gpt2", "gpt2")
    config = CompileConfig(
        model=str(source), output=str(tmp_path / "x.halo"), overrides={"layers": {"h.1.mlp": {"rule": "fallback"}}}
    )
    compile_model(config)
    entries = read_manifest(tmp_path / "x.halo").reports["schedule"]["functions"]
    overridden = [e for e in entries if e["origin"] == "override"]
    assert overridden and all(e["rule"] == "fallback" for e in overridden)
    assert any(e["rule"] == "gemm" and e["origin"] == "rule" for e in entries)
    assert read_manifest(tmp_path / "x.halo").validation["passed"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rule": "gem"}, "unknown schedule rule 'gem'"),
        ({"decision": {"no_such_field": 1}}, "halo.toml asks for"),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused(tmp_path: Path, table: dict[str, object], message: str) -> None:
    config = CompileConfig(model="mlp", output=str(tmp_path / "x.halo"), overrides={"operators": {"linear": table}})
    with pytest.raises(UsageError, match=message):
        compile_model(config)
    assert not list(tmp_path.iterdir())


def test_a_failing_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("halo_tvm.compiler.write_artifact", fail)
    with pytest.raises(KeyboardInterrupt):
        compile_model(CompileConfig(model="mlp", output=str(tmp_path / "x.halo")))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_gpt2_124m_lifts_and_schedules_everything() -> None:
    """The full model without its weights: 12 attentions, 12 feed-forward networks, 25 norms, nothing in fallback."""
    compilation = Compilation.of(CompileConfig(model="gpt2"))
    mod, reports = lower(import_model("gpt2"), compilation)
    operators = reports.lift.operators
    assert (operators["attention"], operators["ffn"], operators["layer_norm"]) == (12, 12, 25)
    _, report = schedule(mod, compilation)
    assert "fallback" not in report.rules
    made = json.loads(json.dumps(to_plain(replace(reports, schedule=report))))
    assert to_plain(read(Reports, made)) == made, "what the passes said is in the records' fields"


def test_avx2_code_gives_the_same_numbers(artifacts: dict[str, Path], tmp_path: Path) -> None:
    source = artifacts["bert"].with_suffix("")
    compile_model(CompileConfig(model=str(source), output=str(tmp_path / "x.halo"), target="x86:avx2"))
    manifest = read_manifest(tmp_path / "x.halo")
    assert manifest.variants[0].isa == "avx2" and manifest.validation["passed"]


def test_families_are_what_the_docs_say() -> None:
    pages = "".join((Path(__file__).parents[1] / page).read_text() for page in ("README.md", "docs/language_models.md"))
    families = {re.sub("-(cross|decoder|seq2seq)$", "", name) for name in FAMILIES}
    assert {name for name in families if not re.search(rf"`{name}[-_a-z]*`", pages)} == set()


@pytest.mark.slow
def test_shipped_records_are_used_unless_switched_off() -> None:
    """The log in tuning_logs/ knows functions of BERT-base on the target it was made for."""
    compilation = Compilation.of(CompileConfig(model="bert-base"), resolve("x86:avx512-vnni", cores=2))
    mod, _ = lower(import_model("bert-base"), compilation)
    _, report = schedule(mod, compilation)
    assert report.tuned == report.log.hits > 0 and not report.log.unusable
    _, without = schedule(mod, replace(compilation, records=()))
    assert without.tuned == 0


def test_bench_compares_two_artifacts(artifacts: dict[str, Path], tmp_path: Path) -> None:
    from halo_tvm.config import BenchConfig
    from halo_tvm.errors import UnknownName
    from halo_tvm.peers.benchmark import benchmark

    other = tmp_path / "other.halo"
    other.symlink_to(artifacts["gpt2"])
    result = benchmark(BenchConfig(artifact=str(artifacts["gpt2"]), vs=(str(other),), rounds=2, threads=1))
    assert [engine.engine for engine in result.engines] == ["halo_tvm", "other.halo"]
    assert all(engine.accuracy.relative_l2 < 1e-5 for engine in result.engines)
    with pytest.raises(UnknownName, match="unknown engine 'missing.halo'"):
        benchmark(BenchConfig(artifact=str(artifacts["gpt2"]), vs=("missing.halo",)))


def test_the_last_dump_is_what_the_virtual_machine_gets(artifacts: dict[str, Path]) -> None:
    directory = artifacts["bert"].parent / "bert-ir"
    assert "R.call_tir" in (directory / "4-scheduled.py").read_text()
    lowered = (directory / "5-lowered.py").read_text()
    assert "R.call_tir" not in lowered and "vm.builtin" in lowered
