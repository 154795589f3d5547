"""Plain TVM: its ONNX importer, its default Relax pipeline, no schedules, no libraries.

That runs one thread of unblocked loops, hundreds of times slower than anything else here, so only a small
model is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata

import numpy as np

from ..errors import MissingPackage, PeerFailed
from .protocol import LoadRequest, serve

MOST_WEIGHTS = 8 << 20  # numbers; a run reads each once per row


class PlainTvm:
    """Static sizes, `relax.build` with the default pipeline."""

    version = ""

    def load(self, request: LoadRequest) -> None:
        try:
            import onnx
            import tvm
        except ModuleNotFoundError as error:
            raise MissingPackage(str(error.name), "the peer tvm", "pip install apache-tvm onnx") from None
        self.model = onnx.load(request.model)
        weights = sum(int(np.prod(t.dims)) for t in self.model.graph.initializer)
        if weights > MOST_WEIGHTS:
            raise PeerFailed(
                f"expected a model of at most {MOST_WEIGHTS:,} weights, found {weights:,}: "
                "TVM's default pipeline would take minutes a run; compare with another engine"
            )
        self.tvm = tvm
        self.version = metadata.version("apache-tvm")

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        machine, arguments = self._built(inputs)
        return lambda: machine["main"](*arguments)

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        machine, arguments = self._built(inputs)
        result = machine["main"](*arguments)
        fields = [result] if hasattr(result, "numpy") else list(result)
        names = [spec.name for spec in self.model.graph.output]
        return {name: field.numpy() for name, field in zip(names, fields, strict=True)}

    def _built(self, inputs: Mapping[str, np.ndarray]) -> tuple[object, list[object]]:
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        names = [spec.name for spec in self.model.graph.input]
        mod = from_onnx(self.model, shape_dict={name: list(inputs[name].shape) for name in names})
        target = self.tvm.target.Target({"kind": "llvm", "mcpu": self.tvm.target.codegen.llvm_get_system_cpu()})
        machine = relax.VirtualMachine(relax.build(mod, target), self.tvm.cpu())
        return machine, [self.tvm.runtime.tensor(np.ascontiguousarray(inputs[name])) for name in names]


if __name__ == "__main__":
    serve(PlainTvm())
