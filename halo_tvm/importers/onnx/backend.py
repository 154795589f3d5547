"""halo_tvm as a backend of the ONNX project's own test suite: `onnx.backend.base.Backend`.

A graph whose shapes depend on the values of inputs (axes, sizes, repeats) is compiled once for every such
combination of values: the tests give as run-time inputs what models keep as constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from ...errors import InputError
from ...in_process import Program, compile_in_process
from . import NeedsConstants, import_proto
from ._file import check_model


class HaloRep(BackendRep):
    """A model that is compiled when it first runs, for the values that its shapes depend on."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        held = {i.name for i in model.graph.initializer}
        self._names = [i.name for i in model.graph.input if i.name not in held]
        self._optional = [i.name for i in model.graph.input if i.name in held]
        self._depends: frozenset[str] = frozenset()
        self._programs: dict[tuple, Program] = {}

    def run(self, inputs: Sequence[np.ndarray], **_: object) -> tuple[np.ndarray, ...]:
        """The outputs in order for `inputs` in order."""
        given = {name: np.asarray(value) for name, value in zip(self._names, inputs)}
        if len(inputs) > len(self._names):
            raise InputError(f"expected {len(self._names)} inputs, found {len(inputs)}: leave the others out")
        program = self._program(given)
        results = program(**{name: value for name, value in given.items() if name not in self._depends})
        return tuple(results[o.name] for o in self._model.graph.output)

    def _program(self, given: dict[str, np.ndarray]) -> Program:
        while True:
            constants = {name: given[name] for name in sorted(self._depends)}
            key = tuple((v.shape, v.dtype.str, v.tobytes()) for v in constants.values())
            if key not in self._programs:
                shapes = {n: tuple((d, d) for d in v.shape) for n, v in given.items() if n not in constants}
                try:
                    imported = import_proto(self._model, name="test", shapes=shapes, constants=constants)
                except NeedsConstants as reason:
                    if reason.names <= self._depends:
                        raise
                    self._depends |= reason.names
                    continue
                self._programs[key] = compile_in_process(imported)
            return self._programs[key]


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
