"""`Case` of a GraphDef -> nested `If`, which tf2onnx knows.

Case(i, x..., branches=[f0, f1, f2]) -> If(i == 0, x..., i, then=f0, else=rest)
                                        rest(x..., i) = If(i == 1, x..., i, then=f1, else=f2)

A number without a branch chooses the last one. Branches take the number as a last input, since both sides of an If take
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2, types_pb2

_CASES = {"Case": "If", "StatelessCase": "StatelessIf"}
_NUMBER = "number_of_branch"


def without_cases(disable: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`disable`, which keeps branches and loops of a GraphDef from being lowered, with every Case replaced as well."""

    def disabled(graph: Any) -> Any:
        kept = disable(graph)
        for nodes, is_function in [(kept.node, False), *((f.node_def, True) for f in kept.library.function)]:
            _replace(kept, nodes, is_function)
        return kept

    return disabled


def _replace(graph: graph_pb2.GraphDef, nodes: Any, is_function: bool) -> None:
    """In `nodes`, of `graph` or of a function of its library: tensors of functions are named `node:result:0`."""
    for case in [node for node in nodes if node.op in _CASES]:
        found = node_def_pb2.NodeDef()
        found.CopyFrom(case)
        nodes.remove(case)
        nodes.extend(_first(graph, found, found.input[0], 0, "z:0" if is_function else "0", is_function))


def _first(
    graph: graph_pb2.GraphDef, case: node_def_pb2.NodeDef, number: str, place: int, suffix: str, is_function: bool
) -> list[node_def_pb2.NodeDef]:
    """What chooses branch `place` of `case` or one behind it."""
    branches = [branch.name for branch in case.attr["branches"].list.func]
    if len(branches) == 1:  # there is nothing to choose, which both sides of an If say as well
        branches *= 2
    const = _node("Const", f"{case.name}/place_{place}", dtype=_type(types_pb2.DT_INT32))
    const.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(place, tf.int32, shape=()))
    wanted = f"{const.name}:output:0" if is_function else const.name
    equal = _node("Equal", f"{case.name}/is_{place}", number, wanted, T=_type(types_pb2.DT_INT32))
    chosen = node_def_pb2.NodeDef()
    chosen.CopyFrom(case)
    chosen.op = _CASES[case.op]
    del chosen.attr["branches"], chosen.input[:]
    controls = [name for name in case.input[1:] if name.startswith("^")]
    given = [name for name in case.input[1:] if not name.startswith("^")]
    chosen.input.extend([f"{equal.name}:{suffix}" if is_function else equal.name, *given, number, *controls])
    chosen.attr["Tcond"].type = types_pb2.DT_BOOL
    chosen.attr["Tin"].list.type.append(types_pb2.DT_INT32)
    chosen.attr["_lower_using_switch_merge"].b = False
    chosen.attr["then_branch"].func.name = _numbered(graph, branches[place])
    if place + 2 == len(branches):
        chosen.attr["else_branch"].func.name = _numbered(graph, branches[place + 1])
    else:
        chosen.attr["else_branch"].func.name = _rest(graph, case, place + 1)
    return [const, equal, chosen]


def _numbered(graph: graph_pb2.GraphDef, name: str) -> str:
    """The function `name` with the number as a last input, which it does not read."""
    wanted = f"{name}_{_NUMBER}"
    if all(f.signature.name != wanted for f in graph.library.function):
        made = graph.library.function.add()
        made.CopyFrom(_function(graph, name))
        made.signature.name = wanted
        made.signature.input_arg.add(name=_NUMBER, type=types_pb2.DT_INT32)
    return wanted


def _rest(graph: graph_pb2.GraphDef, case: node_def_pb2.NodeDef, place: int) -> str:
    """A function of the inputs of `case` and the number, which chooses branch `place` or one behind it."""
    first = _function(graph, case.attr["branches"].list.func[place].name)
    made = function_pb2.FunctionDef()
    made.signature.CopyFrom(first.signature)
    name = f"{first.signature.name}_or_behind_{len(graph.library.function)}"
    made.signature.name = name
    made.signature.input_arg.add(name=_NUMBER, type=types_pb2.DT_INT32)
    inner = node_def_pb2.NodeDef()
    inner.CopyFrom(case)
    inner.name = "chosen"
    del inner.input[:]
    inner.input.extend([_NUMBER, *(arg.name for arg in first.signature.input_arg)])
    made.node_def.extend(_first(graph, inner, _NUMBER, place, "z:0", True))
    for key, output in enumerate(first.signature.output_arg):
        made.ret[output.name] = f"chosen:output:{key}"
    for output in first.signature.control_output:
        made.control_ret[output] = "chosen"
    graph.library.function.append(made)
    return name


def _function(graph: graph_pb2.GraphDef, name: str) -> function_pb2.FunctionDef:
    return next(f for f in graph.library.function if f.signature.name == name)


def _type(dtype: int) -> attr_value_pb2.AttrValue:
    return attr_value_pb2.AttrValue(type=dtype)


def _node(op: str, name: str, *inputs: str, **attributes: attr_value_pb2.AttrValue) -> node_def_pb2.NodeDef:
    return node_def_pb2.NodeDef(op=op, name=name, input=inputs, attr=attributes)
