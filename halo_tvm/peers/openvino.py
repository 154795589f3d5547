"""OpenVINO's CPU plugin on the exported model, compiled for exactly the sizes that are timed.

Settings: latency hint, one stream, the threads asked for, and the precision asked for (float32 unless said:
by default the plugin computes in bfloat16 where the CPU has it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from ..errors import MissingPackage
from .protocol import LoadRequest, serve

# Kinds of nodes of an executed graph that multiply with weights.
_PRODUCTS = ("FullyConnected", "MatMul", "Convolution")


class OpenVino:
    """`options`: {"precision": "f32" | "bf16" | "f16"}. `note` says in which precision products really ran."""

    version = ""
    note = ""

    def load(self, request: LoadRequest) -> None:
        try:
            import openvino
        except ModuleNotFoundError:
            raise MissingPackage("openvino", "the peer openvino", "pip install openvino nncf") from None
        self.version = openvino.__version__.split("-")[0]
        self.core = openvino.Core()
        self.path = request.model
        self.settings = {
            "INFERENCE_PRECISION_HINT": request.options.get("precision", "f32"),
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": request.threads,
            "NUM_STREAMS": 1,
        }

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        request, names = self._compiled(inputs)
        self.note = _precisions(request.get_compiled_model().get_runtime_model())
        kept = {name: np.ascontiguousarray(inputs[name]) for name in names}
        request.infer(kept, share_inputs=True, share_outputs=True)

        def run() -> None:
            assert kept
            request.infer(share_outputs=True)

        return run

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        request, names = self._compiled(inputs)
        request.infer({name: np.ascontiguousarray(inputs[name]) for name in names})
        # By position, under every name the model gives it: compiling may merge values and lose names.
        ports = self.core.read_model(self.path).outputs
        arrays = [np.array(request.get_output_tensor(i).data) for i in range(len(ports))]
        # As our exporter writes state: an output of an input's name.
        return {
            name.removesuffix(".next"): array
            for port, array in zip(ports, arrays, strict=True)
            for name in port.get_names()
        }

    def _compiled(self, inputs: Mapping[str, np.ndarray]) -> tuple[object, list[str]]:
        """A request of the model at the inputs' own sizes, and the inputs it declares."""
        model = self.core.read_model(self.path)
        names = [port.get_any_name() for port in model.inputs]
        model.reshape({name: list(inputs[name].shape) for name in names})
        return self.core.compile_model(model, "CPU", self.settings).create_infer_request(), names


def _precisions(executed: object) -> str:
    """What the nodes that multiply ran in, e.g. `FullyConnected u8 x 49`."""
    counts: Counter[str] = Counter()
    for node in executed.get_ordered_ops():
        info = node.get_rt_info()
        kind = str(info["layerType"].astype(str)) if "layerType" in info else ""
        if kind in _PRODUCTS:
            counts[f"{kind} {info['runtimePrecision'].astype(str)}"] += 1
    return ", ".join(f"{name} x {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    serve(OpenVino())
