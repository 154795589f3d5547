"""ONNX for the `halo` operators: a table from operator name to converter, as in `_relax_ops.py`.

Every converter names the attributes it understands; an attribute beyond them is refused, never dropped.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from ..errors import UnsupportedModel
from . import _nbits
from ._graph import Graph, attributes, dims_of, dtype_of
from ._relax_ops import Converter, Value, gelu, silu

ACTIVATIONS: dict[str, Converter] = {
    "gelu": lambda g, call, args: gelu(g, args[0], dtype_of(call), approximate=False),
    "gelu_tanh": lambda g, call, args: gelu(g, args[0], dtype_of(call), approximate=True),
    "relu": lambda g, call, args: g.emit("Relu", args[0]),
    "relu2": lambda g, call, args: _squared_relu(g, args[0]),
    "silu": lambda g, call, args: silu(g, args[0]),
}


def _squared_relu(g: Graph, x: Value) -> str:
    positive = g.emit("Relu", x)
    return g.emit("Mul", positive, positive)


def matmul_weight(g: Graph, x: str, weight: relax.Expr, layout: str) -> str:
    """x @ weight for a weight in layout "kn" or "nk"."""
    if layout not in ("kn", "nk"):
        raise UnsupportedModel(f"weights in layout {layout!r}: export the model before it is optimised")
    name = g.weights.get(weight)
    if name is not None and len(dims_of(weight)) == 2:
        k, n = (int(dim) for dim in dims_of(weight)[:: -1 if layout == "nk" else 1])
        if _nbits.takes(g.spelling.numbers, k):
            return _nbits.product(g, x, name, k, n, transposed=layout == "nk")
    return g.emit("MatMul", x, g.weight_kn(weight, layout))


def _linear(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "layout", "n")
    y = matmul_weight(g, args[0], call.args[1], attrs["layout"])
    return g.emit("Add", y, args[2]) if len(args) == 3 else y


def _matmul(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "transpose_a", "transpose_b")

    def side(index: int, transposed: object) -> str:
        rank = len(dims_of(call.args[index]))
        perm = [*range(rank - 2), rank - 1, rank - 2]
        return g.emit("Transpose", args[index], perm=perm) if transposed else args[index]

    return g.emit("MatMul", side(0, attrs.get("transpose_a")), side(1, attrs.get("transpose_b")))


def _experts(g: Graph, call: relax.Call, args: list[Value]) -> str:
    """Row t of every [top, k] times matrix t. Rows that choose have no spelling: it would copy what each one chose."""
    attrs = attributes(call, "layout", "n", "experts")
    if attrs["layout"] != "nk" or len(args) != 3 or not _in_order(g, call.args[1], int(str(attrs["experts"]))):
        raise UnsupportedModel("rows that choose among experts")
    rows = g.emit("Transpose", args[0], perm=[1, 0, 2])
    product = g.emit("MatMul", rows, g.emit("Transpose", args[2], perm=[0, 2, 1]))
    return g.emit("Transpose", product, perm=[1, 0, 2])


def _in_order(g: Graph, ids: relax.Expr, experts: int) -> bool:
    """Whether every row of `ids` is 0, 1, ... `experts` - 1."""
    views = ("relax.reshape", "relax.broadcast_to")
    while isinstance(ids, relax.Var) or (isinstance(ids, relax.Call) and getattr(ids.op, "name", "") in views):
        if isinstance(ids, relax.Call) and int(dims_of(ids)[-1]) != experts:
            return False
        ids = ids.args[0] if isinstance(ids, relax.Call) else g.bound.get(ids)
    if isinstance(ids, ir.GenericConst):
        return bool((ids.value.numpy() == np.arange(experts)).all())
    if not isinstance(ids, relax.Call) or getattr(ids.op, "name", "") != "relax.arange":
        return False
    return [int(bound.value) for bound in ids.args] == [0, experts, 1]


def _ffn(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "activation", "gated", "bias", "layout")
    activation = ACTIVATIONS.get(str(attrs["activation"]))
    if activation is None:
        raise UnsupportedModel(f"activation {attrs['activation']!r}; known are {', '.join(sorted(ACTIVATIONS))}")
    step = 2 if attrs.get("bias") else 1

    def project(x: str, index: int) -> str:
        at = 1 + index * step
        y = matmul_weight(g, x, call.args[at], attrs["layout"])
        return g.emit("Add", y, args[at + 1]) if step == 2 else y

    hidden = activation(g, call, [project(args[0], 0)])
    if attrs.get("gated"):
        hidden = g.emit("Mul", hidden, project(args[0], 1))
        return project(hidden, 2)
    return project(hidden, 1)


def _layer_norm(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "eps")
    x = g.emit("Add", args[0], args[3]) if len(args) == 4 else args[0]
    return g.emit("LayerNormalization", x, *args[1:3], axis=-1, epsilon=float(attrs["eps"]))


def _rms_norm(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "eps")
    x = g.emit("Add", args[0], args[2]) if len(args) == 3 else args[0]
    if g.spelling.rms_norm == "op":
        return g.emit("RMSNormalization", x, args[1], axis=-1, epsilon=float(attrs["eps"]))
    if g.spelling.rms_norm == "contrib":
        # onnxruntime keeps this operator under the default domain.
        return g.emit("SimplifiedLayerNormalization", x, args[1], axis=-1, epsilon=float(attrs["eps"]))
    dtype = dtype_of(call)
    mean = g.emit("ReduceMean", g.emit("Mul", x, x), g.vector([-1]), keepdims=1)
    root = g.emit("Sqrt", g.emit("Add", mean, g.constant(np.array(attrs["eps"], dtype))))
    return g.emit("Mul", g.emit("Div", x, root), args[1])


def _embedding(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "layout", "n")
    if attrs.get("layout", "nk") != "nk":
        raise UnsupportedModel(
            f"an embedding table in layout {attrs['layout']!r}: export the model before it is optimised"
        )
    return g.emit("Gather", args[1], args[0], axis=0)


CONVERTERS: dict[str, Converter] = {
    "relax.halo.linear": _linear,
    "relax.halo.matmul": _matmul,
    "relax.halo.experts": _experts,
    "relax.halo.ffn": _ffn,
    "relax.halo.layer_norm": _layer_norm,
    "relax.halo.rms_norm": _rms_norm,
    "relax.halo.embedding": _embedding,
}
