"""Ctrl-C on the command line: exit code 130, and nothing half-written is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from children import heeding_interrupts

import halo_tvm

ROOT = Path(halo_tvm.__file__).parents[1]
PATIENCE_S = 120.0  # a slow machine must not fail the test


@contextmanager
def started(folder: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """`halo-tvm ...` in a process of its own; what is left of it at the end is killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", **variables}
    with heeding_interrupts():
        process = subprocess.Popen(
            [sys.executable, "-m", "halo_tvm", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def said_until(process: subprocess.Popen[str], word: str) -> str:
    """Lines of standard error up to the first that holds `word`."""
    said = ""
    while word not in said:
        line = process.stderr.readline()
        assert line, f"ended before {word!r}: {said}"
        said += line
    return said


INTERRUPTED_AT = """
import os, signal, sys

def interrupt(event, details):
    if event == "import" and details[0] == os.environ.get("INTERRUPT_AT"):
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
"""


def test_interrupted_while_importing(tmp_path: Path) -> None:
    """The process interrupts itself: a clock would miss the import where this process is held up."""
    output, scratch, hooks = (tmp_path / name for name in ("out", "scratch", "hooks"))
    for folder in (output, scratch, hooks):
        folder.mkdir()
    (hooks / "sitecustomize.py").write_text(INTERRUPTED_AT)
    variables = {"PYTHONPATH": f"{hooks}{os.pathsep}{ROOT}", "INTERRUPT_AT": "tvm.relax"}
    with started(scratch, "compile", "--model", "mlp", "-o", str(output / "mlp.halo"), **variables) as process:
        told, said = process.communicate()
    assert (process.returncode, told, said) == (130, "", "halo-tvm: interrupted\n")
    assert not list(output.iterdir())


def test_interrupted_while_building(tmp_path: Path) -> None:
    output, scratch, dump = (tmp_path / name for name in ("out", "scratch", "dump"))
    for folder in (output, scratch, dump):
        folder.mkdir()
    words = ["compile", "--model", "mlp", "-o", str(output / "mlp.halo"), "--dump-ir", str(dump)]
    with started(scratch, *words) as process:
        while not (dump / "4-scheduled.py").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        told, said = process.communicate()
    assert process.returncode == 130, told + said
    assert said.splitlines()[-1] == "halo-tvm: interrupted" and "Traceback" not in said
    assert not list(output.iterdir()), "neither an artifact nor its temporary directory"
    assert not [p for p in scratch.iterdir() if p.name.startswith("halo-tvm")]


@pytest.mark.slow
def test_candidates_that_were_built_are_shown(tmp_path: Path) -> None:
    words = ["tune", "--model", "mlp", "--build-only", "--trials", "400", "--json", str(tmp_path / "r.json")]
    with started(tmp_path, *words) as process:
        said = said_until(process, "is built, not measured")
        process.send_signal(signal.SIGINT)
        table, rest = process.communicate()
    assert process.returncode == 130, said + rest
    assert rest.splitlines()[-1] == "halo-tvm: interrupted" and "Traceback" not in rest
    assert "built, not measured" in table and ", interrupted; no record was written" in table
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["interrupted"] is True
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith((".tmp", ".partial", ".so"))]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_tune_says_what_it_kept(tmp_path: Path, ending: signal.Signals) -> None:
    log = tmp_path / "log"
    with started(tmp_path, "tune", "--model", "mlp", "--budget", "60s", "--log", str(log)) as process:
        said = said_until(process, "task 1/")
        process.send_signal(ending)
        _, rest = process.communicate()
    assert process.returncode == (130 if ending == signal.SIGINT else -ending), said + rest
    assert "Traceback" not in rest
    if ending == signal.SIGINT:
        assert rest.splitlines()[-1] == "halo-tvm: interrupted"
    assert f"halo-tvm tune --model mlp --budget 60s --log {log} --resume" in rest
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith((".tmp", ".partial"))]
