"""scripts/gpu_check.py with CPU libraries in place of a GPU's: all of it but the device."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "runtime")]

import _gpu_race as race
import fake_gpu
import gpu_check
from _gpu_build import cases_of, module_of
from _gpu_checks import Clock
from _gpu_directory import MOST_BYTES, PLAN
from _gpu_engines import Attention, Product, attention_of, product_of, sample_of

from halo_tvm import params
from halo_tvm.cuda.toolkit import find_nvcc
from halo_tvm.errors import EnvironmentProblem, MissingPackage, PeerFailed
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.runtime import host
from halo_tvm.runtime.tensors import numpy_dtype
from halo_tvm.targets import resolve

SCRIPT = ROOT / "scripts" / "gpu_check.py"
PARTS = ("operators/rms_norm", "models/gpt2", "step", "kernels")
SOME = ("operators/layer_norm", "operators/matmul", "step_plain", "kernels")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu_check") / "artifacts"
    assert gpu_check.main(["--build", str(folder), "--target", "cpu", "--small", "--jobs", "1", "--only", *PARTS]) == 0
    return folder


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the packages that docs/cuda.md names and what torch needs: for Python with -S."""
    folder = tmp_path_factory.mktemp("packages")
    named = (
        "numpy",
        "apache_tvm_ffi",
        "tvm_ffi",
        "torch",
        "functorch",
        "nvidia",
        "triton",
        "sympy",
        "mpmath",
        "networkx",
        "jinja2",
        "markupsafe",
        "filelock",
        "fsspec",
        "typing_extensions",
        "setuptools",
    )
    for packages in (Path(p) for p in site.getsitepackages()):
        for entry in packages.iterdir() if packages.is_dir() else ():
            if entry.name.startswith(named) and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONNOUSERSITE": "1"}


def run(folder: Path, environment: dict[str, str], *options: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """The script over a directory, in a process that has no compiler; what it writes as JSON."""
    written = folder.parent / "result.json"
    written.unlink(missing_ok=True)
    # workers are started by sys.executable: -S has to hold for them, too
    python = folder.parent / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        python.chmod(0o755)
    arguments = [str(SCRIPT), "--artifacts", str(folder), "--json", str(written), *options]
    code = (
        f"import sys, runpy; sys.executable = {str(python)!r}; sys.argv = {arguments!r}\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=280, env=environment)
    return done, json.loads(written.read_text()) if written.exists() else {}


@pytest.mark.slow
def test_everything_is_checked_and_timed_with_the_runtime_alone(
    artifacts: Path, without_compiler: dict[str, str]
) -> None:
    markdown = artifacts.parent / "result.md"
    done, result = run(artifacts, without_compiler, "--engines", "torch", "--minutes", "2", "--markdown", str(markdown))
    assert done.returncode == 0, done.stderr[-2000:]
    assert result["about"]["runtime"]["compiler"] is False and result["failures"] == [] and result["left_out"] == []
    sections = result["sections"]
    assert all(row["passed"] for name in ("operators", "models") for row in sections[name])
    assert {row["name"] for row in sections["models"]} == {"models/gpt2", "step", "step_plain"}
    for section, names in (("step", ["step"]), ("gemm", ["gemm"]), ("flash", ["flash64", "flash128"])):
        assert [row["name"] for row in sections[section]] == names
        for row in sections[section]:
            assert row["rounds"] >= race.ROUNDS[0]
            assert row["ratios"]["torch"]["low"] <= row["ratios"]["torch"]["value"] <= row["ratios"]["torch"]["high"]
    assert sections["step"][0]["profile"]
    text = markdown.read_text()
    assert done.stdout == text and "runtime only" in text and "| product, m=256" in text and "Small sizes" in text


@pytest.mark.slow
def test_a_library_that_cannot_be_run_is_a_failure_and_no_end(
    artifacts: Path, without_compiler: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "artifacts"
    subprocess.run(["cp", "-r", str(artifacts), str(folder)], check=True)
    (folder / "operators" / "rms_norm.halo" / "model.so").write_bytes(b"no library")
    plan = json.loads((folder / PLAN).read_text())
    plan["parts"] = ["operators/rms_norm", "models/gpt2"]
    (folder / PLAN).write_text(json.dumps({**plan, "kernels": {}}))
    done, result = run(folder, without_compiler, "--minutes", "1")
    assert done.returncode == 3 and "results within their bounds were expected" in done.stderr
    assert result["sections"]["operators"] and not any(row["passed"] for row in result["sections"]["operators"])
    assert all(row["passed"] for row in result["sections"]["models"])
    assert any(line.startswith("rms_norm case0: ") for line in result["failures"])
    assert [line.split(":")[0] for line in result["left_out"]] == ["step", "gemm", "flash64", "flash128"]


@pytest.mark.slow
def test_what_does_not_fit_in_its_time_is_said(artifacts: Path, without_compiler: dict[str, str]) -> None:
    done, result = run(artifacts, without_compiler, "--minutes", "0.01")
    assert done.returncode == 0 and not any(result["sections"].values())
    said = {line.split(":")[0] for line in result["left_out"]}
    assert {"rms_norm case0", "models/gpt2", "step", "gemm", "flash64", "flash128"} <= said


@pytest.mark.slow
@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: install NVIDIA's CUDA toolkit 13")
@pytest.mark.parametrize("only", [SOME, pytest.param((), marks=pytest.mark.sweep)], ids=["some", "all"])
def test_it_is_built_for_a_gpu(only: tuple[str, ...], tmp_path: Path) -> None:
    """Operators with every case, the step and the timed kernels, by nvcc; a directory that can be carried."""
    options = ["--target", "cuda:sm_90", "--jobs", "1", *(["--only", *only] if only else [])]
    assert gpu_check.main(["--build", str(tmp_path / "artifacts"), *options]) == 0
    plan = json.loads((tmp_path / "artifacts" / PLAN).read_text())
    assert plan["failed"] == {} and len(plan["parts"]) >= (len(only) or 20)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= MOST_BYTES


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_case_is_a_call_of_its_operator(name: str) -> None:
    """In 16 bits, too, which `--build` alone makes: a part that cannot be built is seen without nvcc."""
    cases = cases_of(name, resolve("cuda:sm_90"))
    assert len(module_of({f"case{i}": (name, case) for i, case in enumerate(cases)}).functions) >= len(cases) > 0


@pytest.mark.slow
def test_a_part_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    """In a process of its own, too, whose last line on stderr may be a warning of TVM."""
    command = [sys.executable, str(SCRIPT), "--target", "cpu", "--build", str(tmp_path), "--part", "operators/none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (1, "KeyError: 'none'")


def test_no_gpu_is_exit_code_5_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_check.main([]) == 5
    assert "cuda cannot be checked here: no NVIDIA GPU" in capsys.readouterr().err
    (tmp_path / PLAN).write_text(json.dumps({"gpu": True}))
    try:
        host.load_cuda_runtime()
    except EnvironmentProblem as why:
        assert gpu_check.main(["--artifacts", str(tmp_path)]) == 5
        assert str(why) in capsys.readouterr().err
    assert gpu_check.main(["--artifacts", str(tmp_path / "none")]) == 1


def test_a_section_has_its_share_and_what_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = Clock(160.0)
    clock.begin("operators")
    assert clock.left == pytest.approx(160 * 3 / 16)
    now[0] = 4.0  # it took 4 s of its 30
    clock.begin("models")
    assert clock.left == pytest.approx(156 * 2 / 13)


SITE = """
import os, sys
if "FAKE_GPU" in os.environ:
    sys.path.append({tests!r})
    from pathlib import Path
    import fake_gpu
    driver, kernels = map(Path, os.environ["FAKE_GPU"].split(os.pathsep))
    emulated = fake_gpu.Emulated(fake_gpu.load(driver))
    emulated.add(kernels)
"""


@pytest.mark.slow
def test_a_gpus_directory_runs_over_a_driver_that_is_none(tmp_path: Path) -> None:
    """The GPU's own path, kernels emulated: wrong numbers, missing waits and refused launches would end it."""
    (tmp_path / "driver").mkdir()
    driver = fake_gpu.build(tmp_path / "driver")
    if driver is None:
        pytest.skip("no C compiler: install gcc")
    folder, kernels = tmp_path / "artifacts", tmp_path / "kernels.json"
    with pytest.MonkeyPatch.context() as patch:
        pretended = fake_gpu.Pretended(patch)
        options = ["--target", "cuda:sm_80", "--small", "--jobs", "1", "--only", "operators/rms_norm"]
        assert gpu_check.main(["--build", str(folder), *options]) == 0
        pretended.save(kernels)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE.format(tests=str(ROOT / "tests" / "runtime")))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)]),
        "FAKE_GPU": os.pathsep.join([str(driver), str(kernels)]),
    }
    command = [sys.executable, str(SCRIPT), "--artifacts", str(folder), "--minutes", "60", "--json", "result.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    rows = result["sections"]["operators"]
    assert {row["dtype"] for row in rows} == {"float32", "float16", "bfloat16"} and not result["failures"]
    assert result["about"]["runtime"]["name"] == "fake GPU" and "# Checked on" in done.stdout


def test_weights_are_written_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that only runs has no TVM, which would bring it; bfloat16 says what is missing."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert params.pack_nk(np.ones((4, 2), np.float32), layout="kn", stored="float16").shape == (2, 4)
    with pytest.raises(MissingPackage, match="float8_other needs the package 'ml_dtypes'"):
        numpy_dtype.__wrapped__("float8_other")  # this process knows the real ones by now


class Answers:
    """A worker: what it is asked for, from a dictionary."""

    def __init__(self, **replies: object) -> None:
        self.replies = replies

    def ask(self, command: str, timeout_s: float = 0.0, **_: object) -> dict[str, object]:
        reply = self.replies[command]
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture
def gemm() -> tuple[dict, dict]:
    """The plan with a product alone, and a result to be filled."""
    shape = {"m": 8, "n": 4, "k": 16, "dtype": "float32"}
    plan = {"parts": ["kernels"], "kernels": {"gemm": shape}, "gpu": "", "small": True}
    return plan, {"left_out": [], "failures": [], "wrong": []}


def timed_gemm(
    monkeypatch: pytest.MonkeyPatch, folder: Path, plan: dict, result: dict, workers: dict[str, Answers]
) -> list[dict]:
    @contextmanager
    def started(*_: object) -> Iterator[dict[str, Answers]]:
        yield workers

    monkeypatch.setattr(race.interleaved, "started", started)
    clock = SimpleNamespace(left=30.0)
    return race.timed([], folder, plan, clock, result, ["gemm"], None, [n for n in workers if n != "halo"])


def test_ours_is_timed_beside_nobody_and_beside_one_who_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gemm: tuple[dict, dict]
) -> None:
    plan, result = gemm
    x, w = product_of(Product(**plan["kernels"]["gemm"]))
    right = {"prepare": {"sample": (x @ w.T).reshape(-1).tolist()}, "time": {"us": 4.0}, "forget": {}}
    (row,) = timed_gemm(monkeypatch, tmp_path, plan, result, {"halo": Answers(**right)})
    assert row["medians_us"] == {"halo_tvm": 2.0} and not (result["failures"] or result["wrong"])

    other = {**right, "prepare": {"sample": [1.0] * 32}}
    gone = Answers(prepare=PeerFailed("it died"))
    torch = {"torch-compile": Answers(**other), "torch-graphs": gone, "torch": Answers(**right)}
    workers = {"halo": Answers(**right), **torch}
    (row,) = timed_gemm(monkeypatch, tmp_path, plan, result, workers)
    assert set(row["medians_us"]) == {"halo_tvm", "torch"} and row["ratios"]["torch"]["value"] == 1.0
    assert len(result["failures"]) == 2 and "torch-compile at" in result["failures"][0]
    assert not result["wrong"]

    (row,) = timed_gemm(monkeypatch, tmp_path, plan, result, {"halo": Answers(**other), "torch": Answers(**right)})
    assert row["passed"] is False and "halo_tvm at" in result["failures"][-1]


def test_numpy_knows_causal_attention() -> None:
    shape = {"s": 5, "h": 2, "d": 4, "dtype": "float32"}
    case = {"function": "flash4", "shape": shape}
    q, k, v = attention_of(Attention(**shape))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = np.where(np.tri(5, dtype=bool), scores, -np.inf)
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", shares, v).reshape(-1)
    np.testing.assert_allclose(sample_of(case), expected, rtol=1e-5, atol=1e-6)
