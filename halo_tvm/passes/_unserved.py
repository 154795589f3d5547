"""Products by weights that `quantise` leaves alone, each with its reason: what nobody reports is not looked for.

Such a product reads a matrix of the model, moved or taken in parts, and is no linear whose weight is one parameter.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..relay_ops.operator import attrs_of, op_name, operator_of
from .graph_pass import bindings
from .weights import WeightEditor

_PRODUCTS = ("relax.matmul", "relax.halo.matmul")
_PARTS = ("relax.strided_slice", "relax.split")
_MOVES = ("relax.permute_dims", "relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten", *_PARTS)


def unserved(func: relax.Function, editor: WeightEditor) -> dict[str, str]:
    """Weights, or layers and values where a weight is none, and why their products stay in floats."""
    values = {binding.var: binding.value for binding in bindings(func)}
    found: dict[str, str] = {}
    for call in values.values():
        operator = operator_of(call)
        if operator is not None and operator.name == "linear":
            if editor.name(call.args[1]) is None:
                weight, reason = _origin(call.args[1], values, editor)
                found[weight or str(attrs_of(call).get("layer") or call.args[1])] = reason
        elif op_name(call) in _PRODUCTS:
            for operand in call.args:
                weight, reason = _origin(operand, values, editor)
                if weight is not None and len(editor.params.shape(weight)) > 1:
                    found[weight] = reason
    return found


def _origin(
    operand: relax.Expr, values: Mapping[relax.Var, relax.Expr], editor: WeightEditor
) -> tuple[str | None, str]:
    """The weight that `operand` moves or is a part of, None for what is computed; why its product is none of bytes."""
    parts = moved = False
    while operand in values:
        value = values[operand]
        name = op_name(value)
        if isinstance(value, relax.TupleGetItem):
            operand = value.tuple_value
        elif name in _MOVES:
            parts, moved, operand = parts or name in _PARTS, True, value.args[0]
        elif isinstance(value, relax.Var):
            operand = value
        else:
            return None, "its weight is computed"
    weight = editor.name(operand)
    if weight is None:
        return None, "its weight is an input: of the model, or of a branch or loop that is called with several"
    if parts:
        return weight, "it is taken in parts"
    return weight, "it is read in another shape" if moved else "its product is no linear"
