"""Layers that keep a state in the file's variables, beside LiteRT: three calls in a row, from a state that is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="the reference: pip install halo_tvm[tflite]")

from tflite_files import GraphFile

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process

WIDTH, HIDDEN, STEPS = 6, 5, 7
RELU, RELU6, TANH = 1, 3, 4


class Layers(GraphFile):
    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)

    def weights(self, *shape: int) -> int:
        return self.const(self._rng.standard_normal(shape) * 0.6)

    def narrow(self, *shape: int) -> int:
        return self.const(self._rng.integers(-127, 128, shape), "int8", ([0.01], [0], 0))


def lstm(
    g: Layers,
    x: int,
    batch: int,
    *,
    coupled=False,
    peepholes=False,
    narrow=False,
    projected=False,
    single=False,
    **options,
) -> int:
    gates = [False, True, True, True] if coupled else [True] * 4
    matrix = g.narrow if narrow else g.weights
    inputs = [x, *(matrix(HIDDEN, WIDTH) if gate else -1 for gate in gates)]
    inputs += [matrix(HIDDEN, HIDDEN) if gate else -1 for gate in gates]
    inputs += [g.weights(HIDDEN) if peepholes and gate else -1 for gate in (gates[0], True, True)]
    inputs += [g.weights(HIDDEN) if gate else -1 for gate in gates]
    inputs += [g.weights(HIDDEN, HIDDEN) if projected else -1, -1]
    inputs += [g.variable((batch, HIDDEN)), g.variable((batch, HIDDEN)), *([] if single else [-1] * 4)]
    steps = (STEPS, batch) if options.get("timeMajor") else (batch, STEPS)
    out = g.tensor((batch, HIDDEN) if single else (*steps, HIDDEN))
    name, kind = ("LSTM", "LSTM") if single else ("UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTM")
    options = {"fusedActivationFunction": TANH} | options
    return g.op(name, inputs, [out], f"{kind}Options", **options)[0]


def rnn(g: Layers, x: int, batch: int, *, single=False, **options) -> int:
    inputs = [x, g.weights(HIDDEN, WIDTH), g.weights(HIDDEN, HIDDEN), g.weights(HIDDEN), g.variable((batch, HIDDEN))]
    out = g.tensor((batch, HIDDEN) if single else (batch, STEPS, HIDDEN))
    name, kind = ("RNN", "RNN") if single else ("UNIDIRECTIONAL_SEQUENCE_RNN", "SequenceRNN")
    return g.op(name, inputs, [out], f"{kind}Options", **options)[0]


def svdf(g: Layers, x: int, batch: int, *, rank=1, memory=4, bias=True, **options) -> int:
    filters = HIDDEN * rank
    inputs = [x, g.weights(filters, WIDTH), g.weights(filters, memory), g.weights(HIDDEN) if bias else -1]
    inputs.append(g.variable((batch, filters * memory)))
    return g.op("SVDF", inputs, [g.tensor((batch, HIDDEN))], "SVDFOptions", rank=rank, **options)[0]


CASES = {
    "lstm": (lstm, {"cellClip": 10.0}),
    "lstm of bounded cells, time first": (lstm, {"cellClip": 0.3, "timeMajor": True}),
    "lstm without a bound": (lstm, {"fusedActivationFunction": RELU}),
    "coupled lstm with peepholes": (lstm, {"coupled": True, "peepholes": True, "cellClip": 0.5}),
    "lstm with peepholes": (lstm, {"peepholes": True}),
    "lstm of one step": (lstm, {"single": True, "cellClip": 10.0}),
    "rnn": (rnn, {"fusedActivationFunction": TANH}),
    "rnn of one step": (rnn, {"fusedActivationFunction": RELU, "single": True}),
    "svdf": (svdf, {}),
    "svdf of rank 2": (svdf, {"rank": 2, "bias": False, "fusedActivationFunction": RELU6}),
}


def written(kind, batch: int, options: dict[str, object], file: Path) -> str:
    g = Layers()
    single = kind is svdf or options.get("single")
    rows = (STEPS, batch) if options.get("timeMajor") else (batch, STEPS)
    x = g.input((batch, WIDTH) if single else (*rows, WIDTH))
    file.write_bytes(g.write([kind(g, x, batch, **options)]))
    return str(file)


def feeds_of(model, seed: int, state=None) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    drawn = {i.name: (0.5 * r.standard_normal(i.shape)).astype(np.float32) for i in model.inputs}
    return drawn | (state or {})


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(5, 10)
def test_layers(case, batch, tmp_path: Path):
    kind, options = CASES[case]
    model = import_model(written(kind, batch, options, tmp_path / "layer.tflite"))
    net = compile_in_process(model)
    state: dict[str, np.ndarray] = {}
    for call in range(3):
        feeds = feeds_of(model, call, state)
        found, wanted = net(**feeds), model.engine(feeds)
        assert set(found) == set(wanted) > {"y0"}
        for name, want in wanted.items():
            np.testing.assert_allclose(np.asarray(found[name]), want, rtol=2e-5, atol=2e-6, err_msg=name)
        state = {name: want for name, want in wanted.items() if name != "y0"}


def test_weights_in_bytes(tmp_path: Path):
    """LiteRT rounds what meets such weights, the import does not: both are near the floats that the file stands for."""
    model = import_model(written(lstm, 2, {"narrow": True, "cellClip": 10.0}, tmp_path / "narrow.tflite"))
    feeds = feeds_of(model, 0)
    found, wanted = compile_in_process(model)(**feeds), model.engine(feeds)
    error = np.abs(np.asarray(found["y0"]) - wanted["y0"]).max() / np.abs(wanted["y0"]).max()
    assert error <= model.accepted_error == 0.05


def test_without_litert(tmp_path: Path, monkeypatch):
    """A bounded cell is beyond ONNX, so that NumPy is the reference then; all else runs in onnxruntime."""
    monkeypatch.setattr("halo_tvm.importers.tflite._engine.engine", lambda *_: None)
    bounded = import_model(written(lstm, 1, {"cellClip": 1.0}, tmp_path / "bounded.tflite"))
    plain = import_model(written(lstm, 1, {}, tmp_path / "plain.tflite"))
    assert bounded.engine is None and plain.engine is not None
    assert set(plain.engine(feeds_of(plain, 0))) == set(plain.outputs)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"projected": True}, "expected an LSTM without a projection"),
        ({"fusedActivationFunction": RELU6}, "expected the activation TANH or RELU, found RELU6"),
    ],
)
def test_refused(options, said, tmp_path: Path):
    with pytest.raises(UnsupportedModel, match=said):
        import_model(written(lstm, 1, options, tmp_path / "refused.tflite"))
