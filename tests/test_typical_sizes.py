"""Sizes that benchmarks and profiles choose are sizes that the model accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from test_general_graphs import imported

from halo_tvm.errors import UnsupportedModel
from halo_tvm.reference import cases_of, typical_of


def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if inputs["sound"].shape[1] < 512:
        raise UnsupportedModel("a window has 512 samples")
    return {"y": inputs["sound"]}


def test_sizes_that_the_model_refused_are_not_typical() -> None:
    model = imported({"sound": (("batch", "samples"), "float32")}, lambda bb, x: x)
    model = replace(model, engine=engine, ranges={"batch": (1, 64), "samples": (1, 99_999)})
    model = replace(model, typical={"batch": 1, "samples": 128})
    cases = cases_of(model, seed=0)
    assert typical_of(model, cases) == {"batch": 1, "samples": 1600}
    given = {"sound": np.zeros((4, 700), "float32")}
    assert typical_of(model, cases_of(model, 0, given), given) == {"batch": 4, "samples": 700}
    easy = replace(model, engine=lambda inputs: {"y": inputs["sound"]})
    assert typical_of(easy, cases_of(easy, seed=0)) == model.typical


def test_an_image_of_typical_sizes_is_one_that_the_model_takes() -> None:
    """A reader of lines, whose file leaves the height open: one line is 64 rows at most."""

    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if inputs["line"].shape[2] > 64:
            raise UnsupportedModel("more than one line")
        return {"y": inputs["line"]}

    model = imported({"line": (("batch", 3, "height", "width"), "float32")}, lambda bb, x: x)
    ranges = dict.fromkeys(("batch", "height", "width"), (1, 9999))
    model = replace(model, engine=engine, ranges=ranges, typical={"batch": 1, "height": 128, "width": 128})
    assert typical_of(model, cases_of(model, seed=0)) == {"batch": 1, "height": 64, "width": 128}


def test_an_image_is_never_as_wide_as_a_sound_is_long() -> None:
    """A file of one image's size, whose height and width are left open, is refused before they fill the memory."""

    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert inputs["x"].size < 1 << 25
        raise UnsupportedModel("not 224 x 224")

    model = imported({"x": (("batch", 1, "height", "width"), "float32")}, lambda bb, x: x)
    model = replace(model, engine=engine, ranges=dict.fromkeys(("batch", "height", "width"), (1, 99_999)))
    with pytest.raises(UnsupportedModel, match="not 224"):
        cases_of(model, seed=0)


def test_halves_of_halves_are_found_among_small_images() -> None:
    """A net that halves its image five times and joins the halves again takes multiples of 32."""

    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if any(size % 32 for size in inputs["x"].shape[2:]):
            raise UnsupportedModel("odd halves")
        return {"y": inputs["x"]}

    model = imported({"x": (("batch", 3, "height", "width"), "float32")}, lambda bb, x: x)
    model = replace(model, engine=engine, ranges=dict.fromkeys(("batch", "height", "width"), (1, 9999)))
    cases = cases_of(model, seed=0)
    assert [cases[f"case{i}.input.x"].shape for i in (0, 1)] == [(1, 3, 64, 64), (2, 3, 96, 96)]


def test_a_batch_that_only_a_state_forbids_is_one() -> None:
    """Files leave the batch open and hold a state of one row: longer inputs alone do not help."""

    def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if inputs["sound"].shape[0] != 1:
            raise UnsupportedModel("a state of one row")
        return {"y": inputs["sound"]}

    model = imported({"sound": (("rows", "samples"), "float32")}, lambda bb, x: x)
    model = replace(model, engine=engine, ranges={"rows": (1, 64), "samples": (1, 9999)})
    cases = cases_of(replace(model, typical={"rows": 1, "samples": 128}), seed=0)
    assert {cases[f"case{i}.input.sound"].shape for i in range(2)} == {(1, 16), (1, 7)}


def test_what_moves_by_a_rounding_is_no_fault_of_a_compiled_model() -> None:
    """Levels of 8 bits flip at the last bit of a sum: a model that amplifies them is compared as loosely as it is."""
    model = imported({"x": ((4, 8), "float32")}, lambda bb, x: x)

    def errors(gain: float, accepted: float | None) -> list[float]:
        def engine(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            level = np.round(inputs["x"][:1] * 1e7) % 2  # the last bits decide
            return {"y": inputs["x"] + gain * level.astype("float32")}

        arrays = cases_of(replace(model, engine=engine, accepted_error=accepted), seed=0)
        return [arrays[k] / np.abs(arrays[k.replace("error", "output")]).max() for k in arrays if ".error." in k]

    assert errors(0.1, None) == []
    np.testing.assert_allclose(errors(0.0, 0.02), 0.02)
    assert all(0.05 < error <= 0.1 for error in errors(0.1, 0.02))
    np.testing.assert_allclose(errors(5.0, 0.02), 0.1)  # not everything passes
