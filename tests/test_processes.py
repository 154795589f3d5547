"""A process that speaks JSON: what each way to fail says, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halo_tvm.processes import Ended, Garbled, JsonProcess, Late, seconds

WORKER = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "fork":
        os.fork() or time.sleep(600)
    elif request["do"] == "die":
        sys.stderr.write("the last words"), sys.exit(7)
    elif request["do"] == "babble":
        print(request["text"], end=request.get("end", chr(10)), flush=True)
    else:
        print(json.dumps({"heard": request}), flush=True)
"""


def worker(**options: object) -> JsonProcess:
    return JsonProcess([sys.executable, "-c", WORKER], **options)


def test_lines_go_both_ways_and_a_death_tells_why() -> None:
    with worker() as process:
        for text in ("a", "ü\n"):
            process.send({"do": "echo", "text": text})
            assert process.receive(seconds(60)) == {"heard": {"do": "echo", "text": text}}
        process.send({"do": "die"})
        with pytest.raises(Ended, match="exit code 7: the last words") as end:
            process.receive(seconds(60))
        assert end.value.code == 7
        with pytest.raises(Ended):
            process.send({"do": "echo"})


@pytest.mark.parametrize("text", ["[1]", "{", "nothing", "[" * 100_000])
def test_what_is_no_object_is_garbled(text: str) -> None:
    with worker() as process:
        process.send({"do": "babble", "text": text})
        with pytest.raises(Garbled) as found:
            process.receive(seconds(60))
        assert found.value.line == text.encode()


def test_a_line_without_an_end_is_bounded() -> None:
    with worker(line_bytes=1 << 16) as process:
        process.send({"do": "babble", "text": "x" * (1 << 17), "end": ""})
        with pytest.raises(Garbled):
            process.receive(seconds(60))


def test_a_clock_that_stands_still_waits_on() -> None:
    """A process that was paused has not been late."""
    left = iter([0.0, 0.01, 0.0, -1.0])
    with worker() as process, pytest.raises(Late):
        process.receive(lambda: next(left))
    assert next(left, None) is None


def test_a_group_ends_with_its_leader(tmp_path: Path) -> None:
    process = worker(apart=True)
    process.send({"do": "fork"})
    group = process.pid
    deadline = time.monotonic() + 60
    while len(_members(group)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.close()
    process.signal(signal.SIGKILL)  # of a process that has ended: nothing
    while _members(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _members(group)


IMPORTS = """
import sys
from pathlib import Path
from halo_tvm.importers import _restricted

ask = _restricted._Worker.ask
_restricted._Worker.ask = lambda self, request: (print(self._process.pid, flush=True), ask(self, request))
_restricted.convert_restricted("probe", Path(sys.argv[1]), {"attempts": {"endless": ""}}, trust=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is told by Linux")
def test_an_import_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    """SIGTERM, which runs nothing of Python in the parent; the worker does not look at its pipe meanwhile."""
    file = tmp_path / "model"
    file.write_bytes(b"x")
    with subprocess.Popen([sys.executable, "-c", IMPORTS, str(file)], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(1)  # it is at work, or will read the request and look for its parent
        parent.terminate()
    deadline = time.monotonic() + 60
    while _members(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = _members(pid)
    if left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _members(group: int) -> list[str]:
    found = subprocess.run(["ps", "-o", "stat=,pid=", "--sid", str(group)], capture_output=True, text=True, check=False)
    return [line for line in found.stdout.splitlines() if not line.startswith("Z")]
