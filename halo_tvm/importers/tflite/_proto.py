"""A signature of a TFLite file as an ONNX model in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from ...errors import UnsupportedModel
from .._reasons import listed
from ..onnx import BEYOND
from ._file import Model, Signature, Tensor
from ._graph import OPSET, Graph, Writer
from ._node import Refused
from .detection import rows_behind
from .elementwise import onnx_type


@dataclass(frozen=True)
class Written:
    """The model, and what the importer of ONNX cannot see in it."""

    proto: onnx.ModelProto
    state: tuple[str, ...]  # inputs that hold variables; what comes after them is the output `after(name)`
    tensors: Mapping[str, int]  # those of `state` that are tensors of the first graph
    behind: Mapping[str, tuple[str, int]]  # of `detection.rows_behind`
    beyond: bool  # whether onnxruntime cannot run it
    accepted_error: float | None  # where activations become integers on the way
    operators: int


def write(model: Model, signature: Signature, file: str) -> Written:
    """`signature` as ONNX; `UnsupportedModel` names every operator that cannot be written."""
    graph_inputs = model.graphs[signature.graph].inputs
    names = {index: name for name, index in signature.inputs.items()}
    if set(names) != set(graph_inputs):
        count = len(set(graph_inputs))
        raise UnsupportedModel(
            f"expected names for the {count} inputs of the graph of {file}, found {len(names)}: convert it again"
        )
    writer = Writer(model)
    for name in (*signature.inputs, *signature.outputs):
        writer.name(name)
    graph = Graph(writer, signature.graph, [names[i] for i in graph_inputs])
    infos = [_info(names[i], graph.graph.tensors[i], file) for i in dict.fromkeys(graph_inputs)]
    graph.write()
    if writer.problems:
        raise _unsupported(writer.problems, file)
    outputs = []
    for name, index in signature.outputs.items():
        if graph.tensors[index].is_complex:
            raise UnsupportedModel(
                f"expected real results, found the complex {name!r} in {file}: give its parts instead"
            )
        try:
            graph.nodes.append(helper.make_node("Identity", [graph.stored(index)], [name]))
        except Refused as reason:
            raise UnsupportedModel(
                f"expected every output to be computed, found that {reason} in {file}: convert it again"
            ) from reason
        outputs.append(name)
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(BEYOND, 1)] if writer.beyond else [])]
    for name, made in writer.state.items():
        graph.nodes.append(helper.make_node("Identity", [writer.variables[name]], [after(made)]))
        first = writer.initial[name]
        infos.append(helper.make_tensor_value_info(made, onnx_type(first.dtype.name), list(first.shape)))
        outputs.append(after(made))
    proto = helper.make_model(graph.proto("main", infos, outputs), opset_imports=opsets, ir_version=10)
    return Written(
        proto,
        state=tuple(writer.state.values()),
        tensors=writer.tensors,
        behind=rows_behind(graph.graph, signature),
        beyond=writer.beyond,
        accepted_error=writer.accepted_error,
        operators=len(graph.graph.operators),
    )


def after(name: str) -> str:
    """The output that holds the variable of input `name`."""
    return f"{name}_after"


def _info(name: str, tensor: Tensor, file: str) -> onnx.ValueInfoProto:
    try:
        return helper.make_tensor_value_info(name, onnx_type(tensor.dtype), list(tensor.shape))
    except Refused as reason:
        raise UnsupportedModel(f"{reason} as the input {name!r} of {file}: convert it with numbers") from reason


def _unsupported(problems: dict[str, list[str]], file: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"expected operators that can be converted, found {listed(problems)} in {file}: convert the model without them"
    )
