"""onnxruntime on the exported model: its fastest way to run.

All graph optimisations, spinning threads, bound buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..errors import MissingPackage
from .protocol import LoadRequest, serve


class OnnxRuntime:
    """CPU execution provider, sequential execution. `options`: {"optimisation": "all" | "extended"}."""

    version = ""

    def load(self, request: LoadRequest) -> None:
        try:
            import onnxruntime as ort
        except ModuleNotFoundError:
            raise MissingPackage("onnxruntime", "the peer onnxruntime", "pip install onnxruntime") from None
        options = ort.SessionOptions()
        options.intra_op_num_threads = request.threads
        options.inter_op_num_threads = 1
        level = str(request.options.get("optimisation", "all")).upper()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.log_severity_level = 3
        self.version = ort.__version__
        self.session = ort.InferenceSession(request.model, options, providers=["CPUExecutionProvider"])

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        kept = self._declared(inputs)
        binding = self.session.io_binding()
        for name, array in kept.items():
            binding.bind_cpu_input(name, array)
        # Outputs go to fixed buffers: large logits would otherwise be allocated again in every run.
        buffers = self.session.run(None, kept)
        for spec, array in zip(self.session.get_outputs(), buffers, strict=True):
            binding.bind_output(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        session, held = self.session, (kept, buffers)

        def run() -> None:
            assert held
            session.run_with_iobinding(binding)

        return run

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [spec.name for spec in self.session.get_outputs()]
        results = self.session.run(names, self._declared(inputs))
        # As our exporter writes state: an output of an input's name.
        return {name.removesuffix(".next"): value for name, value in zip(names, results, strict=True)}

    def _declared(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {spec.name: np.ascontiguousarray(inputs[spec.name]) for spec in self.session.get_inputs()}


if __name__ == "__main__":
    serve(OnnxRuntime())
