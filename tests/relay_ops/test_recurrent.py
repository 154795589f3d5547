"""halo.lstm, halo.gru, halo.rnn through the ONNX importer and the whole pipeline, against onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tvm import relax

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process
from halo_tvm.relay_ops import OPERATORS

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu",
    "Softsign", "Softplus",
)  # fmt: skip
TAKES = {
    "Affine": (0.5, 0.1), "LeakyRelu": (0.2, None), "ThresholdedRelu": (0.3, None), "ScaledTanh": (0.9, 0.8),
    "HardSigmoid": (0.3, 0.4), "Elu": (0.7, None),
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """One node with its weights, and how to call it."""

    op: str = "LSTM"
    s: int = 5
    b: int = 1
    i: int = 6
    h: int = 7
    direction: str = "forward"
    given: tuple[str, ...] = ("B", "initial_h", "initial_c")
    attrs: tuple[tuple[str, object], ...] = ()
    symbolic: bool = True
    opset: int = 14
    dtype: str = "float32"
    constant: bool = True  # weights are initialisers; else inputs

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model and inputs for it."""
        rng = np.random.default_rng(self.s + 10 * self.b + 100 * self.h)
        d, g = 2 if self.direction == "bidirectional" else 1, GATES[self.op]
        layout = dict(self.attrs).get("layout", 0)
        state = (self.b, d, self.h) if layout else (d, self.b, self.h)
        shapes = {
            "X": (self.b, self.s, self.i) if layout else (self.s, self.b, self.i),
            "W": (d, g * self.h, self.i), "R": (d, g * self.h, self.h), "B": (d, 2 * g * self.h),
            "sequence_lens": (self.b,), "initial_h": state, "initial_c": state, "P": (d, 3 * self.h),
        }  # fmt: skip
        names = ["X", "W", "R", "B", "sequence_lens", "initial_h"] + (["initial_c", "P"] if self.op == "LSTM" else [])
        values = {name: (0.4 * rng.standard_normal(shapes[name])).astype(self.dtype) for name in names}
        values["sequence_lens"] = np.array([1 + (self.s + n) % self.s for n in range(self.b)], "int32")
        used = ("X", "W", "R", *self.given)
        kept = ("W", "R", "B", "P") if self.constant else ()
        outputs = ["Y", "Y_h", "Y_c"][: 3 if self.op == "LSTM" else 2]
        node = helper.make_node(
            self.op, [name if name in used else "" for name in names], outputs, hidden_size=self.h,
            direction=self.direction, **dict(self.attrs),
        )  # fmt: skip
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        axes = {"X": ("b", "s") if layout else ("s", "b"), "initial_h": "b" if layout else "db"}
        axes["initial_c"], axes["sequence_lens"] = axes["initial_h"], "b"

        def info(name: str) -> onnx.ValueInfoProto:
            shape = list(values[name].shape)
            for axis, dim in enumerate(axes.get(name, ())):
                shape[axis] = dim if self.symbolic and dim != "d" else shape[axis]
            return helper.make_tensor_value_info(
                name, TensorProto.INT32 if name == "sequence_lens" else element, shape
            )

        graph = helper.make_graph(
            [node], "layer", [info(name) for name in names if name in used and name not in kept],
            [helper.make_tensor_value_info(name, element, None) for name in outputs],
            [onnx.numpy_helper.from_array(values[name], name) for name in names if name in used and name in kept],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return model, {name: values[name] for name in names if name in used and name not in kept}


def ours(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    program = compile_in_process(import_proto(model, name="layer"), threads=2)
    return list(program(**inputs).values())


def theirs(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def check(layer: Layer, engine=theirs, tolerance: float = 3e-6) -> None:
    model, inputs = layer.model()
    for got, expected in zip(ours(model, inputs), engine(model, inputs), strict=True):
        assert got.shape == expected.shape and got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, atol=tolerance * max(1.0, np.abs(expected).max(initial=0)), rtol=0)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    op = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    optional = ["B", "sequence_lens", "initial_h"] + (["initial_c", "P"] if op == "LSTM" else [])
    attrs: dict[str, object] = {}
    if draw(st.booleans()):
        attrs["clip"] = 0.3
    if op == "GRU":
        attrs["linear_before_reset"] = int(draw(st.booleans()))
    if op == "LSTM" and draw(st.booleans()):
        attrs["input_forget"] = 1
    if draw(st.booleans()):
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op] * (2 if direction == "bidirectional" else 1)
        names = [draw(st.sampled_from(ACTIVATIONS)) for _ in range(count)]
        attrs["activations"] = names
        for place, kind in enumerate(("activation_alpha", "activation_beta")):
            values = [TAKES.get(name, (None, None))[place] for name in names]
            attrs |= {kind: [v for v in values if v is not None]} if any(v is not None for v in values) else {}
    return Layer(
        op, draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 9)),
        draw(st.sampled_from([1, 5, 16, 17, 32, 33, 40])), direction,
        tuple(name for name in optional if draw(st.booleans())), tuple(attrs.items()),
        draw(st.booleans()), constant=draw(st.booleans()),
    )  # fmt: skip


@settings(max_examples=6, deadline=None, derandomize=True)
@given(layers())
def test_any_layer_equals_onnxruntime(layer: Layer) -> None:
    check(layer)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(layers())
def test_many_layers_equal_onnxruntime(layer: Layer) -> None:
    check(layer)
