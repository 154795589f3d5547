"""Feed-forward network, plain or gated: lifted and counted as one operator, then expanded to linears.

Shapes
    x [..., d]
    plain   up [d, f], down [f, d] (layout "kn") or [f, d], [d, f] (layout "nk"), each followed by its bias if `bias`
    gated   gate and up like up, then down
    ->   y [..., d]
Computation
    plain   y = down(activation(up(x)))
    gated   y = down(activation(gate(x)) * up(x))        (SwiGLU: activation silu; GEGLU: gelu)
Lifts
    linear(activation(linear(x)))                  =>   halo.ffn(gated=False)
    linear(activation(linear(x)) * linear(x))      =>   halo.ffn(gated=True)
    the same with reshapes that keep the last axis in between; gate and up as the two halves of one linear
Rejects
    linears of different layouts or of which only some have a bias; a gate and an up projection of different inputs;
    a hidden layer that something else reads, too
Numerics
    as its linears and activation
References
    arXiv:2002.05202
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te

from ._ffn_lift import ffn_lifts
from .linear import Linear
from .operator import Operator, attrs_of
from .parts.activation import ACTIVATIONS


class FFN(Operator):
    """Feed-forward network of a transformer block."""

    name = "ffn"
    semantic = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        attrs = attrs_of(call)
        per = 2 if attrs["bias"] else 1
        expected = 1 + per * (3 if attrs["gated"] else 2)
        if len(call.args) != expected or attrs["activation"] not in ACTIVATIONS:
            raise ValueError(
                f"halo.ffn: expected {expected} arguments and an activation of {', '.join(ACTIVATIONS)}, "
                f"got {len(call.args)} and {attrs['activation']}"
            )
        return relax.TensorType(
            [*call.args[0].ty.shape.values[:-1], _columns(call.args[-per], attrs["layout"])], call.args[0].ty.dtype
        )

    @staticmethod
    def compute(x: te.Tensor, *weights: te.Tensor, activation: str, gated: bool, bias: bool, layout: str) -> te.Tensor:
        groups = _groups(weights, bias)

        def linear(y, group):
            return Linear.compute(y, *group, layout=layout, n=int(group[0].shape[1 if layout == "kn" else 0]))

        hidden = linear(x, groups[0])
        hidden = te.compute(hidden.shape, lambda *i: ACTIVATIONS[activation].te(hidden[i]), name="activation")
        if gated:
            up = linear(x, groups[1])
            gate = hidden
            hidden = te.compute(up.shape, lambda *i: gate[i] * up[i], name="gate")
        return linear(hidden, groups[-1])

    @staticmethod
    def reference(
        x: np.ndarray, *weights: np.ndarray, activation: str, gated: bool, bias: bool, layout: str
    ) -> np.ndarray:
        groups = _groups(weights, bias)

        def linear(y, group):
            return Linear.reference(y, *group, layout=layout, n=group[0].shape[1 if layout == "kn" else 0])

        hidden = ACTIVATIONS[activation].numpy(linear(x, groups[0]))
        return linear(hidden * linear(x, groups[1]) if gated else hidden, groups[-1])

    @classmethod
    def expand(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attrs = attrs_of(call)
        x, *weights = call.args
        groups = _groups(weights, attrs["bias"])
        layer = attrs.get("layer")

        def linear(y: relax.Expr, group: tuple[relax.Expr, ...]) -> relax.Var:
            n = _columns(group[0], attrs["layout"])
            return bb.emit(Linear.call(y, *group, layout=attrs["layout"], n=n, layer=layer))

        hidden = bb.emit(ACTIVATIONS[attrs["activation"]].relax(linear(x, groups[0])))
        if attrs["gated"]:
            hidden = bb.emit(relax.op.multiply(hidden, linear(x, groups[1])))
        n = _columns(groups[-1][0], attrs["layout"])
        return Linear.call(hidden, *groups[-1], layout=attrs["layout"], n=n, layer=layer)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], activation: str, gated: bool, bias: bool, layout: str) -> int:
        rows = int(np.prod(shapes[0][:-1]))
        return 2 * rows * sum(int(np.prod(s)) for s in shapes[1:] if len(s) == 2)

    @staticmethod
    def cases():
        plain = {"gated": False, "bias": True, "layout": "kn"}
        gated = {"activation": "silu", "gated": True, "bias": False, "layout": "nk"}
        return (
            {"args": [(2, 5, 12), (12, 20), (20,), (20, 12), (12,)], "attrs": {"activation": "gelu_tanh", **plain}},
            {"args": [(5, 12), (12, 20), (20,), (20, 12), (12,)], "attrs": {"activation": "gelu", **plain}},
            {"args": [(5, 12), (20, 12), (20, 12), (12, 20)], "attrs": gated},
        )

    @staticmethod
    def lifts():
        return ffn_lifts(FFN.call)


def _columns(weight: relax.Expr, layout: str) -> int:
    return int(weight.ty.shape.values[1 if layout == "kn" else 0])


def _groups(weights, bias: bool) -> list[tuple]:
    """Flat weights -> one (weight, bias) or (weight,) per linear."""
    per = 2 if bias else 1
    return [tuple(weights[i : i + per]) for i in range(0, len(weights), per)]
