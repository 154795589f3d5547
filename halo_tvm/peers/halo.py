"""Our own artifact through the public runtime, in its own process like every peer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np

from .protocol import LoadRequest, serve


class Halo:
    """`halo_tvm.load` and the executor's interface."""

    version = ""

    def load(self, request: LoadRequest) -> None:
        # Where torch is installed, tvm_ffi imports it, 200 MiB that nothing here uses: this is how a process looks
        # that has the runtime only.
        sys.modules.setdefault("torch", None)
        import halo_tvm

        self.version = halo_tvm.__version__
        self.module = halo_tvm.load(request.model, threads=request.threads, **request.options)

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        self.module.set_input(**inputs)
        return self.module.run

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.module.run(**inputs)
        return {spec.name: self.module.get_output(spec.name) for spec in self.module.output_specs}


if __name__ == "__main__":
    serve(Halo())
