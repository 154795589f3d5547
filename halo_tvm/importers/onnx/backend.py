"""halo_tvm as a backend of the ONNX project's own test suite: `onnx.backend.base.Backend`.

A graph whose shapes depend on the values of inputs (axes, sizes, repeats) is compiled once for every such
combination of values: the tests give as run-time inputs what models keep as constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto
from onnx.backend.base import Backend, BackendRep

from ...errors import InputError
from ...in_process import Program, compile_in_process
from . import NeedsConstants, import_proto
from ._file import check_model
from ._narrow import is_narrow, restored_array, stored_array
from ._values import element_dtype

_NARROW_KINDS = frozenset(
    (TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2, TensorProto.FLOAT4E2M1)
)


class HaloRep(BackendRep):
    """A model that is compiled when it first runs, for the values that its shapes depend on."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        held = {i.name for i in model.graph.initializer}
        self._names = [i.name for i in model.graph.input if i.name not in held]
        self._optional = [i.name for i in model.graph.input if i.name in held]
        self._depends: frozenset[str] = frozenset()
        self._programs: dict[tuple, tuple[Program | None, dict[str, int | None]]] = {}
        self._flat: dict[bytes, HaloRep] = {}
        self.drawn: frozenset[str] = frozenset()  # outputs of the last run that were made of random numbers

    def run(self, inputs: Sequence[object], **_: object) -> tuple[object, ...]:
        """The outputs in order for `inputs` in order; sequences are lists, absent optional values None."""
        if any(i.type.WhichOneof("value") != "tensor_type" for i in self._model.graph.input):
            return self._run_flat(inputs)
        given = {name: np.asarray(value) for name, value in zip(self._names, inputs)}
        kinds = {o.name: o.type.tensor_type.elem_type for o in self._model.graph.output}
        if len(inputs) > len(self._names):
            raise InputError(f"expected {len(self._names)} inputs, found {len(inputs)}: leave the others out")
        program, flattened = self._program(given)
        feeds = {
            name: stored_array(value) if is_narrow(value.dtype.name) else value
            for name, value in given.items()
            if name not in self._depends
        }
        results = program(**feeds) if program else {}
        self.drawn = frozenset(program.spec.drawn) if program else frozenset()
        found = {name: _typed(value, kinds.get(name, 0)) for name, value in results.items()}
        return tuple(_regrouped(o.name, found, flattened) for o in self._model.graph.output)

    def _run_flat(self, inputs: Sequence[object]) -> tuple[object, ...]:
        """Through a model whose inputs are the tensors that these sequences and optional values consist of."""
        model, tensors = flat_inputs(self._model, inputs)
        key = model.SerializeToString()
        if key not in self._flat:
            self._flat[key] = HaloRep(model)
        return self._flat[key].run(tensors)

    def _program(self, given: dict[str, np.ndarray]) -> tuple[Program | None, dict[str, int | None]]:
        """The program and its flattened outputs (see `import_proto`); no program where no tensor comes out."""
        while True:
            constants = {name: given[name] for name in sorted(self._depends)}
            key = tuple((v.shape, v.dtype.str, v.tobytes()) for v in constants.values())
            if key not in self._programs:
                shapes = {n: tuple((d, d) for d in v.shape) for n, v in given.items() if n not in constants}
                try:
                    imported = import_proto(self._model, name="test", shapes=shapes, constants=constants, flatten=True)
                except NeedsConstants as reason:
                    if reason.names <= self._depends:
                        raise
                    self._depends |= reason.names
                    continue
                program = compile_in_process(imported) if imported.outputs else None
                self._programs[key] = program, imported.report.get("flattened", {})
            return self._programs[key]


def _typed(array: np.ndarray, kind: int) -> np.ndarray:
    """An output in its ONNX type, where that is of less than a byte."""
    dtype = element_dtype(kind) if kind in _NARROW_KINDS else ""
    return restored_array(array, dtype) if dtype else array


def _regrouped(name: str, results: dict[str, np.ndarray], flattened: dict[str, int | None]) -> object:
    """An output as the caller expects it: a tensor, a list of tensors, or None."""
    if name not in flattened:
        return results[name]
    count = flattened[name]
    return None if count is None else [results[f"{name}.{i}"] for i in range(count)]


def flat_inputs(model: onnx.ModelProto, inputs: Sequence[object]) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A model with tensors for inputs, which first builds from them what `inputs` are, and these tensors."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    graph = out.graph
    infos = list(graph.input)
    del graph.input[:]
    tensors: list[np.ndarray] = []
    nodes: list[onnx.NodeProto] = []
    for info, value in zip(infos, inputs):
        kind = info.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
            if value is None:
                nodes.append(onnx.helper.make_node("Optional", [], [info.name], type=kind))
                continue
        if kind.HasField("tensor_type"):
            graph.input.append(onnx.helper.make_value_info(info.name, kind))
            tensors.append(value)
            continue
        names = [f"{info.name}.{i}" for i in range(len(value))]
        element = onnx.TypeProto()
        element.tensor_type.elem_type = kind.sequence_type.elem_type.tensor_type.elem_type
        graph.input.extend(onnx.helper.make_value_info(name, element) for name in names)
        tensors.extend(value)
        nodes.append(onnx.helper.make_node("SequenceConstruct" if names else "SequenceEmpty", names, [info.name]))
    body = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *body])
    return out, tensors


class HaloBackend(Backend):
    """Compiles for the host's CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: object) -> HaloRep:
        check_model(model, None)
        return HaloRep(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


prepare = HaloBackend.prepare
run = HaloBackend.run_model
supports_device = HaloBackend.supports_device
