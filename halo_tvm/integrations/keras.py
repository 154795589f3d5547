"""A compiled model as a layer of Keras, on the backend that Keras runs on: jax, torch or tensorflow.

    x = halo_tvm.integrations.keras.HaloLayer("encoder.halo")(ids)
    net = keras.Model(ids, keras.layers.Dense(2)(x))

The layer has no weights and no derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..artifact import read_manifest
from ..errors import EnvironmentProblem, MissingPackage, UnsupportedModel
from ._call import in_order, result_shapes

try:
    import keras
except ImportError as missing:
    if missing.name != "keras":
        raise EnvironmentProblem(
            f"expected that Keras can import its backend, found that it lacks {missing.name}: name one that is "
            "installed in the variable KERAS_BACKEND (jax, torch or tensorflow) before Keras is imported"
        ) from missing
    raise MissingPackage("keras", "an artifact as a layer", "pip install 'halo_tvm[keras]'") from missing


class HaloLayer(keras.layers.Layer):
    """An artifact as a layer: called with a tensor, a list in the order of the inputs, or a dict by their names.

    It returns one tensor, or a dict by output name. A saved model holds the path of the artifact, and is loaded with
    `custom_objects={"HaloLayer": HaloLayer}`, which vouches for it: an artifact is code.
    """

    def __init__(self, artifact: Path | str, *, threads: int | None = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **{**kwargs, "trainable": False})
        self.artifact, self.threads = str(artifact), threads
        self._spec = read_manifest(Path(artifact)).functions["main"]
        self._function = _function(self.artifact, threads)

    def call(self, inputs: Any) -> Any:
        return self._function(*self._ordered(inputs))

    def compute_output_spec(self, inputs: Any) -> Any:
        shapes = [tuple(x.shape) for x in self._ordered(inputs)]
        found = result_shapes(self._spec.inputs, self._spec.outputs, shapes)
        tensors = {
            spec.name: keras.KerasTensor(shape, spec.dtype)
            for spec, shape in zip(self._spec.outputs, found, strict=True)
        }
        return tensors if len(tensors) > 1 else next(iter(tensors.values()))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "artifact": self.artifact, "threads": self.threads}

    def _ordered(self, inputs: Any) -> list[Any]:
        if isinstance(inputs, Mapping):
            return in_order(self._spec.inputs, (), inputs)
        return in_order(self._spec.inputs, inputs if isinstance(inputs, list | tuple) else (inputs,), {})


def _function(artifact: str, threads: int | None) -> Callable[..., Any]:
    """The artifact as a function of the backend's tensors."""
    backend = keras.backend.backend()
    if backend == "jax":
        from .jax import function as of_jax

        return of_jax(artifact, threads=threads)
    if backend == "tensorflow":
        from .tensorflow import function as of_tensorflow

        return of_tensorflow(artifact, threads=threads)
    if backend == "torch":
        from .torch import HaloModule

        return HaloModule(artifact, threads=threads)
    raise UnsupportedModel(
        f"expected Keras on jax, torch or tensorflow, found it on {backend}: set KERAS_BACKEND before keras is imported"
    )
