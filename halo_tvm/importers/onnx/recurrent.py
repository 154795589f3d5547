"""LSTM, GRU and RNN, and the LSTM with quantised weights of com.microsoft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tvm import relax

from ...relay_ops.parts.recurrent.activations import CELL_ACTIVATIONS
from ...relay_ops.parts.recurrent.cell import CELLS, SCALES
from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ..meaning.recurrence import recurrent_layer
from ._node import Node
from ._registry import BEYOND, converter

# Arguments behind x, w and r, in the order of ONNX's inputs.
_INPUTS = ("bias", "lengths", "initial_h", "initial_c", "peepholes")
_NAMES = {"".join(part.capitalize() for part in name.split("_")).lower(): name for name in CELL_ACTIVATIONS}


@converter("LSTM", "GRU", "RNN")
def recurrent(node: Node) -> tuple[relax.Expr, ...]:
    return _layer(node, node.op.lower(), node.x(1), node.x(2))


@converter("LSTM", domain=BEYOND)
def lstm_of_bounded_cells(node: Node) -> tuple[relax.Expr, ...]:
    """ONNX's LSTM, whose attribute `cell_clip` bounds the cell state besides."""
    return _layer(node, "lstm", node.x(1), node.x(2), cell_clip=float(node.attr("cell_clip")))


@converter("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(node: Node) -> tuple[relax.Expr, ...]:
    """Weights [dirs, i, 4h] with scale and zero point per direction or column, multiplied as the bytes they are.

    Its rounding of the layer's input and state to 8 bits is imitated; onnxruntime rounds the states of a batch on a
    grid that depends on its threads, here every row has its own. Weights that leave int8 once their zero points are
    taken off are restored to float32.
    """
    parts = [_Quantised(node, index, 8 + 2 * place) for place, index in enumerate((1, 2))]
    if all(part.fits for part in parts):
        scales = {name: part.scales() for name, part in zip(SCALES, parts)}
        return _layer(node, "lstm", *(part.levels() for part in parts), scales)
    return _layer(node, "lstm", *(part.restored() for part in parts), quantised=True)


def _layer(
    node: Node,
    name: str,
    w: relax.Expr,
    r: relax.Expr,
    optional: Mapping[str, relax.Expr] | None = None,
    **attrs: object,
) -> tuple[relax.Expr, ...]:
    cell, hidden = CELLS[name], expr_shape(r)[-1]
    declared = node.attr("hidden_size", hidden)
    same = isinstance(hidden, int) and int(declared) == hidden
    node.refuse_unless(same, f"expected hidden_size {hidden}, as the weights say, found {declared}")
    direction = str(node.attr("direction", "forward"))
    batch_first = bool(node.attr("layout", 0))
    x = _turned(node, node.x(0)) if batch_first else node.x(0)
    optional = dict(optional or {})
    for place, kind in enumerate(_INPUTS):
        if kind in cell.optional and node.has(3 + place):
            arg = node.x(3 + place)
            optional[kind] = _turned(node, arg) if batch_first and kind.startswith("initial") else arg
    attrs |= {flag: True for flag in cell.flags if int(node.attr(flag, 0))}
    clip = float(node.attr("clip", 0.0))
    if clip > 0:
        attrs["clip"] = clip
    attrs |= _activations(node, [*cell.defaults] * (2 if direction == "bidirectional" else 1))
    y, *states = recurrent_layer(node, name, x, w, r, optional, direction=direction, **attrs)
    if batch_first:  # [s, dirs, b, h] -> [b, s, dirs, h]; [dirs, b, h] -> [b, dirs, h]
        y = node.emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
        states = [_turned(node, state) for state in states]
    return (y, *states)


def _turned(node: Node, x: relax.Expr) -> relax.Expr:
    """The first two of three axes exchanged."""
    node.refuse_unless(len(expr_shape(x)) == 3, f"expected a tensor of rank 3, found {len(expr_shape(x))}")
    return node.emit(relax.op.permute_dims(x, [1, 0, 2]))


def _activations(node: Node, defaults: list[str]) -> dict[str, object]:
    """activations, alpha and beta, one of each per activation: ONNX lists a value only for those that take one."""
    if not node.has_attr("activations"):
        return {}
    given = [str(name) for name in node.attr("activations")]
    unknown = [name for name in given if name.lower() not in _NAMES]
    node.refuse_unless(not unknown, f"expected activations of {', '.join(CELL_ACTIVATIONS)}, found {unknown}")
    names = [_NAMES[name.lower()] for name in given]
    expected = len(defaults)
    node.refuse_unless(len(names) == expected, f"expected {expected} activations, found {len(names)}")
    attrs: dict[str, object] = {"activations": names}
    for kind in ("alpha", "beta"):
        listed = [float(v) for v in node.attr(f"activation_{kind}", ())]
        takers = [getattr(CELL_ACTIVATIONS[name], kind) for name in names]
        # Some exporters list a value for every activation, whether it takes one or not.
        every = len(listed) == len(names) and len(listed) > sum(default is not None for default in takers)
        rest = iter(listed)
        attrs[kind] = [float(next(rest, default or 0.0)) if every or default is not None else 0.0 for default in takers]
    return attrs


class _Quantised:
    """Input `index` [dirs, k, 4h] in 8 bits, with scales [dirs] or [dirs, 4h] at input `scales`, zero points behind."""

    def __init__(self, node: Node, index: int, scales: int) -> None:
        self._node, self._index = node, index
        self._scale = node.constant(scales).astype("float32")
        zero = node.constant_or(scales + 1, np.zeros(self._scale.shape, "int32")).astype("int32")
        d, k, columns = node.shape(index)
        self._shape = d, columns, k
        self._scale, self._zero = (part.reshape(d, -1, 1) for part in (self._scale, zero))
        centred = self._centred()
        self.fits = centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127

    def levels(self) -> relax.Expr:
        """int8 [dirs, 4h, k], without zero points."""
        return self._constant(self._shape, "int8", lambda: self._centred().astype("int8"), "levels")

    def scales(self) -> relax.Expr:
        """float32 [dirs, 4h]."""
        shape = self._shape[:2]
        return self._constant(shape, "float32", lambda: np.broadcast_to(self._scale[:, :, 0], shape).copy(), "scales")

    def restored(self) -> relax.Expr:
        """float32 [dirs, 4h, k]."""
        return self._constant(
            self._shape, "float32", lambda: self._centred().astype("float32") * self._scale, "restored"
        )

    def _centred(self) -> np.ndarray:
        return np.ascontiguousarray(self._node.constant(self._index).astype("int32").transpose(0, 2, 1)) - self._zero

    def _constant(self, shape: Sequence[int], dtype: str, load: Callable[[], np.ndarray], what: str) -> relax.Expr:
        name = f"{self._node.proto.input[self._index]}_{what}"
        return self._node.graph.expr_of(Constant(tuple(shape), dtype, load, name))
