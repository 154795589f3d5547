"""Recurrent layers: LSTM and RNN over a sequence or of one step, and SVDF. Their states are variables of the file.

The cell state of an LSTM may be bounded (files of Keras bound it to 10), which ONNX's operator cannot say: such a layer
is written in the domain of the importer of ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..onnx import BEYOND
from ._dynamic import accept
from ._node import Node, Refused, Result
from ._registry import writes
from .variables import keep, kept

_INPUT, _FORGET, _CELL, _OUTPUT = range(4)  # the gates in the file's order
_GATES = (_INPUT, _OUTPUT, _FORGET, _CELL)  # in ONNX's
_PEEPHOLES = (_INPUT, _OUTPUT, _FORGET)
_FULL = 0  # kernel_type of an LSTM with the inputs of a whole layer


@writes("UNIDIRECTIONAL_SEQUENCE_LSTM", "LSTM")
def lstm(node: Node) -> Result:
    """Inputs: x, weights (1..4) and recurrent weights (5..8) by gate i, f, c, o, peepholes (9..11) of i, f, o, biases
    (12..15), projection, the states h (18) and c (19), norms. Without a gate i it is 1 - f.
    """
    if node.option("kernel_type") != _FULL:
        raise Refused("expected the kernel of a whole layer, found the basic one")
    for places, what in ((range(16, 18), "a projection"), (range(20, 24), "normalised gates")):
        if any(node.has(i) for i in places):
            raise Refused(f"expected an LSTM without {what}, found one")
    if node.flag("diagonal_recurrent_tensors"):
        raise Refused("expected whole recurrent weights, found their diagonals")
    function = _function(node)
    coupled = not node.has(1 + _INPUT)
    weights, recurrent, biases = (
        np.concatenate([_of_gate(node, first, gate, coupled) for gate in _GATES]) for first in (1, 5, 12)
    )
    given = [weights, recurrent, np.concatenate([biases, np.zeros_like(biases)])]
    peepholes = []
    if node.has(10):
        # The file has them by i, f, o.
        peepholes = [_of_gate(node, 9, {_OUTPUT: 2}.get(gate, gate), coupled) for gate in _PEEPHOLES]
    h, c = kept(node, 18), kept(node, 19)
    inputs = [*(node.const(w[None]) for w in given), "", _stacked(node, h), _stacked(node, c)]
    inputs += [node.const(np.concatenate(peepholes)[None])] if peepholes else []
    attributes: dict[str, object] = {"hidden_size": recurrent.shape[1]}
    if function != "Tanh":
        attributes["activations"] = ["Sigmoid", function, function]
    if node.real("cell_clip") > 0:
        attributes |= {"cell_clip": node.real("cell_clip"), "domain": BEYOND}
    return _layer(node, "LSTM", inputs, attributes, (18, 19))


@writes("UNIDIRECTIONAL_SEQUENCE_RNN", "RNN")
def rnn(node: Node) -> Result:
    """Inputs: x, weights, recurrent weights, bias, the state."""
    weights, recurrent, bias = (_floats(node, i) for i in (1, 2, 3))
    given = [weights, recurrent, np.concatenate([bias, np.zeros_like(bias)])]
    inputs = [*(node.const(w[None]) for w in given), "", _stacked(node, kept(node, 4))]
    return _layer(node, "RNN", inputs, {"hidden_size": len(bias), "activations": [_function(node)]}, (4,))


@writes("SVDF")
def svdf(node: Node) -> Result:
    """Rows of k by `rank` filters a unit, [filters, k]; each filter's last results by weights of its own, [filters, m].

    Inputs: x, filters, weights over time, perhaps a bias, the state: results of the last m - 1 calls and the oldest.
    """
    _check(node, 2)
    features, times, rank = _floats(node, 1), _floats(node, 2), node.positive("rank")[0]
    filters, memory = times.shape
    if len(features) != filters or filters % rank:
        raise Refused(f"expected {filters} filters in groups of {rank}, found {len(features)}")
    now = node.emit("MatMul", node.x(0), node.const(features.T.copy()))
    past = node.emit("Reshape", kept(node, 4), node.sizes([-1, filters, memory]))
    past = node.sliced(past, 2, 1, memory)
    every = node.emit("Concat", past, node.emit("Unsqueeze", now, node.sizes([-1])), axis=2)
    keep(node, 4, node.emit("Reshape", every, node.sizes([-1, filters * memory])))
    weighted = node.emit("ReduceSum", node.emit("Mul", every, node.const(times)), node.sizes([2]), keepdims=0)
    by_unit = node.emit("Reshape", weighted, node.sizes([-1, filters // rank, rank]))
    out = node.emit("ReduceSum", by_unit, node.sizes([2]), keepdims=0)
    if node.has(3):
        out = node.emit("Add", out, node.x(3))
    return Result(node.activation(node.fused_activation(), out))


def _layer(
    node: Node, kind: str, inputs: Sequence[str], attributes: dict[str, object], states: Sequence[int]
) -> Result:
    """One layer of ONNX; x [b, i], [s, b, i] or [b, s, i] becomes [s, b, i] and back."""
    steps = node.operator.name.startswith("UNIDIRECTIONAL")
    _check(node, 3 if steps else 2)
    x = node.x(0) if steps else node.emit("Unsqueeze", node.x(0), node.sizes([0]))
    batch_first = steps and not node.flag("time_major")
    if batch_first:
        x = node.emit("Transpose", x, perm=[1, 0, 2])
    out, *after = node.emit_all(kind, [x, *inputs], 1 + len(states), **attributes)
    for i, state in zip(states, after):
        keep(node, i, node.emit("Squeeze", state, node.sizes([0])))
    out = node.emit("Squeeze", out, node.sizes([1] if steps else [0, 1]))
    return Result(node.emit("Transpose", out, perm=[1, 0, 2]) if batch_first else out)


def _check(node: Node, rank: int) -> None:
    """Refuses what is no float layer on x of `rank`."""
    found = node.tensor(0)
    if found.dtype != "float32" or len(found.shape) != rank:
        raise Refused(f"expected float32 of {rank} dimensions, found {found.dtype} of {len(found.shape)}")


def _stacked(node: Node, state: str) -> str:
    return node.emit("Unsqueeze", state, node.sizes([0]))


def _of_gate(node: Node, first: int, gate: int, coupled: bool) -> NDArray[Any]:
    """The values that inputs from `first` on hold for `gate`; sigmoid(-x) is 1 - sigmoid(x), so a coupled i is -f."""
    if gate == _INPUT and coupled:
        return -_floats(node, first + _FORGET)
    return _floats(node, first + gate)


def _floats(node: Node, i: int) -> NDArray[Any]:
    """Weights of the file as floats, from their grid where they have one."""
    values, grid = node.constant(i, "weights"), node.tensor(i).grid
    if grid is None or values.dtype.kind == "f":
        return values.astype(np.float32)
    accept(node)
    return grid.floats(values)


def _function(node: Node) -> str:
    """The activation of a cell, in ONNX's words."""
    found = node.fused_activation()
    if found not in ("TANH", "RELU"):
        raise Refused(f"expected the activation TANH or RELU, found {found}")
    return found.capitalize()
