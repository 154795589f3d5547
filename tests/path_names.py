"""ONNX models whose values have names as exporters give them: paths and numbers, which no language takes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx


def name_by_paths(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    """Give `model` its weights, and everything but its inputs and results such names, in place."""
    kept = {"", *(value.name for value in (*model.graph.input, *model.graph.output))}

    def path(name: str) -> str:
        return name if name in kept else f"9/net.{name}@1"

    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, path(name)) for name, array in weights.items())
    for node in model.graph.node:
        node.input[:], node.output[:] = map(path, node.input), map(path, node.output)
