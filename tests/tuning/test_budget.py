"""Budgets: what is accepted means what it says, everything else is a usage error of three parts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_tvm.errors import UsageError
from halo_tvm.tuning.budget import Clock, parse_budget


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2m", 120),
        ("1h30m", 5400),
        ("1h", 3600),
        ("1.5h", 5400),
        ("45", 45),
        (" 2 m ", 120),
        ("2M", 120),
        (7, 7),
        (0.5, 0.5),
        ("1h2m3s", 3723),
    ],
)
def test_accepted(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "-3m",
        "-1",
        -1,
        0,
        True,
        "abc",
        "3x",
        "m",
        "1m1h",
        "nan",
        "inf",
        math.nan,
        math.inf,
        "1e5h",
        "--",
        "9" * 500,
        1e300,
        "٣m",
    ],
)
def test_refused(text):
    with pytest.raises(UsageError, match="a budget is a positive time .* was given: correct --budget"):
        parse_budget(text)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_parts_add_up(hours, minutes, seconds):
    total = hours * 3600 + minutes * 60 + seconds
    text = f"{hours}h{minutes}m{seconds}s"
    if total:
        assert parse_budget(text) == total
    else:
        with pytest.raises(UsageError):
            parse_budget(text)


@given(st.one_of(st.text(max_size=30), st.floats(), st.integers()))
def test_nothing_else_comes_out(budget):
    try:
        seconds = parse_budget(budget)
    except UsageError:
        return
    assert 0 < seconds < math.inf


def test_clock():
    now = [0.0]
    clock = Clock(10, lambda: now[0])
    part = clock.slice(4)
    now[0] = 3.0
    assert (clock.left_s, part.left_s, clock.elapsed_s) == (7, 1, 3)
    now[0] = 30.0
    assert clock.left_s == part.left_s == 0
    assert clock.slice(5).left_s == 0
