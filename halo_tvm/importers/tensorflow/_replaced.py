"""An operator of TensorFlow in the graph of tf2onnx, and the nodes of ONNX that take its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto
from tf2onnx.handler import tf_op
from tf2onnx.utils import make_name, map_numpy_to_onnx_dtype, map_onnx_to_numpy_type

from ..onnx import BEYOND

# What TensorFlow writes between a size and what depends on it, of vectors.
_EVALUATED: dict[str, Callable[..., Any]] = {
    "Identity": lambda x: x,
    "Cast": lambda x: x,
    "Div": lambda a, b: a / b,
    "Slice": lambda x, start, end, axes: x[int(start[0]) : int(end[0])],
}


@dataclass(frozen=True)
class Replaced:
    """`node` of `context`, tf2onnx's graph; tensors go by their names in it."""

    context: Any
    node: Any

    @property
    def inputs(self) -> list[str]:
        return list(self.node.input)

    def attr(self, name: str) -> Any:
        return self.node.get_attr_value(name)

    def dtype(self, tensor: str) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(map_onnx_to_numpy_type(self.context.get_dtype(tensor)))
        return found

    def shape(self, tensor: str) -> list[int] | None:
        """Of open sizes -1; None where not even the rank is known."""
        found = self.context.get_shape(tensor)
        return None if found is None else list(found)

    def rank(self, tensor: str) -> int:
        """Raises `ValueError`, as tf2onnx does where it cannot write an operator, unless it is known."""
        shape = self.shape(tensor)
        if shape is None:
            raise ValueError(f"expected tensors of known ranks for {self.node.type}, found {tensor} without one")
        return len(shape)

    def known(self, tensor: str) -> NDArray[Any] | None:
        """The value of a constant, or of what is computed from such and from known sizes; None of anything else."""
        found = self._computed(tensor)
        return None if found is None or np.ma.is_masked(found) else np.asarray(found)

    def _computed(self, tensor: str) -> np.ma.MaskedArray[Any, Any] | None:
        """Open sizes are masked."""
        made = self.context.get_node_by_output(tensor)
        if made is not None and made.is_const():
            return np.ma.array(made.get_tensor_value(as_list=False))
        if made is not None and made.type == "Shape":
            shape = self.shape(made.input[0])
            return None if shape is None else np.ma.masked_less(np.array(shape, np.int64), 0)
        if made is None or made.type not in _EVALUATED:
            return None
        values = [self._computed(name) for name in made.input]
        if any(value is None for value in values):
            return None
        found: np.ma.MaskedArray[Any, Any] = _EVALUATED[made.type](*values).astype(self.dtype(tensor))
        return found

    def const(self, value: object, dtype: DTypeLike = np.int64) -> str:
        return str(self.context.make_const(make_name(self.node.name), np.array(value, dtype)).output[0])

    def like(self, value: float, tensor: str) -> str:
        """A scalar of the type of `tensor`."""
        return self.const(value, self.dtype(tensor))

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The only result of a node of ONNX."""
        return str(self.context.make_node(op, list(inputs), attr=attributes, op_name_scope=self.node.name).output[0])

    def sizes(self, tensor: str, start: int, end: int) -> str:
        """Of the axes from `start` to before `end`. By a Slice: tf2onnx's passes drop a start that Shape itself has."""
        return self.emit("Slice", self.emit("Shape", tensor), self.const([start]), self.const([end]))

    def beyond(self, op: str, *inputs: str) -> str:
        """The only result of an operator of our own domain, whose shape and type are those of the replaced one."""
        context, (output, *_) = self.context, self.node.output
        kind = {"shapes": [context.get_shape(output)], "dtypes": [context.get_dtype(output)]}
        name = self.node.name
        return str(context.make_node(op, list(inputs), op_name_scope=name, domain=BEYOND, **kind).output[0])

    def cast(self, tensor: str, dtype: DTypeLike) -> str:
        wanted = np.dtype(dtype)
        if self.dtype(tensor) == wanted:
            return tensor
        return self.emit("Cast", tensor, to=map_numpy_to_onnx_dtype(wanted))


_PARTS = {TensorProto.COMPLEX64: TensorProto.FLOAT, TensorProto.COMPLEX128: TensorProto.DOUBLE}


def is_complex(dtype: int | None) -> bool:
    """Of a type of ONNX."""
    return dtype in _PARTS


def by_itself(context: Any, node: Any) -> None:
    """`node` as tf2onnx writes it; one that it does not know stays."""
    own, options = _mapping(context.opset).get(node.type, (None, {}))
    if own is None:
        return
    if name := options.get("onnx_op"):  # its driver renames the node first, and says what it was
        options = {**options, "tf_op": node.type}
        node.type = name
    own(context, node, **options)


@cache
def _mapping(opset: int) -> Any:
    return tf_op.create_mapping(opset, None)


Handler = Callable[[Replaced], str | Sequence[str] | None]
"""Writes the nodes and gives the results, one per output of the operator; None leaves it to tf2onnx."""


def compatible(handler: Handler) -> Callable[[Any, Any, str, list[Any]], None]:
    """`handler` as tf2onnx calls those of others."""

    def replace(context: Any, node: Any, _name: str, _args: list[Any]) -> None:
        found = handler(Replaced(context, node))
        if found is None:
            by_itself(context, node)
            return
        made = [found] if isinstance(found, str) else list(found)
        wanted = list(zip(made, node.output, node.output_shapes, node.output_dtypes, strict=True))
        context.remove_node(node.name)
        for result, output, shape, dtype in wanted:
            if is_complex(dtype):  # a pair of real ones: see `_spectra`
                shape, dtype = None if shape is None else [*shape, 2], _PARTS[dtype]
            context.make_node("Identity", [result], outputs=[output], shapes=[shape], dtypes=[dtype])

    return replace
