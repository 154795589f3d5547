"""ONNX for convolution, pooling and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ..errors import UnsupportedModel
from ..relay_ops.operator import attrs_of
from ..relay_ops.parts.recurrent.activations import CELL_ACTIVATIONS
from ..relay_ops.parts.recurrent.cell import CELLS, Options, options_of
from ._graph import Graph, attributes, dims_of, dtype_of
from ._relax_ops import Converter, Value

FLOAT, INT32 = 1, 6  # ONNX's numbers of the types


def _convolution(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "layout", "strides", "dilations", "pads", "groups", "zero")
    kernel = dims_of(call.args[1])
    x, weight = args[:2]
    if "zero" in attrs:  # bytes
        x = g.emit("Sub", g.emit("Cast", x, to=FLOAT), g.constant(np.float32(attrs["zero"])))
    if attrs["layout"] == "last":
        weight = g.once("Transpose", weight, perm=[len(kernel) - 1, len(kernel) - 2, *range(len(kernel) - 2)])
        kernel = [kernel[-1], kernel[-2], *kernel[:-2]]
    elif attrs["layout"] != "first":
        raise UnsupportedModel(f"weights in layout {attrs['layout']!r}: export the model before it is optimised")
    windows = {"strides": attrs["strides"], "dilations": attrs["dilations"], "pads": attrs["pads"]}
    shape = [int(k) for k in kernel[2:]]
    return _channels_first(
        g, call, lambda x: g.emit("Conv", x, weight, *args[2:], kernel_shape=shape, group=attrs["groups"], **windows), x
    )


def _pooling(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "layout", "kind", "kernel", "strides", "dilations", "pads", "ceil", "include_pad", "p")
    windows = {"kernel_shape": attrs["kernel"], "strides": attrs["strides"], "pads": attrs["pads"]}
    windows |= {"ceil_mode": int(bool(attrs.get("ceil")))}
    if attrs["kind"] == "max":
        op = "MaxPool"
    elif attrs["kind"] == "average":
        op, windows = "AveragePool", windows | {"count_include_pad": int(bool(attrs.get("include_pad")))}
    else:
        op, windows = "LpPool", windows | {"p": int(attrs["p"])}
    if any(int(d) != 1 for d in attrs["dilations"]):
        if op == "AveragePool" and g.spelling.opset < 19:
            raise UnsupportedModel("an average over windows with holes, which ONNX has from opset 19 on: give --opset")
        windows["dilations"] = attrs["dilations"]
    return _channels_first(g, call, lambda x: g.emit(op, x, **windows), args[0])


def _channels_first(g: Graph, call: relax.Call, emit: Callable[[str], str], x: str) -> str:
    """`emit` of x with the channels where ONNX has them."""
    rank = len(dims_of(call))
    if attrs_of(call)["layout"] == "first":
        return emit(x)
    y = emit(g.emit("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]))
    return g.emit("Transpose", y, perm=[0, *range(2, rank), 1])


def is_beyond(call: relax.Call) -> bool:
    """Whether `call` is a recurrent layer that no layer of ONNX equals."""
    return call.op.name.rpartition(".")[2] in CELLS and bool(_beyond(_options(call)))


def _options(call: relax.Call) -> Options:
    kind = call.op.name.rpartition(".")[2]
    return options_of(CELLS[kind], {k: v for k, v in attrs_of(call).items() if k != "layer"})


def _beyond(options: Options) -> str:
    """What ONNX has no word for; nothing for most layers."""
    if options.rounds:
        return "a layer whose input is quantised as it runs"
    return "a layer whose cell state is bounded" if options.cell_clip else ""


def _recurrent(g: Graph, call: relax.Call, args: list[Value]) -> tuple[str, ...]:
    """LSTM, GRU and RNN: the gates of the operators here are in ONNX's order."""
    options = _options(call)
    if reason := _beyond(options):
        raise UnsupportedModel(reason)
    given = dict(zip(options.names(), args))
    optional = [n for n in ("bias", "lengths", "initial_h", "initial_c", "peepholes") if n in options.cell.optional]
    inputs = [given["x"], given["w"], given["r"], *(given.get(name, "") for name in optional)]
    lengths = optional.index("lengths") + 3
    if inputs[lengths] and dtype_of(call.args[options.names().index("lengths")]) != "int32":
        inputs[lengths] = g.once("Cast", inputs[lengths], to=INT32)
    while not inputs[-1]:
        inputs.pop()
    # ONNX spells Sigmoid, HardSigmoid, ThresholdedRelu: words without what lies between them.
    names = ["".join(part.capitalize() for part in name.split("_")) for name, _, _ in options.activations]
    takes = [CELL_ACTIVATIONS[name] for name, _, _ in options.activations]
    alphas = [a for (_, a, _), kind in zip(options.activations, takes) if kind.alpha is not None]
    betas = [b for (_, _, b), kind in zip(options.activations, takes) if kind.beta is not None]
    attrs = {"hidden_size": options.hidden, "direction": options.direction, "activations": names}
    attrs |= {"activation_alpha": alphas or None, "activation_beta": betas or None, "clip": options.clip or None}
    if "input_forget" in options.flags:
        attrs["input_forget"] = 1
    if options.cell.name == "gru":
        attrs["linear_before_reset"] = int("linear_before_reset" in options.flags)
    return g.emit_many(options.cell.name.upper(), *inputs, outputs=1 + options.cell.states, **attrs)


CONVERTERS: dict[str, Converter] = {
    "relax.halo.convolution": _convolution,
    "relax.halo.pooling": _pooling,
    "relax.halo.lstm": _recurrent,
    "relax.halo.gru": _recurrent,
    "relax.halo.rnn": _recurrent,
}
