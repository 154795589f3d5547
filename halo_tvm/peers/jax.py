"""JAX through XLA's CPU compiler: the built-in families in jax.numpy, jitted, weights as arguments.

XLA takes one thread per processor that the process may use and has no other setting, so the worker gives
processors up before it imports JAX.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..errors import MissingPackage, PeerFailed
from ._protocol import LoadRequest, serve


class Jax:
    """`jax.jit` of a pure function of weights and inputs, float32."""

    version = ""

    def load(self, request: LoadRequest) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request.threads])
        try:
            import jax
            from safetensors.numpy import load_file
        except ModuleNotFoundError as error:
            raise MissingPackage(str(error.name), "the peer jax", "pip install jax") from None
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)  # token numbers stay int64, as in every other engine
        from ._jax_models import FAMILIES

        self.version = jax.__version__
        self.jax = jax
        description = json.loads((Path(request.model) / "model.json").read_text(encoding="utf-8"))
        if description["family"] not in FAMILIES:
            raise PeerFailed(
                f"expected a model of {', '.join(sorted(FAMILIES))}, found {description['family']!r}: "
                "use --vs onnxruntime"
            )
        self.inputs: list[str] = description["inputs"]
        self.output_names: list[str] = description["outputs"]
        forward, config = FAMILIES[description["family"]], description["config"]
        self.weights = jax.device_put(load_file(str(Path(request.model) / "weights.safetensors")))
        self.forward = jax.jit(lambda weights, *inputs: forward(config, weights, *inputs))

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        arrays = [self.jax.device_put(inputs[name]) for name in self.inputs]

        def run() -> None:
            self.forward(self.weights, *arrays).block_until_ready()

        run()  # compiles
        return run

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        result = self.forward(self.weights, *(inputs[name] for name in self.inputs))
        return {self.output_names[0]: np.asarray(result)}


if __name__ == "__main__":
    serve(Jax())
