"""Options: precedence, the options file, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from halo_tvm import config
from halo_tvm.config import BenchConfig, CompileConfig, Environment, TuneConfig, environment, parse_sizes, resolve
from halo_tvm.errors import UnknownName, UsageError

NOTHING = Environment(threads=None, log="warning")


def toml(folder: Path, text: str) -> Path:
    path = folder / "halo.toml"
    path.write_text(text)
    return path


def test_precedence(tmp_path: Path) -> None:
    toml(tmp_path, "[compile]\nthreads = 2\nopt-level = 1\nseed = 5\n")
    given = {"model": "mlp"}
    assert resolve(CompileConfig, given, environ=NOTHING, directory=tmp_path / "..").threads is None
    assert resolve(CompileConfig, given, environ=NOTHING, directory=tmp_path).threads == 2
    from_environment = dataclasses.replace(NOTHING, threads=3)
    assert resolve(CompileConfig, given, environ=from_environment, directory=tmp_path).threads == 3
    everything = resolve(CompileConfig, {**given, "threads": 4}, environ=from_environment, directory=tmp_path)
    assert (everything.threads, everything.opt_level, everything.level, everything.seed) == (4, "1", 1, 5)
    assert everything.config == str(tmp_path / "halo.toml")


def test_tables_of_other_verbs_do_not_leak(tmp_path: Path) -> None:
    path = toml(
        tmp_path, '[tune]\nbudget = "1m"\n[passes.prune_heads]\nthreshold = 0.1\n[layers."h.3"]\nrule = "fallback"\n'
    )
    found = resolve(CompileConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)
    assert found.overrides == {"passes": {"prune_heads": {"threshold": 0.1}}, "layers": {"h.3": {"rule": "fallback"}}}
    tune = resolve(TuneConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)
    assert (tune.budget, tune.compile_config().overrides) == ("1m", found.overrides)


def test_models_of_an_options_file(tmp_path: Path) -> None:
    for text, models in (('"a,b.onnx"', ("a,b.onnx",)), ('["gpt2", "mlp"]', ("gpt2", "mlp"))):
        path = toml(tmp_path, f"[tune]\nmodel = {text}\nmodel-list = 'models.txt'\n")
        tune = resolve(TuneConfig, {"config": str(path)}, environ=NOTHING)
        assert (tune.model, tune.model_list) == (models, "models.txt")
    assert TuneConfig(model="gpt2") == TuneConfig(model=("gpt2",))
    assert TuneConfig(model_list="m.txt").compile_config("net", ("x=1",)).shape == ("x=1",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[compile]\nopt_levle = 1\n", r"unknown option in .*halo.toml 'opt_levle'.*did you mean 'opt_level'\?"),
        ("[compiel]\n", r"unknown table in .*halo.toml 'compiel'.*did you mean 'compile'\?"),
        ("[compile]\nseed = 'one'\n", "seed in .*halo.toml must be of type int, but is 'one'"),
        ("[compile]\nvalidate = 1\n", "validate in .*halo.toml must be of type bool, but is 1"),
        ("[compile]\nenable = 'cse'\n", "enable in .*halo.toml must be of type tuple"),
        ("compile = 3\n", "must hold tables such as"),
        ("[compile\n", "must be a TOML file, but"),
        ("[compile]\nconfig = 'other.toml'\n", "unknown option"),
    ],
)
def test_options_file_refused(tmp_path: Path, text: str, message: str) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        resolve(CompileConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)


def test_missing_options_file() -> None:
    with pytest.raises(UsageError, match="an options file was expected at nowhere.toml, but No such file"):
        resolve(CompileConfig, {"model": "mlp", "config": "nowhere.toml"}, environ=NOTHING)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALO_TVM_NUM_THREADS", "3")
    monkeypatch.setenv("HALO_TVM_LOG", "DEBUG")
    assert environment() == Environment(threads=3, log="debug")
    monkeypatch.setenv("HALO_TVM_NUM_THREADS", "none")
    with pytest.raises(UsageError, match="HALO_TVM_NUM_THREADS must be a positive number of threads, but is 'none'"):
        environment()
    monkeypatch.setenv("HALO_TVM_NUM_THREADS", "")
    monkeypatch.setenv("HALO_TVM_LOG", "loud")
    with pytest.raises(UsageError, match="HALO_TVM_LOG must be one of debug"):
        environment()


@pytest.mark.parametrize(("level", "number"), [("0", 0), ("3", 3), ("low", 1), ("medium", 2), ("high", 3)])
def test_opt_levels(level: str, number: int) -> None:
    assert CompileConfig(model="mlp", opt_level=level).level == number


def test_values_refused() -> None:
    with pytest.raises(UnknownName, match="unknown opt level '4'"):
        CompileConfig(model="mlp", opt_level="4")
    with pytest.raises(UsageError, match="threads must be at least 1"):
        CompileConfig(model="mlp", threads=0)
    with pytest.raises(UsageError, match="trials must be at least 1"):
        TuneConfig(model="mlp", trials=0)
    with pytest.raises(UsageError, match="rounds must be at least 1"):
        BenchConfig(artifact="x", rounds=0)
    with pytest.raises(UsageError, match="model must be given"):
        resolve(CompileConfig, {}, environ=NOTHING)


@pytest.mark.parametrize(
    ("model", "artifact"),
    [("gpt2", "gpt2.halo"), ("some/where/net.onnx", "net.halo"), ("models/minilm/", "minilm.halo")],
)
def test_default_artifact(model: str, artifact: str) -> None:
    assert CompileConfig(model=model).artifact == Path(artifact)


def test_sizes() -> None:
    assert parse_sizes("batch=1, sequence=128") == {"batch": 1, "sequence": 128}
    assert parse_sizes(None) == {}
    for bad in ("batch", "batch=", "=3", "batch=0", "batch=-1", "batch=x"):
        with pytest.raises(UsageError, match="sizes are written NAME=SIZE"):
            parse_sizes(bad)


def test_every_option_has_help() -> None:
    for kind in config.Config.__subclasses__():
        for field in dataclasses.fields(kind):
            if field.metadata.get("flag", True):
                assert field.metadata["help"], f"{kind.__name__}.{field.name}"
                assert str(field.type) in (
                    "str",
                    "str | None",
                    "int",
                    "int | None",
                    "float",
                    "float | None",
                    "bool",
                    "tuple[str, ...]",
                    "tuple[str, ...] | str",
                ), field


def test_config_prints_itself() -> None:
    text = str(CompileConfig(model="mlp", enable=("cse", "fold")))
    assert text.splitlines()[0] == "CompileConfig"
    assert "enable" in text and "cse, fold" in text and "dump_ir" not in text
