"""TFLite files that nobody vouches for: one sentence, in bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("ai_edge_litert", reason="it writes the files: pip install halo_tvm[tflite]")

from tflite_files import GraphFile, write_model

from halo_tvm.errors import HaloError, UnsupportedModel
from halo_tvm.importers import import_model


def small(change=lambda g: None, **grid: object) -> bytes:
    """x0 [1, 4] int8 times weights [3, 4] int8, each on its grid, and a reshape; `change` spoils it."""
    g = GraphFile()
    x = g.input((1, 4), "int8", ((0.5,), (3,), 0))
    w = g.const(np.arange(12).reshape(3, 4), "int8", ((0.1, 0.2, 0.3), (0, 0, 0), 0))
    y = g.op(
        "FULLY_CONNECTED", [x, w, -1], [g.tensor((1, 3), "int8", grid=((0.25,), (0,), 0))], "FullyConnectedOptions"
    )
    out = g.op("RESHAPE", [*y, g.const([3, 1], "int32")], [g.tensor((3, 1), "int8", grid=((0.25,), (0,), 0))])
    change(g)
    return g.write(out)


def quantised(index: int, **fields: object):
    def change(g: GraphFile) -> None:
        for key, value in fields.items():
            setattr(g.tensors[index].quantization, key, value)

    return change


def shaped(index: int, shape: list[int]):
    return lambda g: setattr(g.tensors[index], "shape", shape)


def input_of(operator: int, inputs: list[int]):
    return lambda g: setattr(g.operators[operator], "inputs", inputs)


SPOILED = {
    "a scale of zero": (quantised(1, scale=[0.1, 0.0, 0.3]), "a scale of 't1' that is not above 0"),
    "a scale of NaN": (quantised(0, scale=[float("nan")]), "a scale of 't0' that is not above 0"),
    "an axis out of range": (quantised(1, quantizedDimension=7), "quantisation axis 7 for 't1' of 2 dimensions"),
    "scales of another number": (quantised(1, quantizedDimension=1), "3 scales and 3 zero points for 't1' of shape"),
    "a zero point out of range": (quantised(0, zeroPoint=[1000]), "expected zero points within int8"),
    "a huge shape": (shaped(0, [1 << 30, 1 << 30]), "of shape [1073741824, 1073741824]"),
    "data of another size": (shaped(1, [4, 4]), "12 bytes for 't1' of shape [4, 4] in int8"),
    "a tensor that is not there": (input_of(0, [0, 99, -1]), "FULLY_CONNECTED of tensor 99 of 5"),
    "a tensor made later": (input_of(0, [4, 1, -1]), "its input 't4' is made by no earlier operator"),
    "too few inputs": (input_of(0, [0]), "expected an input 1, found 1 inputs"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_is_wrong_is_said(case: str, tmp_path: Path):
    change, message = SPOILED[case]
    file = tmp_path / "spoiled.tflite"
    file.write_bytes(small(change))
    with pytest.raises(UnsupportedModel) as refusal:
        import_model(str(file))
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_graphs_that_call_themselves_are_refused(tmp_path: Path):
    graphs = []
    for other in (1, 0):
        g = GraphFile()
        x = g.input((1,), "bool")
        options = {"thenSubgraphIndex": other, "elseSubgraphIndex": other}
        graphs.append((g, g.op("IF", [x], [g.tensor((1,), "bool")], "IfOptions", **options)))
    file = tmp_path / "cycle.tflite"
    file.write_bytes(write_model(graphs, {"serving_default": 0}))
    with pytest.raises(UnsupportedModel, match="graph 0, which calls itself"):
        import_model(str(file))


def test_an_operator_nobody_writes_is_named_with_its_places(tmp_path: Path):
    g = GraphFile()
    x = g.input((4,))
    file = tmp_path / "unknown.tflite"
    file.write_bytes(g.write(g.op("SKIP_GRAM", [x], [g.tensor((4,))])))
    with pytest.raises(UnsupportedModel, match=r"found SKIP_GRAM \(no writer\) \(1: t1\) in unknown.tflite"):
        import_model(str(file))


def test_signatures_are_chosen_by_name(tmp_path: Path):
    graphs = []
    for operator in ("NEG", "ABS"):
        g = GraphFile()
        graphs.append((g, g.op(operator, [g.input((4,))], [g.tensor((4,))])))
    file = tmp_path / "two.tflite"
    file.write_bytes(write_model(graphs, {"negate": 0, "absolute": 1}))
    x = np.float32([1, -2, 3, -4])
    assert (import_model(f"{file}:absolute").engine({"x0": x})["y0"] == abs(x)).all()
    with pytest.raises(HaloError, match="a choice among the 2 signatures of two.tflite.*absolute, negate"):
        import_model(str(file))
    with pytest.raises(HaloError, match="absolute"):
        import_model(f"{file}:absolut")


SOUND = small()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4),
    length=st.one_of(st.just(len(SOUND)), st.integers(0, len(SOUND))),
)
def test_changed_bytes_end_in_a_model_or_a_sentence(flips, length, tmp_path: Path):
    data = bytearray(SOUND[:length])
    for place, value in flips:
        if place < len(data):
            data[place] = value
    file = tmp_path / "changed.tflite"
    file.write_bytes(bytes(data))
    try:
        import_model(str(file))
    except HaloError as refusal:
        assert "\n" not in str(refusal)
