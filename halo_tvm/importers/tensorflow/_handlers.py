"""Operators that tf2onnx leaves in the graph, or writes as something else than they mean.

Select, SelectV2    Where; tf2onnx writes condition * a + (1 - condition) * b, where a NaN of one side reaches the other
Erfc                1 - Erf
MatrixBandPart      Trilu; once for each side that is not kept whole
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_Handler = Callable[[Any, Any, str, list[Any]], None]


def handlers() -> dict[str, tuple[_Handler, list[Any]]]:
    """As tf2onnx's `custom_op_handlers` takes them."""
    found = {"Select": _select, "SelectV2": _select, "Erfc": _erfc, "MatrixBandPart": _band}
    return {name: (handler, []) for name, handler in found.items()}


def _replaced(context: Any, node: Any) -> dict[str, Any]:
    """`node` taken out; what the node that makes its result must be given."""
    made = {"outputs": node.output, "name": node.name}
    made |= {"shapes": [context.get_shape(node.output[0])], "dtypes": [context.get_dtype(node.output[0])]}
    context.remove_node(node.name)
    return made


def _select(context: Any, node: Any, _name: str, _args: list[Any]) -> None:
    """A vector of conditions chooses rows in Select, whose operands have one rank otherwise."""
    inputs = list(node.input)
    of_condition, of_value = (len(context.get_shape(i) or ()) for i in inputs[:2])
    if node.type == "Select" and of_condition == 1 and of_value > 1:
        shape = context.make_const(f"{node.name}_rows", np.array([-1] + [1] * (of_value - 1), np.int64))
        inputs[0] = context.make_node("Reshape", [inputs[0], shape.output[0]]).output[0]
    context.make_node("Where", inputs, **_replaced(context, node))


def _erfc(context: Any, node: Any, _name: str, _args: list[Any]) -> None:
    source = node.input[0]
    dtype = context.get_dtype(source)
    from tf2onnx.utils import map_onnx_to_numpy_type

    one = context.make_const(f"{node.name}_one", np.array(1, map_onnx_to_numpy_type(dtype)))
    erf = context.make_node("Erf", [source], shapes=[context.get_shape(source)], dtypes=[dtype])
    context.make_node("Sub", [one.output[0], erf.output[0]], **_replaced(context, node))


def _band(context: Any, node: Any, _name: str, _args: list[Any]) -> None:
    """x where -lower <= column - row <= upper, 0 elsewhere; a negative number keeps a side whole."""
    source, lower, upper = node.input
    wanted = _replaced(context, node)
    sides = []
    for limit, is_upper in ((lower, 0), (upper, 1)):
        known = context.get_node_by_output(limit)
        value = int(known.get_tensor_value(as_list=False)) if known is not None and known.is_const() else None
        if value is None:
            raise ValueError(f"expected known limits of MatrixBandPart, found {limit} computed")
        if value >= 0:
            sides.append((value if is_upper else -value, 1 - is_upper))
    for place, (diagonal, keeps_upper) in enumerate(sides):
        is_last = place == len(sides) - 1
        k = context.make_const(f"{wanted['name']}_diagonal_{place}", np.array(diagonal, np.int64))
        made = wanted if is_last else {"shapes": wanted["shapes"], "dtypes": wanted["dtypes"]}
        inputs = [source, k.output[0]]
        source = context.make_node("Trilu", inputs, attr={"upper": keeps_upper}, **made).output[0]
    if not sides:
        context.make_node("Identity", [source], **wanted)
