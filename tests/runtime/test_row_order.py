"""Rows that are ordered by a score: which differences from a reference are those of nearly equal scores."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from halo_tvm.runtime.row_order import in_order_of
from halo_tvm.runtime.validation import _check_case

BOUNDS = (1e-3, 1e-5, 0.0)


def detections(count: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(boxes, scores from the highest on, labels); scores 4 and 5 are nearly equal, as are the last three."""
    rng = np.random.default_rng(0)
    scores = np.linspace(0.9, 0.2, count).astype(np.float32)
    scores[5], scores[-2:] = scores[4] - 4e-6, scores[-3] - np.array([3e-6, 6e-6], np.float32)
    return rng.uniform(0, 100, (count, 4)).astype(np.float32), scores, rng.permutation(count)


def swapped(arrays, *rows: int):
    order = np.arange(len(arrays[0]))
    order[list(rows)] = order[list(rows[::-1])]
    return [a[order] for a in arrays]


def test_rows_of_nearly_equal_scores_may_be_in_either_order() -> None:
    expected = detections()
    found = in_order_of(swapped(expected, 4, 5), expected, BOUNDS)
    assert found is not None
    for a, b in zip(found, expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lead", [(1,), (1, 1)])
def test_axes_of_one_lie_in_front_and_columns_in_one_output(lead: tuple[int, ...]) -> None:
    table = np.concatenate([a.reshape(len(a), -1).astype(np.float32) for a in detections()], 1)
    found = in_order_of(
        [swapped([table], 4, 5)[0].reshape(*lead, *table.shape)], [table.reshape(*lead, *table.shape)], [1e-5]
    )
    assert found is not None and (found[0].reshape(table.shape) == table).all()


def test_a_last_row_may_be_another_as_good() -> None:
    expected = detections()
    other = [a.copy() for a in expected]
    other[0][-1], other[2][-1] = 7.0, 99
    found = in_order_of(other, expected, BOUNDS)
    assert found is not None and (found[0] == expected[0]).all() and (found[2] == expected[2]).all()
    assert in_order_of(*([a[::-1] for a in arrays] for arrays in (other, expected)), BOUNDS) is None, (
        "a first row is not"
    )


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("scores that are apart", lambda arrays: swapped(arrays, 2, 3)),
        ("boxes without their labels", lambda arrays: [*swapped(arrays[:2], 4, 5), arrays[2]]),
        ("another row", lambda arrays: [arrays[0], arrays[1], np.where(np.arange(12) == 3, 99, arrays[2])]),
        ("none", lambda arrays: [np.where(np.arange(12)[:, None] == 3, np.nan, arrays[0]), *arrays[1:]]),
        ("all in another order", lambda arrays: [a[::-1] for a in arrays]),
    ],
)
def test_what_is_no_matter_of_order(what: str, change) -> None:
    expected = detections()
    assert in_order_of(change(expected), expected, BOUNDS) is None, what


def test_without_scores_no_order_is_free() -> None:
    boxes, scores, labels = detections()
    assert in_order_of(swapped((boxes, labels), 4, 5), (boxes, labels), (1e-3, 0.0)) is None
    same = np.full_like(scores, 0.5)
    assert in_order_of(swapped((boxes, same), 4, 5), (boxes, same), (1e-3, 1e-5)) is None


@pytest.mark.parametrize(("precision", "passed"), [("fp32", True), ("int8", False)])
def test_a_case_passes_with_such_rows_and_says_so(precision: str, passed: bool) -> None:
    """At lower precisions bounds are so wide that any scores are nearly equal."""
    names, expected = ("boxes", "scores", "labels"), detections()
    specs = [SimpleNamespace(name=name) for name in names]

    class Module:
        output_specs, spec = specs, SimpleNamespace(drawn=(), outputs=specs)
        manifest = SimpleNamespace(precision=precision)

        def __call__(self) -> tuple[np.ndarray, ...]:
            return tuple(swapped(expected, 4, 5))

    errors = {"boxes": np.float64(1e-3), "scores": np.float64(1e-5)}
    checks = _check_case(Module(), 0, {"input": {}, "output": dict(zip(names, expected)), "error": errors}, 1.0)
    assert all(c.passed for c in checks) == passed
    assert all(("in any order" in c.bound_from) == passed for c in checks)
