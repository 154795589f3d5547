"""PyTorch on plain modules with the same weights: eager, or compiled by inductor with frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..errors import MissingPackage
from .protocol import LoadRequest, serve

INSTALL = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


class Torch:
    """`options`: {"compile": bool, "autotune": bool}; autotune lets inductor time kernels of its own, too."""

    version = ""

    def load(self, request: LoadRequest) -> None:
        try:
            import torch
            from safetensors import safe_open
        except ModuleNotFoundError as error:
            raise MissingPackage(str(error.name), "the peer torch", INSTALL) from None
        from . import _torch_models, _torch_t5

        families = {
            **_torch_models.FAMILIES,
            "t5": _torch_t5.Encoder,
            "t5-cross": _torch_t5.Cross,
            "t5-decoder": _torch_t5.Decoder,
        }
        torch.set_num_threads(request.threads)
        torch.set_num_interop_threads(1)
        self.version = torch.__version__
        self.torch = torch
        description = request.described(families)
        path, weights = str(Path(request.model) / "weights.safetensors"), {}
        with safe_open(path, "pt") as file:
            names = list(file.keys())
        for name in names:  # opened for each: the pages of one mapping would all count as this process's memory
            with safe_open(path, "pt") as file:
                weights[name] = file.get_tensor(name).clone()
        self.module = families[description["family"]](description["config"], weights).eval()
        self.inputs: list[str] = description["inputs"]
        self.output_names: list[str] = description["outputs"]
        if request.options.get("compile"):
            import torch._inductor.config as inductor

            inductor.freezing = True
            inductor.max_autotune = bool(request.options.get("autotune"))
            self.module = torch.compile(self.module)

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        tensors = self._tensors(inputs)

        def run() -> None:
            with self.torch.no_grad():
                self.module(*tensors)

        for _ in range(2):  # compilation happens in the first run
            run()
        return run

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with self.torch.no_grad():
            result = self.module(*self._tensors(inputs))
        results = result if isinstance(result, tuple) else (result,)
        return {name: value.numpy() for name, value in zip(self.output_names, results, strict=True)}

    def _tensors(self, inputs: Mapping[str, np.ndarray]) -> list[object]:
        return [self.torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in self.inputs]


if __name__ == "__main__":
    serve(Torch())
