"""scripts/_conformance.py and scripts/_page.py: what a case that raises is, what is said of rows, where tables go."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import _conformance
import _page
from _conformance import Row, row

from halo_tvm.errors import UnsupportedModel, UsageError

ROWS = [row("a"), row("b", "refused", "no | such\noperator", operator="B"), row("c", "wrong", "1 is not 2")]


def test_a_sentence_of_ours_refuses_and_any_other_error_fails() -> None:
    assert _conformance.ended(UnsupportedModel("two\nlines")) == ("refused", "two\nlines")
    assert _conformance.ended(ValueError("first\nlast " + "x" * 400)) == ("failed", "ValueError: last " + "x" * 295)
    assert _conformance.ended(KeyError()) == ("failed", "KeyError: ")


def case(folder: str) -> Callable[[str], Row]:
    """Runs in a worker, which one of the cases ends."""
    return lambda name: os._exit(3) if name == "ends" else row(name, why=folder)


def test_a_process_that_ends_is_a_row_that_failed() -> None:
    found = {r["name"]: r for r in _conformance.run_all(["ends", "runs"], case, "here", jobs=1)}
    assert found["runs"] == row("runs", why="here")
    assert found["ends"]["status"] == "failed" and found["ends"]["why"].startswith("the process ended: ")


def test_what_is_said_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert _conformance.say(ROWS, "tests", show=True) == 1
    shown, other, counts = capsys.readouterr().out.replace("such\n", "such ").splitlines()
    assert shown.split() == ["refused", "b", "no", "|", "such", "operator"] and other.endswith("1 is not 2")
    assert counts == "3 tests: 1 pass, 1 refused, 1 wrong"
    assert _conformance.say(ROWS[:2], "tests") == 0
    assert capsys.readouterr().out == "2 tests: 1 pass, 1 refused\n"
    assert _conformance.reason_table("test", ROWS[1:2])[2:] == ["| b | refused | no / such operator |"]
    head, rule, line = _conformance.count_table("operator", {"B": Counter(refused=2)})
    assert (head.count("|"), rule, line) == (6, "|---|---|---|---|---|", "| B | 0 | 2 | 0 | 0 |")


def test_results_are_kept_where_a_file_is_given(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    assert _conformance.kept(None) == _conformance.kept(file) == {}
    _conformance.keep(None, {})
    _conformance.keep(file, {"a": ROWS})
    assert _conformance.kept(file) == {"a": ROWS}


def test_a_table_goes_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    _page.write_between(page, "<!-- a -->", "<!-- b -->", "first")
    page.write_text(f"head\n{page.read_text()}tail\n")
    _page.write_between(page, "<!-- a -->", "<!-- b -->", "second")
    assert page.read_text() == "head\n<!-- a -->\n\nsecond\n<!-- b -->\ntail\n"
    with pytest.raises(UsageError, match=r"expected the lines '<!-- c -->' and '<!-- b -->' once each in page.md"):
        _page.write_between(page, "<!-- c -->", "<!-- b -->", "third")
