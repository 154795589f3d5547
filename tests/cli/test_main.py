"""The command line: verbs, flags, one sentence and the right exit code for every mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import halo_tvm
from halo_tvm import errors
from halo_tvm.cli import _main
from halo_tvm.cli._flags import given_options, parser_of
from halo_tvm.cli._main import main, verbs
from halo_tvm.config import CompileConfig, RunConfig, TuneConfig
from halo_tvm.model_names import BUILT_IN

ROOT = Path(halo_tvm.__file__).parents[1]


def fake_verb(monkeypatch: pytest.MonkeyPatch, run) -> None:
    monkeypatch.setattr(_main, "_load", lambda verb: SimpleNamespace(CONFIG=CompileConfig, run=run, __doc__="Fake."))


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=120,
    )


def test_every_verb_of_the_design_is_there() -> None:
    assert {
        "tune",
        "compile",
        "run",
        "bench",
        "validate",
        "profile",
        "inspect",
        "logs",
        "targets",
        "operators",
        "doctor",
    } <= set(verbs())


@pytest.mark.parametrize("verb", verbs())
def test_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: halo-tvm {verb}" in capsys.readouterr().out


def test_help_of_a_verb_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "compile"])
    assert "usage: halo-tvm compile" in capsys.readouterr().out
    assert main(["help"]) == 0
    assert "usage: halo-tvm <verb>" in capsys.readouterr().out


def test_overview_lists_the_verbs_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in verbs())
    loaded = run_python("-X", "importtime", "-m", "halo_tvm", "--help").stderr
    assert " tvm\n" not in loaded and " numpy\n" not in loaded


def test_flags_become_options() -> None:
    parser = parser_of(CompileConfig, "halo-tvm compile", "")
    given = given_options(
        parser,
        CompileConfig,
        ["-m", "gpt2", "-O2", "--disable", "cse,fold", "--disable", "lift", "--no-validate", "--dump-ir", "d"],
    )
    assert given == {
        "model": "gpt2",
        "opt_level": "2",
        "disable": ("cse", "fold", "lift"),
        "validate": False,
        "dump_ir": "d",
    }
    tune = parser_of(TuneConfig, "", "")
    assert given_options(tune, TuneConfig, ["--budget", "-3m"]) == {"budget": "-3m"}
    run = parser_of(RunConfig, "halo-tvm run", "")
    assert given_options(run, RunConfig, ["a.halo", "--stop", ", ", "--stop", "\n"])["stop"] == (", ", "\n")
    given = given_options(tune, TuneConfig, ["-m", "a,b.onnx", "--model", "gpt2", "--stages", "records,ranked"])
    assert given == {"model": ("a,b.onnx", "gpt2"), "stages": ("records", "ranked")}, "commas belong to paths"


def test_options_are_said_when_asked_then_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    fake_verb(monkeypatch, lambda config: seen.append(config) or 0)
    assert main(["compile", "--model", "mlp", "--seed", "7"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["compile", "--model", "mlp", "--seed", "7", "-v"]) == 0
    assert seen == [CompileConfig(model="mlp", seed=7)] * 2
    captured = capsys.readouterr()
    assert "seed" in captured.err and captured.out == ""


MISSING = {
    "compile -m missing.onnx": "expected a model file or directory, found nothing at 'missing.onnx': check the path",
    "compile -m ./missing": "expected a model file or directory, found nothing at './missing'",
    "compile -m gtp2": "unknown model 'gtp2': known are .*; did you mean 'gpt2'?",
    "compile -m gpt2:part": "unknown model 'gpt2:part'",
    "compile -m gpt2 -t nowhere": "unknown target 'nowhere': known are arm,",
    "compile -m gpt2 -o missing/folder/x.halo": "expected a directory to write x.halo into",
    "compile -m gpt2 --inputs missing.npz": "expected an .npz file of example inputs, found no file 'missing.npz'",
    "compile -m gpt2 --log missing": "a tuning log was expected at 'missing', but there is none",
    "tune -m missing.pt -m missing.gguf": "expected a model file or directory, found nothing at 'missing.pt'",
    "tune --model-list missing.txt": "missing.txt",
    "export missing.tflite -o x.onnx": "expected a model file or directory, found nothing at 'missing.tflite'",
    **{
        f"{verb} missing.halo": "expected an artifact directory, found nothing at missing.halo"
        for verb in ("bench", "inspect", "profile", "report", "run", "validate")
    },
    "logs show missing": "unknown tuning log 'missing'",
}


def test_what_is_missing_is_said_before_anything_heavy_is_imported() -> None:
    lines = "\n".join(
        [
            "import sys",
            "from halo_tvm.cli._main import main",
            f"codes = [main(line.split()) for line in {list(MISSING)!r}]",
            "print(set(codes), [m for m in ('tvm', 'tvm_ffi', 'torch', 'onnx') if m in sys.modules])",
        ]
    )
    said = run_python("-c", lines)
    assert said.stdout.strip() == "{1} []", said.stderr
    for line, sentence in zip(said.stderr.splitlines(), MISSING.values(), strict=True):
        assert re.search(sentence, line), line


def test_every_built_in_model_is_known_by_its_name() -> None:
    from halo_tvm.models import PRESETS

    assert set(PRESETS) == set(BUILT_IN)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("a was expected, b was found: do c"), 1),
        (errors.InputError("wrong"), 1),
        (errors.UnsupportedModel("no"), 2),
        (errors.ValidationFailed("off"), 3),
        (errors.ArtifactCorrupt("bent"), 3),
        (errors.NoValidTrial("none"), 4),
        (errors.EnvironmentProblem("lacking"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    def run(config: CompileConfig) -> int:
        raise error

    fake_verb(monkeypatch, run)
    assert main(["compile", "--model", "mlp"]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == ("halo-tvm: interrupted" if code == 130 else f"halo-tvm: error: {error}")


def test_a_bug_is_one_sentence_unless_debugging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(config: CompileConfig) -> int:
        raise RuntimeError("first line\nsecond line")

    fake_verb(monkeypatch, run)
    assert main(["compile", "--model", "mlp"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "internal error: RuntimeError: first line second line" in last and "HALO_TVM_LOG=debug" in last
    monkeypatch.setenv("HALO_TVM_LOG", "debug")
    with pytest.raises(RuntimeError):
        main(["compile", "--model", "mlp"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["compil"], "unknown command 'compil'.*did you mean 'compile'"),
        (["compile"], "--model .*must be given"),
        (["tune"], "--model .*must be given"),
        (["tune", "--model", ""], "--model .*must be given"),
        (["tune", "--model", "mlp", "--stages", "analytic,rankd"], "unknown stage 'rankd'.*did you mean 'ranked'"),
        (["tune", "--model", "mlp", "--rpc", "localhost:1"], "both are needed, but only --rpc was given"),
        (["tune", "--model", "mlp", "--rpc", "here", "--device-key", "k"], "--rpc is written HOST:PORT"),
        (["tune", "--model", "mlp", "--rpc", "h:1", "--device-key", "a b"], "a device key has 1 to 64 letters"),
        (["compile", "--modle", "x"], "unknown option '--modle'.*did you mean '--model'"),
        (["compile", "x"], "an option was expected, but 'x' was found"),
        (["compile", "--model"], "expected one argument"),
        (["compile", "--model", "mlp", "--seed", "x"], "invalid int value: 'x'"),
        (["compile", "--model", "mlp", "-O7"], "unknown opt level '7'"),
        (["inspect"], "the following arguments are required: ARTIFACT"),
        (["logs", "shwo"], "unknown action 'shwo'.*did you mean 'show'"),
        (["logs", "show", "llvm-nothing"], "unknown tuning log 'llvm-nothing'"),
    ],
)
def test_usage_mistakes(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert re.search(message, err), err
    assert "Traceback" not in err and err.count("\n") == 1


@pytest.mark.parametrize("verb", ["tune", "compile", "run", "bench", "validate"])
def test_doors(verb: str) -> None:
    done = run_python("-m", f"halo_tvm.{verb}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: halo-tvm {verb}" in done.stdout


def test_module_door() -> None:
    done = run_python("-m", "halo_tvm", "nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("halo-tvm: error: unknown command 'nonsense'")


def test_broken_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m halo_tvm targets | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_any_text_goes_in_and_out() -> None:
    """A terminal without é shows its number, and bytes that are no text come in."""
    script = (
        "import sys; from halo_tvm.cli import _main; _main._any_text(); "
        "print('é', ascii(sys.stdin.read())); _main.sys.exit(0)"
    )
    command = f"printf 'a\\377' | PYTHONIOENCODING=ascii {sys.executable} -c \"{script}\""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.stdout, done.stderr) == ("\\xe9 'a\\udcff'\n", "")


def test_package_imports_nothing_heavy() -> None:
    script = (
        "import sys, halo_tvm, halo_tvm.targets, halo_tvm.config; "
        "print([m for m in ('tvm', 'tvm_ffi', 'numpy', 'torch', 'onnx') if m in sys.modules])"
    )
    done = run_python("-c", script)
    assert done.stdout.strip() == "[]", done.stderr


def test_integrations_are_found_without_an_import_of_their_own() -> None:
    script = (
        "import sys, halo_tvm; print('integrations' in dir(halo_tvm), 'jax' in dir(halo_tvm.integrations), "
        "hasattr(halo_tvm.integrations, 'numpy'), 'torch' in sys.modules, halo_tvm.integrations.torch.report.__name__)"
    )
    done = run_python("-c", script)
    assert done.stdout.split() == ["True", "True", "False", "False", "report"], done.stderr


def test_targets_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    rows = {row["target"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"arm:neon", "c", "cuda:sm_80", "cuda:sm_100", "x86:avx2", "x86:avx512-vnni"} <= set(rows)
    assert rows["c"]["can_run"] and rows["x86:avx2"]["key"] == "llvm-x86_64-avx2"
    for row in rows.values():
        assert row["can_build"] or row["build_note"]
        assert row["can_run"] or row["run_note"]


@pytest.mark.slow
def test_operators_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from halo_tvm.relay_ops import OPERATORS

    assert main(["operators", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["operator"] for row in rows] == [f"halo.{name}" for name in sorted(OPERATORS)]
    assert all(row["about"] and (row["rules"] or row["semantic"]) for row in rows)
    rules = {row["operator"]: row["rules"] for row in rows}
    assert "convolution" in rules["halo.convolution"] and "gemm" in rules["halo.linear"], "behind a compile's passes"
    assert main(["operators"]) == 0
    assert "halo.attention" in capsys.readouterr().out
