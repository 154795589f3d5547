"""`halo-tvm tune` itself, killed while its children measure: what stays, and how the next command goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import children_of
from test_tuner import is_running

import halo_tvm

ROOT = Path(halo_tvm.__file__).parents[1]
PATIENCE_S = 300.0  # a slow machine must not fail the test


def halo_tvm_of(folder, *words):
    """`halo-tvm ...` with a home, a log and a scratch directory of its own."""
    for name in ("home", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    places = {"PYTHONPATH": str(ROOT), "HALO_TVM_HOME": str(folder / "home"), "TMPDIR": str(folder / "scratch")}
    return subprocess.Popen(
        [sys.executable, "-m", "halo_tvm", *words, "--log", str(folder / "log")],
        env={**os.environ, **places},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def trials_in(folder):
    return [line for path in folder.glob("log/*/trials.jsonl") for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_the_command_is_killed_verified_and_resumed(tmp_path):
    tune = ("tune", "--model", "mlp", "--effort", "quick", "--budget", "120s")
    process = halo_tvm_of(tmp_path, *tune)
    deadline = time.monotonic() + PATIENCE_S
    while len(trials_in(tmp_path)) < 8 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    children = children_of(process.pid) if process.poll() is None else []
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    assert len(children) >= 2 and trials_in(tmp_path), said
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, children))
    assert list((tmp_path / "scratch").iterdir()), "a killed process cannot clear up"

    verify = halo_tvm_of(tmp_path, "logs", "verify")
    said, _ = verify.communicate(timeout=PATIENCE_S)
    assert verify.returncode == 0, said
    whole = [line for line in trials_in(tmp_path) if line.endswith("}")]
    (run,) = tmp_path.glob("log/*/runs/*.json")

    resumed = halo_tvm_of(tmp_path, *tune, "--resume")
    said, _ = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, said
    assert list(run.parent.iterdir()) == [] and list((tmp_path / "scratch").iterdir()) == []
    after = trials_in(tmp_path)
    assert len(after) > len(whole) and after[: len(whole)] == whole
    assert {json.loads(line)["run"] for line in after if line.endswith("}")} == {run.stem}
