"""Options: precedence, the options file, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from halo_tvm import config
from halo_tvm.cli._flags import given_options, parser_of
from halo_tvm.cli._main import _load, verbs
from halo_tvm.config import (
    BenchConfig,
    CompileConfig,
    Environment,
    TuneConfig,
    environment,
    flag_of,
    parse_sizes,
    resolve,
    type_of,
    with_signature,
)
from halo_tvm.errors import UnknownName, UsageError
from halo_tvm.passes.graph_pass import Overrides

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
        tmp_path,
        '[tune]\nbudget = "1m"\n[passes.prune_heads]\nthreshold = 0.1\n[layers."h.3"]\nrule = "fallback"\n'
        "[operators.attention]\nrule = 'fallback'\n",
    )
    found = resolve(CompileConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)
    assert found.overrides == {
        "passes": {"prune_heads": {"threshold": 0.1}},
        "operators": {"attention": {"rule": "fallback"}},
        "layers": {"h.3": {"rule": "fallback"}},
    }
    tune = resolve(TuneConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)
    assert (tune.budget, tune.compile_config().overrides) == ("1m", found.overrides)


def test_models_of_an_options_file(tmp_path: Path) -> None:
    for text, models in (('"a,b.onnx"', ("a,b.onnx",)), ('["gpt2", "mlp"]', ("gpt2", "mlp"))):
        path = toml(tmp_path, f"[tune]\nmodel = {text}\nmodel-list = 'models.txt'\n")
        tune = resolve(TuneConfig, {"config": str(path)}, environ=NOTHING)
        assert (tune.model, tune.model_list) == (models, "models.txt")
    assert TuneConfig(model="gpt2") == TuneConfig(model=("gpt2",))
    assert TuneConfig(model_list="m.txt").compile_config("net", ("x=1",)).shape == ("x=1",)


def test_one_text_is_a_list_in_an_options_file(tmp_path: Path) -> None:
    path = toml(tmp_path, "[compile]\nenable = 'cse,fold'\nshape = 'x=1x3'\nmax-divergence = 1\n")
    found = resolve(CompileConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)
    assert (found.enable, found.shape, found.max_divergence) == (("cse", "fold"), ("x=1x3",), 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[compile]\nopt_levle = 1\n", r"unknown option in .*halo.toml 'opt_levle'.*did you mean 'opt_level'\?"),
        ("[compiel]\n", r"unknown table in .*halo.toml 'compiel'.*did you mean 'compile'\?"),
        ("[compile]\nseed = 'one'\n", "seed in .*halo.toml must be a whole number, but is 'one'"),
        ("[compile]\nvalidate = 1\n", "validate in .*halo.toml must be true or false, but is 1"),
        ("[compile]\nenable = {cse = 1}\n", "enable in .*halo.toml must be a list of texts, but is {'cse': 1}"),
        ("[bench]\nrounds = 3\n", r"read by compile and tune, but .*halo.toml has a table \[bench\]"),
        ("compile = 3\n", "must hold tables such as"),
        ("[compile\n", "must be a TOML file, but"),
        ("[compile]\nconfig = 'other.toml'\n", "unknown option"),
    ],
)
def test_options_file_refused(tmp_path: Path, text: str, message: str) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        resolve(CompileConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)


def test_the_example_of_the_docs_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
    path = toml(tmp_path, page.split("```toml\n")[1].split("```")[0])
    found = resolve(CompileConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING)
    assert (found.opt_level, found.shape, set(found.overrides)) == (
        "2",
        ("input_ids=1..2x4..32",),
        {"passes", "operators", "layers"},
    )
    Overrides(**found.overrides)
    assert resolve(TuneConfig, {"model": "mlp", "config": str(path)}, environ=NOTHING).budget == "30m"


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
    with pytest.raises(UsageError, match="--model must be given"):
        resolve(CompileConfig, {}, environ=NOTHING)
    with pytest.raises(UsageError, match="--n-gen must be a number from 1 on, but is '0': correct it"):
        BenchConfig(artifact="x", n_gen=("0",))


def test_values_in_python_are_taken_as_they_are_meant() -> None:
    found = CompileConfig(model=Path("net.onnx"), opt_level=2, shape="x=1x3", enable=["cse"])  # type: ignore[arg-type]
    assert (found.model, found.opt_level, found.shape, found.enable) == ("net.onnx", "2", ("x=1x3",), ("cse",))
    assert BenchConfig(artifact="x", vs="onnxruntime", n_prompt=(512,)).vs == ("onnxruntime",)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="threads must be a whole number, but is '2'"):
        CompileConfig(model="mlp", threads="2")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="shape must be a list of texts, but is {'x': 1}"):
        CompileConfig(model="mlp", shape={"x": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", verbs())
def test_every_flag_gives_its_fields_type(verb: str) -> None:
    kind = _load(verb).CONFIG
    values = {int: ["3"], float: ["0.5"], str: ["some"], tuple: ["some"], bool: []}
    fields = [field for field in dataclasses.fields(kind) if field.metadata.get("flag", True)]
    words: list[str] = []
    for field in fields:
        words += [] if field.metadata.get("positional") else [flag_of(field)]
        words += values[type_of(field)]
    given = given_options(parser_of(kind, verb, ""), kind, words)
    assert {field.name: type(given[field.name]) for field in fields} == {f.name: type_of(f) for f in fields}


@pytest.mark.parametrize(
    ("model", "artifact"),
    [("gpt2", "gpt2.halo"), ("some/where/net.onnx", "net.halo"), ("models/minilm/", "minilm.halo")],
)
def test_default_artifact(model: str, artifact: str) -> None:
    assert CompileConfig(model=model).artifact == Path(artifact)


def test_sizes() -> None:
    assert parse_sizes("batch=1, sequence=128") == {"batch": 1, "sequence": 128}
    assert parse_sizes(None) == {}
    for bad in ("batch", "batch=", "=3", "batch=-1", "batch=x"):
        with pytest.raises(UsageError, match="sizes are written NAME=SIZE"):
            parse_sizes(bad)
    with pytest.raises(UsageError, match="a size must be at least 1, but 'batch=0' was given"):
        parse_sizes("batch=0")


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


def test_signatures_belong_to_some_formats(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    (tmp_path / "net.tflite").write_bytes(b"")
    assert with_signature(f"{tmp_path}/net.tflite", "encode") == f"{tmp_path}/net.tflite:encode"
    assert with_signature(f"{tmp_path}/net.onnx", None) == f"{tmp_path}/net.onnx"
    with pytest.raises(UsageError, match="--signature belongs to a TFLite file or a SavedModel.*net.onnx is neither"):
        with_signature(f"{tmp_path}/net.onnx", "encode")
