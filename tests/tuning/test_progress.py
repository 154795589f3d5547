"""Progress: plain lines where there is no terminal, a bar where there is one, and an honest time that is left."""

from __future__ import annotations

import io
import time

import pytest

from halo_tvm.tuning import progress as progress_module
from halo_tvm.tuning.progress import Progress


class Now:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def plain(**options: object) -> tuple[Progress, io.StringIO, Now]:
    stream, now = io.StringIO(), Now()
    return Progress(3, 600.0, stream, now=now, **options), stream, now


def test_lines_without_a_terminal() -> None:
    progress, stream, now = plain()
    progress.begin("k1", "linear")
    progress.stage("ranked")
    progress.trial("k1", True, "", 100.0, 1.0)
    progress.trial("k1", False, "crash", 100.0, 1.0)
    progress.trial("k1", False, "timeout", 100.0, 1.0)
    progress.trial("k1", False, "crash", 100.0, 1.0)
    assert stream.getvalue().splitlines() == ["tune: task 1/3: linear"], "nothing improved, ended or took long"
    progress.trial("k1", True, "", 80.0, 1.25)
    now.s += 60
    progress.ended("k1", "improved: 1.25x")
    progress.close()
    better, ended = stream.getvalue().splitlines()[1:]
    counts = "best 80.0 us, 1.250x, trials 2 ok, 3 failed (2 crash, 1 timeout), ranked"
    assert better == f"tune: task 1/3: better: {counts}, 10m00s left"
    assert ended == f"tune: task 1/3: improved: 1.25x ({counts}, 2m00s left)"


def test_a_line_at_least_every_ten_seconds() -> None:
    progress, stream, now = plain()
    progress.begin("k1", "linear")
    for _ in range(100):
        now.s += 1
        progress.trial("k1", True, "", 50.0, 1.0)
    lines = stream.getvalue().splitlines()
    assert 9 <= len(lines) <= 13 and lines[-1].startswith("tune: task 1/3: best 50.0 us")


def test_before_the_first_task() -> None:
    progress, stream, now = plain()
    now.s += 30
    progress.stage("defaults")
    assert stream.getvalue() == "tune: 3 tasks: best 1.000x, trials 0 ok, 0 failed, defaults, 9m30s left\n"


def test_it_speaks_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LINE_EVERY_S", 0.05)
    stream = io.StringIO()
    with Progress(1, 60.0, stream) as progress:
        progress.begin("k1", "linear")
        deadline = time.monotonic() + 30
        while len(stream.getvalue().splitlines()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 3 and "best 1.000x" in lines[1]
    time.sleep(0.2)
    assert stream.getvalue().splitlines() == lines, "the thread has ended"


def test_tasks_in_turns_keep_their_numbers() -> None:
    progress, stream, _ = plain()
    progress.begin("a", "first")
    progress.begin("b", "second")
    progress.trial("b", True, "", 10.0, 1.5)
    progress.begin("a", "first")
    progress.trial("a", True, "", 20.0, 1.2)
    progress.ended("b", "kept")
    assert [line.split(": ")[1:3] for line in stream.getvalue().splitlines()] == [
        ["task 1/3", "first"],
        ["task 2/3", "second"],
        ["task 2/3", "better"],
        ["task 1/3", "better"],
        ["task 2/3", stream.getvalue().splitlines()[-1].split(": ")[2]],
    ]
    assert "best 10.0 us, 1.500x" in stream.getvalue().splitlines()[-1]


def test_time_left_is_the_earliest_end() -> None:
    progress, _, now = plain(trials=10)
    assert progress.left_s() == 600
    progress.begin("a", "first")
    now.s += 30
    assert progress.left_s() == 570
    progress.trial("a", True, "", 1.0, 1.0)
    assert progress.left_s() == 30 * 9, "nine trials at 30 s each"
    progress.ended("a", "kept")
    assert progress.left_s() == 60, "two tasks at 30 s each"
    now.s += 10_000
    assert progress.left_s() == 0, "never below nothing"


def test_a_run_that_goes_on_has_less_left() -> None:
    progress, _, now = plain(trials=10)
    progress.goes_on(400.0, 5, 1)
    assert progress.left_s() == 200
    now.s += 30
    progress.trial("a", True, "", 1.0, 1.0)
    assert progress.left_s() == 30 * 4
    progress.ended("a", "kept")
    assert progress.left_s() == 30, "one task, not two"


def test_names_of_models_reach_no_terminal_unwashed() -> None:
    progress, stream, _ = plain()
    progress.begin("a", "evil\x1b[2J\nname")
    progress.note("and\rthis")
    assert stream.getvalue() == "tune: task 1/3: evil?[2J name\ntune: and this\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal() -> None:
    stream, now = Terminal(), Now()
    progress = Progress(2, 60.0, stream, now=now)
    progress.begin("a", "linear")
    now.s += 30
    progress.trial("a", False, "crash", 40.0, 1.1)
    progress.ended("a", "kept")
    progress.close()
    progress.note("after the end")
    text = stream.getvalue()
    assert (
        "task 1/2 linear" in text and "1 failed (1 crash)" in text and "50%" in text and "tune: task 1/2: kept" in text
    )
    assert text.endswith("tune: after the end\n")


def test_nothing_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, 60.0) as progress:
        progress.begin("a", "linear")
        progress.ended("a", "kept")
    progress_module.say("a model")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("tune: ") == 3
