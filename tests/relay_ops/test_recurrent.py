"""halo.lstm, halo.gru, halo.rnn through the ONNX importer and the whole pipeline, against onnxruntime."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

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
from halo_tvm.targets import TARGETS, read_host, resolve

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = (
    "Relu",
    "Tanh",
    "Sigmoid",
    "Affine",
    "LeakyRelu",
    "ThresholdedRelu",
    "ScaledTanh",
    "HardSigmoid",
    "Elu",
    "Softsign",
    "Softplus",
)
TAKES = {
    "Affine": (0.5, 0.1),
    "LeakyRelu": (0.2, None),
    "ThresholdedRelu": (0.3, None),
    "ScaledTanh": (0.9, 0.8),
    "HardSigmoid": (0.3, 0.4),
    "Elu": (0.7, None),
}


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
            "W": (d, g * self.h, self.i),
            "R": (d, g * self.h, self.h),
            "B": (d, 2 * g * self.h),
            "sequence_lens": (self.b,),
            "initial_h": state,
            "initial_c": state,
            "P": (d, 3 * self.h),
        }
        names = ["X", "W", "R", "B", "sequence_lens", "initial_h"] + (["initial_c", "P"] if self.op == "LSTM" else [])
        values = {name: (0.4 * rng.standard_normal(shapes[name])).astype(self.dtype) for name in names}
        values["sequence_lens"] = np.array([1 + (self.s + n) % self.s for n in range(self.b)], "int32")
        used = ("X", "W", "R", *self.given)
        kept = ("W", "R", "B", "P") if self.constant else ()
        outputs = ["Y", "Y_h", "Y_c"][: 3 if self.op == "LSTM" else 2]
        node = helper.make_node(
            self.op,
            [name if name in used else "" for name in names],
            outputs,
            hidden_size=self.h,
            direction=self.direction,
            **dict(self.attrs),
        )
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        axes = {"X": ("b", "s") if layout else ("s", "b"), "initial_h": "b" if layout else "db"}
        axes["initial_c"], axes["sequence_lens"] = axes["initial_h"], "b"

        def info(name: str) -> onnx.ValueInfoProto:
            shape = list(values[name].shape)
            for axis, dim in enumerate(axes.get(name, ())):
                shape[axis] = dim if self.symbolic and dim != "d" else shape[axis]
            return helper.make_tensor_value_info(name, TensorProto.INT32 if name == "sequence_lens" else element, shape)

        graph = helper.make_graph(
            [node],
            "layer",
            [info(name) for name in names if name in used and name not in kept],
            [helper.make_tensor_value_info(name, element, None) for name in outputs],
            [onnx.numpy_helper.from_array(values[name], name) for name in names if name in used and name in kept],
        )
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
        if not np.isfinite(expected).all():
            continue  # unbounded activations that feed themselves: nothing to compare
        np.testing.assert_allclose(got, expected, atol=tolerance * max(1.0, np.abs(expected).max(initial=0)), rtol=0)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    op = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    optional = ["B", "sequence_lens", "initial_h"] + (["initial_c", "P"] if op == "LSTM" else [])
    attrs: dict[str, object] = {}
    if draw(st.booleans()):
        attrs["clip"] = 0.35  # no value of alpha: at a threshold, rounding would decide
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
        op,
        draw(st.integers(1, 6)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 9)),
        draw(st.sampled_from([1, 5, 16, 17, 32, 33, 40])),
        direction,
        tuple(name for name in optional if draw(st.booleans())),
        tuple(attrs.items()),
        draw(st.booleans()),
        constant=draw(st.booleans()),
    )


@pytest.mark.slow
@settings(max_examples=4, deadline=None, derandomize=True)
@given(layers())
def test_any_layer_equals_onnxruntime(layer: Layer) -> None:
    check(layer)


def reference_evaluator(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """onnx's own evaluator: it knows layout and float64, and no clip, lengths or other activations."""
    return onnx.reference.ReferenceEvaluator(model).run(None, inputs)


@pytest.mark.parametrize(
    "layer",
    [
        Layer(
            "LSTM",
            direction="bidirectional",
            b=3,
            h=33,
            given=("B", "sequence_lens", "initial_h", "initial_c", "P"),
        ),
        Layer("LSTM", b=2, attrs=(("input_forget", 1), ("clip", 0.3)), given=("B",)),
        Layer("GRU", b=3, direction="reverse", given=("B", "sequence_lens"), attrs=(("linear_before_reset", 1),)),
        Layer("GRU", b=3, h=17, direction="bidirectional", given=("B", "initial_h"), constant=False),
        Layer("RNN", h=40, given=(), opset=22, symbolic=False),
    ],
)
def test_layer_equals_onnxruntime(layer: Layer) -> None:
    check(layer)


@pytest.mark.parametrize("op", sorted(GATES))
def test_layout_of_batches_first(op: str) -> None:
    given = ("B", "initial_h", "initial_c") if op == "LSTM" else ("B", "initial_h")
    check(Layer(op, b=2, given=given, attrs=(("layout", 1),)), reference_evaluator)


def test_float64_keeps_its_precision() -> None:
    check(Layer("LSTM", b=2, h=19, dtype="float64"), reference_evaluator, tolerance=1e-14)


def test_float16_computes_in_float32() -> None:
    layer = Layer("GRU", h=20, s=30, given=("B",))
    model, inputs = layer.model()
    expected = theirs(model, inputs)
    half, half_inputs = Layer("GRU", h=20, s=30, given=("B",), dtype="float16").model()
    for got, wanted in zip(ours(half, half_inputs), expected, strict=True):
        assert got.dtype == np.float16
        assert np.abs(got - wanted).max() < 5e-3


def test_quantised_weights_and_states() -> None:
    """DynamicQuantizeLSTM rounds as onnxruntime does, so only the order of sums differs."""
    layer = Layer("LSTM", s=12, h=32, i=8, direction="bidirectional", given=("B",))
    model, inputs = layer.model()
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    extra = []
    for name in "WR":
        turned = weights[name].transpose(0, 2, 1)
        # of seven bits: onnxruntime's sums of pairs saturate at sixteen bits on CPUs with AVX2 alone
        scale = np.abs(turned).max(axis=(1, 2)) / 63
        extra += [
            onnx.numpy_helper.from_array(np.rint(turned / scale[:, None, None]).astype("int8"), name),
            onnx.numpy_helper.from_array(scale.astype("float32"), f"{name}_scale"),
            onnx.numpy_helper.from_array(np.zeros(2, "int8"), f"{name}_zero"),
        ]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        ["X", "W", "R", "B", "", "", "", "", "W_scale", "W_zero", "R_scale", "R_zero"],
        ["Y", "Y_h", "Y_c"],
        domain="com.microsoft",
        hidden_size=32,
        direction="bidirectional",
    )
    graph = helper.make_graph(
        [node],
        "layer",
        model.graph.input,
        model.graph.output,
        [onnx.numpy_helper.from_array(weights["B"], "B"), *extra],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    quantised = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    plain = theirs(model, inputs)
    for got, expected, exact in zip(ours(quantised, inputs), theirs(quantised, inputs), plain, strict=True):
        error = np.abs(got - expected).max()
        assert error < 0.2 * np.abs(expected - exact).max()  # far nearer to it than the layer with exact numbers


@pytest.mark.slow
def test_bytes_are_the_same_numbers_on_every_instruction_set() -> None:
    """Sums of bytes are exact, so what instructions make them shows nowhere but in time."""
    case = next(c for c in OPERATORS["lstm"].cases() if "has_r_scale" in c["attrs"] and len(c["args"]) == 10)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(a).astype("float32") if isinstance(a, tuple) else a for a in case["args"]]
    params = [relax.Var(f"x{n}", relax.TensorType(a.shape, str(a.dtype))) for n, a in enumerate(arrays)]
    call = OPERATORS["lstm"].call(*params, **case["attrs"])
    expected = OPERATORS["lstm"].reference(*arrays, **case["attrs"])
    levels = [isa for isa in TARGETS["x86"].isas if isa.requires <= read_host().flags]
    assert levels or platform.machine() != "x86_64"
    for isa in levels or [resolve("cpu").isa]:
        target = replace(resolve("cpu"), isa=isa)
        for part, wanted in zip(
            compiled(call, params, target)(*map(tvm.runtime.tensor, arrays)), expected, strict=True
        ):
            np.testing.assert_allclose(part.numpy(), wanted, atol=2e-6)


def compiled(call, params, target=None):
    """`call` of `params` as a function of the virtual machine."""
    from executables import executable_of

    from halo_tvm.passes.schedule import schedule_functions

    target, operator = target or resolve("cpu"), OPERATORS[call.op.name.removeprefix("relax.halo.")]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit(call)
            out = bb.emit_output(bb.emit(operator.expand(bb, bb.lookup_binding(out))))
        bb.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(relax.transform.DeadCodeElimination()(bb.get()))
    mod, report = schedule_functions(mod, target)
    assert report.rules.get("recurrence") == 1
    executable = executable_of(mod, target, plan_memory=False)
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def test_no_steps_and_impossible_lengths() -> None:
    """A sequence of length 0 returns the initial state; lengths beyond the sequence read no foreign memory."""
    s, h = tvm.tirx.Var("s", "int64"), 20
    shapes = [(s, 2, 3), (2, 4 * h, 3), (2, 4 * h, h), (2,), (2, 2, h), (2, 2, h)]
    params = [
        relax.Var(f"x{n}", relax.TensorType(shape, "int32" if n == 3 else "float32")) for n, shape in enumerate(shapes)
    ]
    attrs = {f"has_{name}": True for name in ("lengths", "initial_h", "initial_c")}
    attrs |= {"hidden": h, "direction": "bidirectional"}
    main = compiled(OPERATORS["lstm"].call(*params, **attrs), params)
    rng = np.random.default_rng(0)
    for steps, lengths in ((0, [0, 0]), (4, [9, -3])):
        arrays = [rng.standard_normal([steps if d is s else d for d in shape]).astype("float32") for shape in shapes]
        arrays[3] = np.array(lengths, "int32")
        got = [part.numpy() for part in main(*map(tvm.runtime.tensor, arrays))]
        for part, expected in zip(got, OPERATORS["lstm"].reference(*arrays, **attrs), strict=True):
            np.testing.assert_allclose(part, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("rnn", {"activations": ["relu"]}),
        ("rnn", {"activations": ["hard_sigmoid"]}),
        ("rnn", {"clip": 0.5}),
        ("lstm", {"cell_clip": 0.5}),
    ],
)
def test_nan_stays_in_what_is_bounded(op: str, attrs: dict[str, object]) -> None:
    """Of the second row, from the second step on."""
    h, gates = 16, GATES[op.upper()]
    shapes = ((3, 2, 4), (1, gates * h, 4), (1, gates * h, h))
    params = [relax.Var(f"x{n}", relax.TensorType(shape, "float32")) for n, shape in enumerate(shapes)]
    arrays = [np.random.default_rng(0).standard_normal(shape).astype("float32") for shape in shapes]
    arrays[0][1, 1, 0] = np.nan
    main = compiled(OPERATORS[op].call(*params, hidden=h, **attrs), params)
    found = [part.numpy() for part in main(*map(tvm.runtime.tensor, arrays))]
    for part, wanted in zip(found, OPERATORS[op].reference(*arrays, hidden=h, **attrs), strict=True):
        assert np.isnan(wanted[..., 1, :]).any() and np.isfinite(wanted[..., 0, :]).all()
        np.testing.assert_allclose(part, wanted, atol=2e-6)


X, W, R = (relax.TensorType(shape, "float32") for shape in ((5, 2, 3), (1, 16, 3), (1, 16, 4)))


@pytest.mark.parametrize(
    ("types", "attrs", "sentence"),
    [
        ((X, W), {"hidden": 4}, "3 arguments expected"),
        ((X, W, R), {"hidden": 5}, "w must be"),
        ((X, W, R), {}, "add hidden"),
        ((X, W, R), {"hidden": 4, "colour": 1}, "leave out colour"),
        ((X, W, R), {"hidden": 4, "direction": "sideways"}, "direction must be one of"),
        ((X, W, R), {"hidden": 4, "activations": ["tanh"]}, "3 activations of"),
        ((X, W, R), {"hidden": 4, "activations": ["tanh", "tanh", "cube"]}, "3 activations of"),
        ((X, W, R), {"hidden": 0}, "at least 1"),
        ((X, W, R, relax.TensorType((2,), "float32")), {"hidden": 4, "has_lengths": True}, "lengths must be"),
        ((relax.TensorType((5, 2, 3), "int32"), W, R), {"hidden": 4}, "x must be"),
    ],
)
def test_type_rule_says_what_is_wrong(types, attrs, sentence: str) -> None:
    params = [relax.Var(f"x{n}", ty) for n, ty in enumerate(types)]
    with pytest.raises(Exception, match=sentence):
        relax.BlockBuilder().normalize(OPERATORS["lstm"].call(*params, **attrs))


def test_rule_declines_foreign_functions_and_partial_vectors() -> None:
    from halo_tvm.errors import Declined
    from halo_tvm.tir_schedules import RULES

    target = resolve("cpu")
    foreign = tvm.te.create_prim_func([tvm.te.placeholder((3,), name="x")])
    with pytest.raises(Declined, match="serves halo.recurrence"):
        RULES["recurrence"].default(foreign, target)
    gates = relax.Var("gates", relax.TensorType((5, 2, 9), "float32"))
    r = relax.Var("r", relax.TensorType((1, 3, 27), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [gates, r]):
        bb.emit_func_output(bb.emit(OPERATORS["recurrence"].call(gates, r, cell="rnn", block=3, hidden=9)))
    func = next(
        f for _, f in relax.transform.LegalizeOps()(bb.get()).functions_items() if isinstance(f, tvm.tirx.PrimFunc)
    )
    with pytest.raises(Declined, match="whole vectors"):
        RULES["recurrence"].default(func, target)


def test_weights_are_rearranged_once() -> None:
    """Nothing but the product and the recurrence runs; what is done to weights is written as recipes."""
    model, _ = Layer("GRU", h=24, given=("B",), attrs=(("linear_before_reset", 1),)).model()
    program = compile_in_process(import_proto(model, name="layer"), threads=1)
    rules = [entry.rule for entry in program.reports.schedule.functions]
    assert sorted(rules) == ["gemm", "recurrence"]
    assert program.reports.optimise.others["hoist_weights"]["hoisted"]["nn.pad"] > 0
