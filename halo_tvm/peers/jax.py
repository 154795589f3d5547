"""JAX through XLA's CPU compiler: the built-in families in jax.numpy, jitted, weights as arguments.

XLA takes one thread per processor that the process may use and has no other setting, so the worker gives
processors up before it imports JAX. It keeps one of each core before a second of any: other engines' threads find
free cores by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import MissingPackage
from .protocol import LoadRequest, serve

TOPOLOGY = Path("/sys/devices/system/cpu")


class Jax:
    """`jax.jit` of a pure function of weights and inputs, float32."""

    version = ""

    def load(self, request: LoadRequest) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, processors(sorted(os.sched_getaffinity(0)), request.threads))
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
        description = request.described(FAMILIES)
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


def processors(usable: Sequence[int], count: int, topology: Path = TOPOLOGY) -> list[int]:
    """`count` of the processors, those of different cores first."""

    def rank(cpu: int) -> int:
        """How many usable processors of the same core come before."""
        listed = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        if not listed.is_file():
            return 0
        spans = [part.split("-") for part in listed.read_text().strip().split(",")]  # "0,4" or "0-1"
        siblings = {other for span in spans for other in range(int(span[0]), int(span[-1]) + 1)}
        return sum(other in siblings for other in usable if other < cpu)

    return sorted(usable, key=lambda cpu: (rank(cpu), cpu))[:count]


if __name__ == "__main__":
    serve(Jax())
