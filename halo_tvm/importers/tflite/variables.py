"""Variables: what a call leaves for the next one. They are inputs and outputs of the model; the executor keeps them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._node import Node, Refused, Result
from ._registry import writes
from .elementwise import onnx_type

_BEGUN = "\0begun"  # no name of a variable
_HANDLE = "handle "  # in front of a variable's name, where other values have the name of a tensor


@writes("CALL_ONCE")
def call_once(node: Node) -> tuple[Result, ...]:
    """A graph that gives variables their first values, which must be known."""
    graph = node.graph.writer.model.graphs[node.option("init_subgraph_index")]
    handles: dict[int, str] = {}
    for operator in graph.operators:
        if operator.name == "VAR_HANDLE":
            handles[operator.outputs[0]] = str(operator.options.get("shared_name", ""))
        elif operator.name == "ASSIGN_VARIABLE" and len(operator.inputs) == 2 and operator.inputs[0] in handles:
            value = graph.tensors[operator.inputs[1]].data
            if value is None:
                raise Refused(f"expected a known first value of {handles[operator.inputs[0]]!r}, found it computed")
            node.graph.writer.initial.setdefault(handles[operator.inputs[0]], value)
        else:
            raise Refused(f"expected known first values of variables, found {operator.name}")
    return ()


@writes("VAR_HANDLE")
def var_handle(node: Node) -> Result:
    return Result(_HANDLE + str(node.operator.options.get("shared_name", "")), stored=True)


@writes("READ_VARIABLE")
def read_variable(node: Node) -> Result:
    """What was assigned in this call; else what the last call left, where one of this signature assigns at all."""
    writer, name = node.graph.writer, _name(node)
    if name not in writer.variables:
        first = writer.initial.get(name)
        if first is None:
            raise Refused(f"expected a first value of the variable {name!r}, found none")
        writer.variables[name] = _from_outside(node, name, first) if _is_assigned(node) else node.const(first)
    return Result(writer.variables[name], stored=True)


@writes("ASSIGN_VARIABLE")
def assign_variable(node: Node) -> tuple[Result, ...]:
    if node.graph.inside:
        raise Refused("expected variables to be assigned outside of branches and loops")
    node.graph.writer.variables[_name(node)] = node.stored(1)
    return ()


def kept(node: Node, i: int) -> str:
    """Input `i`, a tensor that the file marks as a variable: what the last call left in it, zeros at first."""
    writer, tensor = node.graph.writer, node.tensor(i)
    if not tensor.is_variable or tensor.dtype != "float32" or None in tensor.shape:
        raise Refused(f"expected a float32 variable of known sizes as the state {tensor.name!r}, found another tensor")
    if node.graph.inside:
        raise Refused("expected layers that keep a state outside of branches and loops")
    name = _kept_name(node, i)
    if name not in writer.variables:
        first = writer.initial[name] = np.zeros(tuple(s or 0 for s in tensor.shape), np.float32)
        writer.variables[name] = _from_outside(node, name, first)
        writer.tensors[writer.state[name]] = node.operator.inputs[i]
    return writer.variables[name]


def keep(node: Node, i: int, value: str) -> None:
    """Leave `value` in input `i`, of `kept`, for the next call."""
    node.graph.writer.variables[_kept_name(node, i)] = value


def _kept_name(node: Node, i: int) -> str:
    return f"{node.tensor(i).name} {node.operator.inputs[i]}"


def _name(node: Node) -> str:
    handle = node.stored(0)
    if not handle.startswith(_HANDLE):
        raise Refused("expected the handle of a variable, found a tensor")
    return handle.removeprefix(_HANDLE)


def _is_assigned(node: Node) -> bool:
    graph, name = node.graph.graph, _name(node)
    handles = {
        o.outputs[0] for o in graph.operators if o.name == "VAR_HANDLE" and o.options.get("shared_name", "") == name
    }
    return any(o.name == "ASSIGN_VARIABLE" and o.inputs and o.inputs[0] in handles for o in graph.operators)


def _from_outside(node: Node, name: str, first: NDArray[Any]) -> str:
    made = node.graph.writer.name("state_" + re.sub(r"\W+", "_", name).strip("_"))
    node.graph.writer.state[name] = made
    return _begun_with(node, made, first) if np.any(first) else made


def _begun_with(node: Node, state: str, first: NDArray[Any]) -> str:
    """`state`, or `first` in the first call: every state of an artifact starts at zero, and one tells that it did."""
    writer = node.graph.writer
    if node.graph.inside:
        raise Refused("expected variables with a first value to be read outside of branches and loops")
    if _BEGUN not in writer.state:
        writer.state[_BEGUN] = writer.name("state_begun")
        writer.initial[_BEGUN], writer.variables[_BEGUN] = np.zeros(1, bool), node.const([True])
    begun = writer.state[_BEGUN]
    if first.dtype.name not in ("int8", "int16"):
        return node.emit("Where", begun, state, node.const(first))
    # onnxruntime, which is the reference of models with a state, chooses among int32, not among bytes.
    chosen = node.emit("Where", begun, node.emit("Cast", state, to=onnx_type("int32")), node.const(first, np.int32))
    return node.emit("Cast", chosen, to=onnx_type(first.dtype.name))
