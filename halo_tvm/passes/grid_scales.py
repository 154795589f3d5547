"""The scale of a grid that numbers are rounded to goes into the scales and biases in front.

Before -> after
    round((a * w + b) / s)   ->   round(a * (w / s) + b / s)
Serves
    single numbers s; sums, bounds and rectifiers of products with weights and constants, whose weights are scaled once
Leaves alone
    quotients of nothing that a weight scales, and of what others read, too; scales near 0 or infinity; bytes of one
    grid that come to another, of which many lie in the middle between two integers
Numerics
    numbers in the middle between two integers, but for the last digit of a float32, may be rounded to the other one, as
    where onnxruntime joins the scales of a file
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..relay_ops.operator import number_of, op_name, same_places
from ._pointwise import BYTES
from ._rewrite import rewrite_calls
from .graph_pass import Context, Pass, Report, bindings, users_of
from .weights import WeightEditor

_BOUNDS = ("relax.maximum", "relax.minimum")
_LEAST = 1e-12  # of scales: quotients of weights by less may be infinite
_Value = Callable[[relax.Expr], relax.Expr]


@dataclass(frozen=True)
class GridScales(Pass):
    """Scale what is added up instead of the sum."""

    name = "grid_scales"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        if not any(op_name(b.value) == "relax.round" for b in bindings(mod["main"])):
            return mod, {"rewritten": {}}
        scales = _Scales(mod["main"], WeightEditor(mod["main"], context.params))
        mod, report = rewrite_calls(mod, scales.into_terms)
        return scales.editor.finish(mod, mod["main"].body), report


class _Scales:
    def __init__(self, func: relax.Function, editor: WeightEditor) -> None:
        self.editor = editor
        self._users = users_of(func)

    def into_terms(self, call: relax.Call, value: _Value) -> tuple[relax.Expr, str] | None:
        """The rule: `call` of round with the scale of what it rounds in the terms of that."""
        if op_name(call) != "relax.round" or op_name(value(call.args[0])) != "relax.divide":
            return None
        quotient = value(call.args[0])
        scale = number_of(quotient.args[1])
        if scale is None or str(call.ty.dtype) != "float32" or not same_places(quotient.args[0].ty, call.ty):
            return None
        if not _LEAST < scale < 1.0 / _LEAST or not self._takes(quotient.args[0], value):
            return None
        return relax.op.round(self._divided(quotient.args[0], scale, value)), "scale in the terms of a sum"

    def _takes(self, x: relax.Expr, value: _Value) -> bool:
        """Whether weights or constants take a divisor of `x`, and that is more than bytes on another grid."""
        parts = self._parts(x, value)
        if len(parts) == 1 and _is_of_bytes(parts[0][0], value):
            return False
        return any(scaled for _, scaled in parts)

    def _parts(self, x: relax.Expr, value: _Value) -> list[tuple[relax.Expr, bool]]:
        """The tensors that are added up, and whether a weight or constant scales them."""
        terms = self._terms(x, value)
        if op_name(value(x)) == "relax.multiply" and terms:
            return [(arg, True) for arg in value(x).args if arg not in terms]
        if terms:
            return [part for term in terms for part in self._parts(term, value)]
        return [] if self._fixed(x) else [(x, False)]

    def _fixed(self, x: relax.Expr) -> bool:
        return str(x.ty.dtype) == "float32" and (number_of(x) is not None or self.editor.name(x) is not None)

    def _terms(self, x: relax.Expr, value: _Value) -> list[relax.Expr]:
        """What a factor of `x` goes to; none where `x` itself is to be multiplied."""
        if not isinstance(x, relax.Var) or len(self._users.get(x, ())) != 1:
            return []
        made = value(x)
        name = op_name(made)
        if name == "relax.add" or name in _BOUNDS and number_of(made.args[1]) is not None:
            return list(made.args)
        if name in ("relax.nn.relu", "relax.reshape"):
            return [made.args[0]]
        if name == "relax.multiply":
            return next(([arg] for arg in reversed(made.args) if self._fixed(arg)), [])
        return []

    def _divided(self, x: relax.Expr, by: float, value: _Value) -> relax.Expr:
        """x / by."""
        if number_of(x) is not None:
            return relax.const(x.value.numpy() / np.float32(by), "float32")
        if (weight := self.editor.name(x)) is not None:
            shape = self.editor.params.shape(weight)
            return self.editor.derive(f"{weight}|divided:{by!r}", "divided", [weight], shape, by=by)
        terms = self._terms(x, value)
        if not terms:
            return relax.op.multiply(x, relax.const(np.float32(1.0) / np.float32(by), "float32"))
        made = value(x)
        divided = {term: self._divided(term, by, value) for term in terms}
        return relax.Call(made.op, [divided.get(arg, arg) for arg in made.args], made.attrs, made.ty_args)


def _is_of_bytes(x: relax.Expr, value: _Value) -> bool:
    """Whether `x` is bytes less their zero point."""
    while str(x.ty.dtype) not in BYTES:
        made = value(x)
        if op_name(made) not in ("relax.astype", "relax.subtract", "relax.reshape"):
            return False
        x = made.args[0]
    return True
