"""What the confined process does with a SavedModel: TensorFlow reads it, tf2onnx writes it, ours reads that."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import convert_to_constants
from tf2onnx import convert, optimizer, tf_loader, tf_utils, utils
from tf2onnx.optimizer import back_to_back_optimizer

from ...array_files import one_reason
from ...errors import UnknownName, UnsupportedModel, UsageError
from ...imported import ImportedModel
from .._reasons import listed, not_run
from ..onnx import BEYOND, Bounds, import_of_file
from ._cases import without_cases
from ._handlers import handlers
from ._state import check_state
from ._tables import ML
from ._trained import without_optimizer

_OPSET = 18
_DEFAULT = "serving_default"
_TAG = "serve"
_MADE_UP = "unk__"  # how tf2onnx begins the names of open sizes
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_KEEPS = ("_XlaMustCompile", "_noinline")  # what keeps a function from being written out

# tf2onnx takes bfloat16 for float16, which has another range.
tf_utils.TF_TO_ONNX_DTYPE[types_pb2.DT_BFLOAT16] = onnx.TensorProto.BFLOAT16
utils.ONNX_TO_NUMPY_DTYPE[onnx.TensorProto.BFLOAT16] = tf.bfloat16.as_numpy_dtype
# Of two casts in a row it drops the first, which rounds, or cuts off what the second would see.
back_to_back_optimizer._func_map.pop(("Cast",), None)
# What keeps If and While from being lowered to switches leaves a Case to be lowered, which tf2onnx does not know.
convert_to_constants.disable_lower_using_switch_merge = without_cases(
    convert_to_constants.disable_lower_using_switch_merge
)


def import_unrestricted(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """`options`: "signature" and "shapes" (by input, a low and a high bound for each dimension)."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with without_optimizer(path) as saved:
        loaded = tf.saved_model.load(str(saved), tags=[_TAG])
        name = _signature(tuple(loaded.signatures), str(options["signature"]), path)
        function = loaded.signatures[name]
        check_state(function, path.name)
        proto = _written(saved, name)
    _name_sizes(proto, "")
    _check_operators(proto, path)
    shapes: dict[str, Bounds] = {k: tuple((b[0], b[1]) for b in v) for k, v in dict(options["shapes"]).items()}
    model = import_of_file(proto, path, shapes=shapes)
    return replace(
        model, engine=_engine(function), report={**model.report, "importer": "tensorflow", "signature": name}
    )


def import_concrete(
    function: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str,
    shapes: Mapping[str, Bounds],
    *,
    first: str = "",
) -> ImportedModel:
    """A concrete function whose tensors, in order, are called `inputs` and `outputs`; weights become constants.

    The open first size of every input is called `first`, if that is given.
    """
    check_state(function, name)
    given = function.inputs[: len(function.inputs) - len(function.captured_inputs)]  # captured: weights, constants
    given, made = [t.name for t in given], [t.name for t in function.outputs]
    graph, tables = tf_loader.from_trackable(tf.Module(), function, given, made, False)
    renamed = dict(zip([*given, *made], [*inputs, *outputs], strict=True))
    proto = _as_onnx(graph, name, given, made, renamed, tables)
    _name_sizes(proto, first)
    file = Path(name)
    _check_operators(proto, file)
    model = import_of_file(proto, file, shapes=dict(shapes))

    def run(**values: Any) -> dict[str, Any]:
        return dict(zip(outputs, tf.nest.flatten(function(*(values[key] for key in inputs))), strict=True))

    return replace(model, engine=_engine(run), report={**model.report, "importer": "tensorflow"})


def _signature(found: tuple[str, ...], wanted: str, path: Path) -> str:
    if wanted:
        if wanted not in found:
            raise UnknownName("signature", wanted, found)
        return wanted
    if _DEFAULT in found:
        return _DEFAULT
    if len(found) != 1:
        names = ", ".join(sorted(found)) or "NAME, and save the model with a signature"
        raise UsageError(
            f"expected a choice among the {len(found)} signatures of {path.name}, found none: give --signature {names}"
        )
    return found[0]


def _written(path: Path, signature: str) -> onnx.ModelProto:
    graph, inputs, outputs, tables, names = tf_loader.from_saved_model(
        str(path),
        None,
        None,
        tag=[_TAG],
        signatures=[signature],
        return_initialized_tables=True,
        return_tensors_to_rename=True,
    )
    return _as_onnx(graph, path.name, inputs, outputs, names, tables)


def _as_onnx(
    graph: Any, name: str, inputs: Sequence[str], outputs: Sequence[str], renamed: Mapping[str, str], tables: Any
) -> onnx.ModelProto:
    graph = _without_calls(graph, inputs, outputs)
    # Its optimizer of Einsum writes eight nodes, where ours is one product.
    passes = {name: _tidied(p) for name, p in optimizer._get_optimizers().items() if name != "einsum_optimizer"}
    gc.freeze()  # what is there now is no garbage: only what passes leave is looked at
    try:
        proto, _ = convert._convert_common(
            graph,
            name=name,
            opset=_OPSET,
            extra_opset=[onnx.helper.make_opsetid(BEYOND, 1), onnx.helper.make_opsetid(ML, 2)],
            input_names=list(inputs),
            output_names=list(outputs),
            tensors_to_rename=dict(renamed),
            initialized_tables=tables,
            optimizers=passes,
            custom_op_handlers=handlers(tables or {}),
        )
    except UnsupportedModel:
        raise
    except Exception as reason:  # ValueError of an operator in a use that tf2onnx does not know, others of its mistakes
        said = one_reason(reason).removeprefix("make_sure failure: ")
        kind = "" if isinstance(reason, ValueError) else f"{type(reason).__name__}: "
        raise UnsupportedModel(
            f"expected operators that tf2onnx can write, found others in {name} ({kind}{said}): "
            "save the model without them, or with fixed sizes"
        ) from reason
    finally:
        gc.unfreeze()
    return proto


def _tidied(make: Callable[[], Any]) -> Callable[[], Any]:
    """A pass of tf2onnx by `make`, which begins without the graphs that passes before it left.

    Each pass gets a copy of the graph, weights included. Nodes and graphs refer to each other, so that Python would
    keep dozens of copies before it looks.
    """

    def made() -> Any:
        gc.collect()
        return make()

    return made


def _without_calls(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """`graph`, a GraphDef, with functions written out that TensorFlow keeps for XLA, as grouped convolutions are."""
    if not any(node.op in _CALLS for node in graph.node):
        return graph
    graph = type(graph).FromString(graph.SerializeToString())
    for holder in (*graph.node, *graph.library.function, *(n for f in graph.library.function for n in f.node_def)):
        for name in _KEEPS:
            holder.attr.pop(name, None)
    with tf.Graph().as_default():
        tf.import_graph_def(graph, name="")
        return tf_loader.tf_optimize(list(inputs), list(outputs), graph)


def _name_sizes(proto: onnx.ModelProto, first: str) -> None:
    """Takes the names that tf2onnx made up off the inputs' sizes, and calls the first of each `first` if that is given.

    The importer of ONNX names those that have no name by their input and axis.
    """
    for tensor in proto.graph.input:
        for axis, size in enumerate(tensor.type.tensor_type.shape.dim):
            if size.dim_param.startswith(_MADE_UP):
                size.dim_param = "" if axis else first


def _check_operators(proto: onnx.ModelProto, path: Path) -> None:
    """Names what tf2onnx did not know: it leaves such operators in the graph without a word."""
    left: dict[str, list[str]] = {}
    todo = [proto.graph]
    while todo:
        graph = todo.pop()
        for node in graph.node:
            is_known = node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type)
            if not is_known and node.domain != BEYOND and (node.domain, node.op_type) != (ML, "LabelEncoder"):
                left.setdefault(node.op_type, []).append(node.name)
            todo += [a.g for a in node.attribute if a.HasField("g")]
    if left:
        raise UnsupportedModel(
            f"expected operators that ONNX has, found {listed(left)} in {path.name}: save the model without them"
        )


def _engine(function: Any) -> Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    """The signature itself, run by TensorFlow."""

    def run(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        try:
            found = function(**{name: tf.constant(value) for name, value in inputs.items()})
        except (tf.errors.OpError, ValueError, TypeError) as reason:
            raise not_run("TensorFlow", "the model", reason) from reason
        return {name: np.asarray(value) for name, value in found.items()}

    return run
