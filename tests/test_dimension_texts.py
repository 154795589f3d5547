"""Sizes as text: what a manifest's shapes say, and the numbers, ranges and names that are read out of it."""

from __future__ import annotations

import itertools
import random

import pytest
import tvm
from tvm import tirx

from halo_tvm.artifact import is_computed, names_in, range_of, size_at, sizes_at
from halo_tvm.dimensions import size_of, text_of

# T, R and I are words of TVM's printer, which also writes every letter beyond ASCII as _.
NAMES = ("T", "R", "I", "T_1", "高度", "宽度", "min")
SIZES = dict(zip(NAMES, (7, 4, 9, 12, 5, 8, 3)))
VARS = [tirx.Var(name, "int64") for name in NAMES]
T, R, I, T_1, HEIGHT, WIDTH, MIN = VARS
JOINED = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: tirx.floordiv(a, tirx.max(b, 1)),
    lambda a, b: tirx.floormod(a, tirx.max(b, 1)),
    tirx.min,
    tirx.max,
)


def expression(draw: random.Random, depth: int) -> tvm.ir.Expr:
    if depth == 0:
        return draw.choice([*VARS, tirx.IntImm("int64", draw.randint(-3, 3))])
    return draw.choice(JOINED)(expression(draw, depth - 1), expression(draw, draw.randint(0, depth - 1)))


@pytest.mark.parametrize("seed", range(4))
def test_texts_are_read_back(seed: int) -> None:
    """At sizes, and between the least and the most that ranges allow."""
    draw = random.Random(seed)
    ranges = {name: (max(1, size - draw.randint(0, 2)), size + draw.randint(0, 2)) for name, size in SIZES.items()}
    for _ in range(60):
        expr = expression(draw, draw.randint(0, 3))
        text = text_of(expr)
        found = size_at(text, SIZES)
        assert found == size_of(expr, SIZES), (text, expr)
        low, high = range_of(text, ranges)
        assert low <= found <= high, (text, low, found, high)


def test_texts_are_readable_and_tell_dimensions_apart() -> None:
    texts = [text_of(d) for d in (T, 2 + T + 1, T - (R - 1), (T + R) * 2, T * tirx.floordiv(R, 2), tirx.max(HEIGHT, 3))]
    assert texts == ["T", "2 + T + 1", "T - (R - 1)", "(T + R) * 2", "T * (R // 2)", "max(高度, 3)"]
    assert text_of(tirx.IntImm("int64", 3)) == text_of(3) == 3
    many = [f(a, b) for f in (*JOINED, tirx.truncdiv) for a, b in itertools.permutations(VARS, 2)]
    many += [tirx.Select(a > b, a, b) for a, b in itertools.permutations(VARS, 2)]
    many += [tirx.Cast("int64", tirx.ceil(tirx.Cast("float64", v) * 0.5)) for v in VARS]
    assert len({text_of(expr) for expr in many}) == len(many)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("T", 7),
        ("min + 1", 4),
        ("min(T, R)", 4),
        ("-2 + T", 5),
        ("T * -1", -7),
        ("T.int64(2) + R", None),
        ("...", None),
        ("y.0", None),
        ("q", None),
        ("q + 1", None),
        ("ceil(T)", None),
        ("T +", None),
        ("T R", None),
        ("-T", None),
        ("", None),
        ("9" * 40, None),
        ("(" * 9000, None),
        ("(" * 200 + "T" + ")" * 200, None),
        (" + ".join("T" * 200), None),
        ("T + " * 5000 + "T", None),
    ],
)
def test_what_is_no_size_is_not_known(text: str, size: int | None) -> None:
    """A manifest may hold anything."""
    assert size_at(text, SIZES) == size


def test_shapes_at_sizes() -> None:
    assert sizes_at((3, "T", "2 * T + R"), SIZES) == (3, 7, 18)
    with pytest.raises(KeyError, match="q"):
        sizes_at((3, "q + 1"), SIZES)
    assert [names_in(d) for d in (3, "T", "2 * T + R", "y.0")] == [[], ["T"], ["R", "T"], ["y.0"]]
    assert [is_computed(d) for d in (3, "T", "T + 1", "y.0")] == [False, False, True, False]
    assert range_of("T // R", {"T": (1, 9), "R": (0, 3)}) is None  # nothing is divided by 0
    assert range_of("T % 4", {"T": (1, 9)}) == (0, 3) and range_of("T % 4", {"T": (1, 3)}) == (1, 3)
    assert range_of("q + 1", {}) is None
