"""Validation draws inputs at several scales and sizes: kernels that are wrong far from one are noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from test_general_graphs import imported

from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel, ValidationFailed
from halo_tvm.imported import ImportedModel
from halo_tvm.importers import import_model
from halo_tvm.reference import cases_of
from halo_tvm.runtime.validation import validate_artifact

Arrays = Mapping[str, np.ndarray]


def mean_of_halves(folder: Path) -> ImportedModel:
    """x [n, 2048] -> the means of its rows, in float16."""
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])
    return of_nodes(folder, [node], TensorProto.FLOAT16, 2048, 1)


def sum_of_halves_by_count(folder: Path) -> ImportedModel:
    """The same as a sum in float16, which is none above 65504."""
    count = numpy_helper.from_array(np.array([1 / 2048], np.float16))
    nodes = [
        helper.make_node("Constant", [], ["axes"], value_ints=[1]),
        helper.make_node("Constant", [], ["share"], value=count),
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"]),
        helper.make_node("Mul", ["sum", "share"], ["y"]),
    ]
    return of_nodes(folder, nodes, TensorProto.FLOAT16, 2048, 1)


def norm(folder: Path, epsilon: float) -> ImportedModel:
    """x [n, 64] -> a norm of its rows."""
    nodes = [
        helper.make_node("Constant", [], ["one"], value_floats=[1.0] * 64),
        helper.make_node("LayerNormalization", ["x", "one"], ["y"], epsilon=epsilon),
    ]
    return of_nodes(folder, nodes, TensorProto.FLOAT, 64, 64)


def of_nodes(folder: Path, nodes: list, dtype: int, width: int, out: int) -> ImportedModel:
    folder.mkdir(exist_ok=True)
    infos = [helper.make_tensor_value_info(n, dtype, ["n", w]) for n, w in (("x", width), ("y", out))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    file = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    return import_model(str(file))


def refusal(model: ImportedModel, folder: Path) -> str | None:
    """What `compile` says of the artifact, which equals its source at sigma 1."""
    compile_model(CompileConfig("", output=str(folder / "at_one.halo"), validate=False), model)
    assert validate_artifact(folder / "at_one.halo", reference=cases_of(model, seed=0))["passed"]
    try:
        compile_model(CompileConfig("", output=str(folder / "x.halo")), model)
    except ValidationFailed as refused:
        return str(refused)
    return None


def test_sums_that_overflow_are_noticed(tmp_path: Path) -> None:
    right, wrong = mean_of_halves(tmp_path / "right"), sum_of_halves_by_count(tmp_path / "wrong")
    assert refusal(right, tmp_path) is None
    found = refusal(replace(wrong, engine=right.engine), tmp_path)
    assert "output 'y' of case 2: expected an error of at most" in (found or "")


def test_what_is_only_wrong_near_zero_is_noticed(tmp_path: Path) -> None:
    right, wrong = norm(tmp_path / "right", 1e-5), norm(tmp_path / "wrong", 1.5e-5)
    found = refusal(replace(wrong, engine=right.engine), tmp_path)
    assert "output 'y' of case 3: expected an error of at most" in (found or "")


def drawn(function, dtype: str = "float32", precision: str = "fp32") -> list[tuple[float, float]]:
    """Mean and sigma of the inputs of each case whose source is `function`."""
    model = imported({"x": ((4, 256), dtype), "mask": ((4, 256), "float32")}, lambda bb, x, mask: x)

    def engine(inputs: Arrays) -> dict[str, np.ndarray]:
        return {"y": function(inputs["x"])}

    arrays = cases_of(replace(model, engine=engine), 0, None, precision)
    inputs = [v.astype(np.float64) for k, v in arrays.items() if k.endswith(".input.x")]
    assert all(np.array_equal(v, arrays["case0.input.mask"]) for k, v in arrays.items() if k.endswith(".input.mask"))
    return [(round(float(v.mean()), 1), round(float(v.std()), 3)) for v in inputs]


def test_what_roundings_move_a_little_sums_may_move_more() -> None:
    """Sums that are rounded one way are as far off as many numbers that move at random."""

    def unsteady(inputs: Arrays) -> dict[str, np.ndarray]:  # its fifth digit depends on the last of x
        return {"y": np.float32(0.5) + np.sin(inputs["x"] * np.float32(1e12)) * np.float32(1e-5)}

    model = imported({"x": ((4, 256), "float32")}, lambda bb, x: x)
    arrays = cases_of(replace(model, engine=unsteady), 0, None, "fp32")
    errors = [float(v) for k, v in arrays.items() if k.endswith(".error.y")]
    assert errors and all(3e-4 < error < 1e-3 for error in errors)


def test_a_source_that_jumps_is_no_measure_of_digits_but_of_size() -> None:
    """An engine that is right may be on the other side of a jump; what is off by the whole result is still refused."""

    def jumpy(inputs: Arrays) -> dict[str, np.ndarray]:  # 2e-6 of x become 2e-2
        x = inputs["x"].astype(np.float64)
        return {"y": (x + 0.05 * np.sin(x * 1e6)).astype(np.float32)}

    model = imported({"x": ((4, 256), "float32")}, lambda bb, x: x)
    arrays = cases_of(replace(model, engine=jumpy), 0, None, "fp32")
    largest = float(np.abs(arrays["case0.output.y"]).max())
    assert 0.04 * largest < float(arrays["case0.error.y"]) < 0.2 * largest
    smooth = cases_of(replace(model, engine=lambda inputs: {"y": np.tanh(inputs["x"])}), 0, None, "fp32")
    assert "case0.error.y" not in smooth


def test_a_source_that_jumps_at_one_may_jump_at_scales_where_no_draw_shows_it() -> None:
    def jumpy(inputs: Arrays) -> dict[str, np.ndarray]:
        x = inputs["x"].astype(np.float64)
        return {"y": (x + 0.05 * np.sin(x * 1e6) * (np.abs(x) > 0.1)).astype(np.float32)}

    model = imported({"x": ((4, 256), "float32")}, lambda bb, x: x)
    arrays = cases_of(replace(model, engine=jumpy), 0, None, "fp32")
    near_zero = next(k for k, v in arrays.items() if k.endswith(".input.x") and np.abs(v).max() < 0.1)
    case = near_zero.removesuffix(".input.x")
    assert float(arrays[f"{case}.error.y"]) > 0.04 * float(np.abs(arrays[f"{case}.output.y"]).max())


def test_where_a_grid_ends_only_another_engine_shows_that_the_source_jumps() -> None:
    """What lies beyond a grid becomes its end, however it moves; engines that round at other places differ there."""

    def rounded(scale: float) -> Callable[[Arrays], dict[str, np.ndarray]]:
        def engine(inputs: Arrays) -> dict[str, np.ndarray]:
            bytes_ = np.clip(np.round(inputs["x"] / np.float32(0.02)), -128, 127)  # 127 * 0.5 lies between two integers
            return {"y": np.round(bytes_ * np.float32(scale)).astype(np.float32)}

        return engine

    model = imported({"x": ((4, 256), "float32")}, lambda bb, x: x)
    alone = replace(model, engine=rounded(0.5), accepted_error=1e-3)
    beside = replace(alone, other_engine=rounded(0.5 * (1 + 1e-6)))
    far, with_both = (float(cases_of(m, 0, None, "fp32")["case1.error.y"]) for m in (alone, beside))
    assert far < 0.1 < 1.0 < with_both < 5.0  # a step is 1


def test_scales_at_which_the_source_is_no_measure_are_left_out() -> None:
    one, large, less, small = (0.0, 1.0), (48.0, 32.0), (12.0, 8.0), (0.0, 0.001)

    def like(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> bool:
        return len(found) == len(wanted) and bool(np.allclose(found, wanted, rtol=0.1, atol=0.1))

    assert like(drawn(np.tanh), [one, large, small])
    assert like(drawn(np.tanh, "float16"), [one, large, small])
    with np.errstate(over="ignore"):
        assert like(drawn(np.exp), [one, less, small])  # e^150 is no float32
    assert like(drawn(lambda x: np.sin(x * 1e6)), [one, small])  # far from zero the last bits decide
    assert like(drawn(lambda x: x > 3), [one, large, small])
    assert like(drawn(lambda x: np.round(x * 1e7) % 2 > 0), [one])
    assert like(drawn(np.sin), [one, large, small])
    assert like(drawn(np.sin, precision="bf16"), [one, small])  # far from zero not as steady as at sigma 1


def test_every_open_size_is_run_at_two_sizes_where_its_range_has_them() -> None:
    model = imported({"x": (("n", "length"), "float32")}, lambda bb, x: x)
    model = replace(model, ranges={"n": (4, 4), "length": (300, 400)}, typical={"n": 4, "length": 300})

    def sizes(step: int) -> list[tuple[int, ...]]:
        def engine(inputs: Arrays) -> dict[str, np.ndarray]:
            if inputs["x"].shape[1] % step:
                raise UnsupportedModel(f"a multiple of {step}")
            return {"y": inputs["x"]}

        found = cases_of(replace(model, engine=engine), seed=0)
        return [v.shape for k, v in found.items() if ".input." in k]

    assert sizes(1) == [(4, 300), (4, 301)]
    assert sizes(20) == [(4, 320), (4, 300)]
    assert sizes(300) == [(4, 300), (4, 300)], "no rung has two sizes that it takes"
