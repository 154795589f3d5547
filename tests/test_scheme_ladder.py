"""Which schemes a precision takes: the cheapest by which a language model loses no more on a text than it may."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_tokens import write_tokenizer
from checkpoints import write_checkpoint

from halo_tvm.artifact import read_manifest
from halo_tvm.cli.inspect import describe
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import ValidationFailed
from halo_tvm.passes.scheme_ladder import Rung, ladder, loss_of, rungs_to_try, usual
from halo_tvm.phase_reports import BuildReport, Loss

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two groups of 32 a row, so that rows and groups lose differently."""
    folder = tmp_path_factory.mktemp("ladder") / "tiny"
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    write_checkpoint(folder, "llama", vocab_size=258, intermediate_size=192, max_position_embeddings=512, **sizes)
    write_tokenizer(folder)
    return folder


def config(directory: Path, output: Path, precision: str, **options: object) -> CompileConfig:
    how = {"precision": precision, "function": ("main",), "threads": 1, "records": False, **options}
    return CompileConfig(model=str(directory), output=str(output), **how)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("appends", [False, True])
def test_ladders_hold_what_is_usual(precision: str, appends: bool) -> None:
    rungs = ladder(precision, appends)
    assert usual(precision, appends) in rungs and len(set(rungs)) == len(rungs)
    assert ladder("bf16", appends) == ()


@pytest.mark.parametrize(
    ("precision", "appends", "options", "names"),
    [
        ("int4", True, {}, ["w4g32m", "w4g32m, narrowing w8g32a8g32"]),
        ("int4", True, {"head": "w4g32m", "skip": ("x",)}, ["w4g32m", "w4g32m, narrowing w8g32a8g32"]),
        ("int4", True, {"scheme": "w4g64m"}, ["None"]),
        ("int4", True, {"mixed": ("*=w8a8",)}, ["None"]),
        ("int8", False, {}, ["w8a8", "w8g32a8g32"]),
        ("int8", True, {}, ["None"]),
        ("fp32", True, {}, ["None"]),
    ],
)
def test_schemes_that_are_named_are_taken(precision: str, appends: bool, options: dict, names: list[str]) -> None:
    assert list(map(str, rungs_to_try(precision, appends, options))) == names


def test_only_what_a_text_shows_is_a_loss() -> None:
    rung = Rung("w4g32m", "w8g32a8g32")
    passed, failed = [{"passed": True}], [{"passed": True}, {"passed": False}]
    text = {"divergence": 0.2, "behind_caches": 0.25, "bound": 0.15}
    assert loss_of(rung, {"outputs": passed, "text": text}) == Loss("w4g32m", 0.25, 0.15)
    assert loss_of(rung, {"outputs": passed, "text": {**text, "divergence": "inf"}}) == Loss("w4g32m", None, 0.15)
    assert loss_of(rung, {"outputs": failed, "text": text}) is None  # a wrong kernel
    assert loss_of(rung, {"outputs": passed, "text": None}) is None
    assert loss_of(None, {"outputs": passed, "text": text}) is None and loss_of(rung, None) is None


@pytest.mark.slow
def test_the_first_rung_that_loses_little_is_kept(directory: Path, tmp_path: Path, monkeypatch) -> None:
    """Trials with what they would measure; nothing is built."""
    written, losses = [], []

    def write(_output: Path, *, manifest, params_headers, check, **_others):
        written.append({header.name for header in params_headers})
        if losses:
            text = {"divergence": losses.pop(0), "bound": 0.15}
            raise ValidationFailed("too much", {"outputs": [{"passed": True}], "text": text})
        return manifest

    built = BuildReport(library_bytes=1)
    monkeypatch.setattr("halo_tvm.compiler.write_artifact", write)
    monkeypatch.setattr("halo_tvm.compiler.build", lambda mods, *_: (mods, dict.fromkeys(mods, built), False))
    losses[:] = [0.2]
    result = compile_model(config(directory, tmp_path / "m.halo", "int4"))
    found = result.reports.optimise.quantise
    assert (found.schemes, found.tried) == ("w4g32m, narrowing w8g32a8g32", (Loss("w4g32m", 0.2, 0.15),))
    told = f"{found.schemes}, as cheaper ones lose too much: w4g32m (0.2 nats per token where 0.15 are allowed)"
    assert f"schemes    {told}" in str(result) and told in describe(result.manifest)
    down = "model.layers.0.mlp.down_proj.weight|i8g32/k4/n"
    assert [any(name.startswith(down) for name in names) for names in written] == [False, True]
    written.clear()
    result = compile_model(config(directory, tmp_path / "m.halo", "int4"))
    assert len(written) == 1 and "schemes    w4g32m\n" in str(result)
    losses[:] = [0.3, 0.2]
    with pytest.raises(ValidationFailed, match=r"too much; cheaper schemes lost more: w4g32m \(0.3 nats .*not written"):
        compile_model(config(directory, tmp_path / "m.halo", "int4"))
    for asked in ({"allow_quality_loss": True}, {"overrides": {"passes": {"quantise": {"scheme": "w4g32m"}}}}):
        losses[:] = [0.3, 0.2]
        with pytest.raises(ValidationFailed, match=r"too much; m.halo was not written"):
            compile_model(config(directory, tmp_path / "m.halo", "int4", **asked))


@pytest.mark.slow
def test_a_real_model_goes_up_the_ladder(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.halo"

    def loss(**options: object) -> float:
        named = {"overrides": {"passes": {"quantise": options}}, "allow_quality_loss": True}
        compile_model(config(directory, path, "int4", **named))
        return read_manifest(path).validation["text"]["divergence"]

    cheap, dear = loss(scheme="w4g32m"), loss(scheme="w4g32m", narrowing="w8g32a8g32")
    assert dear < cheap
    compile_model(config(directory, path, "int4", max_divergence=(cheap + dear) / 2))
    manifest = read_manifest(path)
    assert manifest.validation["text"]["divergence"] == pytest.approx(dear, rel=1e-3)
    assert manifest.reports["optimise"]["quantise"]["tried"][0]["divergence"] == pytest.approx(cheap, rel=1e-3)
    before = path.stat().st_mtime_ns
    with pytest.raises(ValidationFailed, match="found .*; cheaper schemes lost more: w4g32m .*m.halo was not written"):
        compile_model(config(directory, path, "int4", max_divergence=dear / 2))
    assert path.stat().st_mtime_ns == before
