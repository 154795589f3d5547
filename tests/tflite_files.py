"""Small TFLite files for tests, written by LiteRT's own schema (the extra `tflite`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "int16": schema.TensorType.INT16,
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "bool": schema.TensorType.BOOL,
    "complex64": schema.TensorType.COMPLEX64,
    "resource": schema.TensorType.RESOURCE,
}
Grid = tuple[Sequence[float], Sequence[int], int]


@dataclass
class GraphFile:
    """Collects one graph; tensors are numbers, in the order they are made."""

    tensors: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=lambda: [b""])
    codes: list[tuple[int, str]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def tensor(
        self, shape: Sequence[int], dtype: str = "float32", *, data: np.ndarray | None = None, grid: Grid | None = None
    ) -> int:
        """A tensor; -1 in `shape` is a size that is not known, which LiteRT starts with 1."""
        made = schema.TensorT()
        made.name = f"t{len(self.tensors)}".encode()
        made.shape = [max(1, s) if s < 0 else s for s in shape]
        made.hasRank = True
        if min(shape, default=0) < 0:
            made.shapeSignature = list(shape)
        made.type = _TYPES[dtype]
        if data is not None:
            made.buffer = len(self.buffers)
            self.buffers.append(np.ascontiguousarray(data).tobytes())
        if grid is not None:
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = list(grid[0]), list(grid[1])
            made.quantization.quantizedDimension = grid[2]
        self.tensors.append(made)
        return len(self.tensors) - 1

    def input(self, shape: Sequence[int], dtype: str = "float32", grid: Grid | None = None) -> int:
        self.inputs.append(self.tensor(shape, dtype, grid=grid))
        return self.inputs[-1]

    def variable(self, shape: Sequence[int]) -> int:
        """A tensor that keeps what a layer leaves in it."""
        made = self.tensor(shape)
        self.tensors[made].isVariable = True
        return made

    def const(self, values: object, dtype: str = "float32", grid: Grid | None = None) -> int:
        data = np.asarray(values, dtype)
        return self.tensor(data.shape, dtype, data=data, grid=grid)

    def op(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], kind: str = "", **options: object
    ) -> Sequence[int]:
        """One operator with the fields `options` of the table `kind`."""
        code = (getattr(schema.BuiltinOperator, name), name)
        if code not in self.codes:
            self.codes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = self.codes.index(code), list(inputs), list(outputs)
        if kind:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
            made.builtinOptions = getattr(schema, f"{kind}T")()
            for key, value in options.items():
                assert hasattr(made.builtinOptions, key), key
                setattr(made.builtinOptions, key, value)
        self.operators.append(made)
        return outputs

    def custom(self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: bytes) -> Sequence[int]:
        """One operator that is none of LiteRT's own."""
        self.codes.append((schema.BuiltinOperator.CUSTOM, name))
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = len(self.codes) - 1, list(inputs), list(outputs)
        made.customOptions = list(options)
        self.operators.append(made)
        return outputs

    def write(self, outputs: Sequence[int], signature: str = "serving_default") -> bytes:
        return write_model([(self, outputs)], {signature: 0} if signature else {})


def write_model(graphs: Sequence[tuple[GraphFile, Sequence[int]]], signatures: Mapping[str, int]) -> bytes:
    """A file of `graphs` with their outputs; signatures name inputs x0, x1, ... and outputs y0, y1, ..."""
    model = schema.ModelT()
    model.version, model.description = 3, b"test"
    codes = list(dict.fromkeys(code for graph, _ in graphs for code in graph.codes))
    model.operatorCodes, model.buffers, model.subgraphs, model.signatureDefs = [], [schema.BufferT()], [], []
    for number, name in codes:
        code = schema.OperatorCodeT()
        code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), _VERSIONS.get(name, 1)
        code.customCode = name.encode() if number == schema.BuiltinOperator.CUSTOM else None
        model.operatorCodes.append(code)
    for graph, outputs in graphs:
        made = schema.SubGraphT()
        made.tensors, made.operators = graph.tensors, graph.operators
        made.inputs, made.outputs = graph.inputs, list(outputs)
        for operator in graph.operators:
            operator.opcodeIndex = codes.index(graph.codes[operator.opcodeIndex])
        for tensor in graph.tensors:
            if tensor.buffer:
                held = schema.BufferT()
                held.data = np.frombuffer(graph.buffers[tensor.buffer], np.uint8)
                tensor.buffer = len(model.buffers)
                model.buffers.append(held)
        model.subgraphs.append(made)
    for key, number in signatures.items():
        definition = schema.SignatureDefT()
        definition.signatureKey, definition.subgraphIndex = key.encode(), number
        definition.inputs = [_named(f"x{i}", t) for i, t in enumerate(graphs[number][0].inputs)]
        definition.outputs = [_named(f"y{i}", t) for i, t in enumerate(graphs[number][1])]
        model.signatureDefs.append(definition)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


_VERSIONS = {"FULLY_CONNECTED": 4, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "RESIZE_NEAREST_NEIGHBOR": 3}


def _named(name: str, tensor: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name.encode(), tensor
    return entry
