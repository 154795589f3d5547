"""A Keras model -> `ImportedModel`, by the importer of the backend that Keras runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from ...artifact import RANDOM_STATE
from ...errors import UnsupportedModel
from ...imported import ImportedModel
from .declared import Bounds, arranged, declared

_EXAMPLE_SIZE = 16  # of open sizes while torch traces: room for windows, below most tables


def import_file(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """The `.keras` or HDF5 file at `path`; `options`: "shapes", by input a low and a high bound for each dimension."""
    if path.suffix == ".keras":
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    else:
        from ._hdf5 import load

        model = load(path)
    shapes: dict[str, Bounds] = {k: tuple((b[0], b[1]) for b in v) for k, v in dict(options["shapes"]).items()}
    return import_built(model, path.stem, shapes)


def import_built(model: Any, name: str, bounds: Mapping[str, Bounds]) -> ImportedModel:
    """`model` under `name`; inputs have the names that Keras gives them, the only output is `output`."""
    backend = keras.backend.backend()
    if backend not in _ROADS:
        raise UnsupportedModel(
            f"expected Keras on {', '.join(_ROADS)}, found it on {backend}: set KERAS_BACKEND before keras is imported"
        )
    declared(model, bounds)  # says what is missing before a backend does
    imported = _ROADS[backend](model, name, bounds)
    return replace(imported, source={"kind": "keras", "name": name}, report={**imported.report, "backend": backend})


def _on_jax(model: Any, name: str, bounds: Mapping[str, Bounds]) -> ImportedModel:
    from ..jax import import_function

    def traced(together: bool) -> ImportedModel:
        found = declared(model, bounds, together=together)
        specs = [(", ".join(map(str, spec.shape)), spec.dtype) for spec in found.inputs]
        return import_function(model, None, *specs, name=name, ranges=found.ranges)

    if len(model.inputs) == 1:
        return traced(together=True)
    try:  # inputs of different lengths, as of an encoder and a decoder
        return traced(together=False)
    except UnsupportedModel:
        return traced(together=True)


def _on_torch(model: Any, name: str, bounds: Mapping[str, Bounds]) -> ImportedModel:
    import torch

    from ..torch_export import import_module

    class Flat(torch.nn.Module):
        """The model as a function of its inputs in their order."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> object:
            return self.model(arranged(self.model, list(inputs)), training=False)

    found = declared(model, bounds, together=False)
    examples, dynamic = [], []
    for spec in found.inputs:
        sizes, open_axes = [], {}
        for axis, size in enumerate(spec.shape):
            if isinstance(size, str):
                low, high = found.ranges.get(size, (1, 1 << 20))
                open_axes[axis] = torch.export.Dim.AUTO(min=low, max=high)
                size = min(max(2 if axis == 0 else _EXAMPLE_SIZE, low), high)
            sizes.append(size)
        examples.append(torch.zeros(sizes, dtype=getattr(torch, spec.dtype)))
        dynamic.append(open_axes or None)
    imported = import_module(Flat().eval(), examples, dynamic_shapes=(tuple(dynamic),), name=name)
    return _renamed(imported, found.names, list(imported.outputs))


def _on_tensorflow(model: Any, name: str, bounds: Mapping[str, Bounds]) -> ImportedModel:
    """As one function in memory: a directory would be moved into place, which no confined process may do."""
    import tensorflow as tf

    from ..tensorflow.convert import import_concrete

    found = declared(model, bounds, together=False)
    specs = [
        tf.TensorSpec([d if isinstance(d, int) else None for d in spec.shape], spec.dtype, spec.name)
        for spec in found.inputs
    ]
    call = tf.function(lambda *inputs: model(arranged(model, list(inputs)), training=False))
    function = call.get_concrete_function(*specs)
    result = function.structured_outputs
    keys = sorted(result) if isinstance(result, dict) else range(len(tf.nest.flatten(result)))
    outputs = [key if isinstance(key, str) else f"output_{key}" for key in keys]
    if not isinstance(result, dict | list | tuple):
        outputs = ["output"]
    return import_concrete(function, found.names, outputs, name, bounds, first="batch")


_ROADS: dict[str, Callable[[Any, str, Mapping[str, Bounds]], ImportedModel]] = {
    "jax": _on_jax,
    "torch": _on_torch,
    "tensorflow": _on_tensorflow,
}


def _renamed(model: ImportedModel, inputs: list[str], outputs: list[str]) -> ImportedModel:
    """`model` with other names for its inputs and outputs, its engine's included."""
    engine = model.engine
    assert engine is not None, "an importer of Keras's backends brings an engine"
    drawing = [name for name in model.outputs if name == RANDOM_STATE]
    inputs, outputs = [*inputs, *drawing], [*outputs, *drawing]
    given = dict(zip(inputs, (spec.name for spec in model.inputs), strict=True))
    made = dict(zip(model.outputs, outputs, strict=True))

    def run(values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        found = engine({given[name]: np.asarray(value) for name, value in values.items()})
        return {made[name]: value for name, value in found.items()}

    specs = tuple(replace(spec, name=name) for spec, name in zip(model.inputs, inputs, strict=True))
    drawn = tuple(made[name] for name in model.drawn)
    return replace(model, inputs=specs, outputs=tuple(outputs), engine=run, drawn=drawn)
