"""LiteRT's interpreter on the file: the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._reasons import not_run
from ._file import Signature

Arrays = Mapping[str, NDArray[Any]]
Engine = Callable[[Arrays], dict[str, NDArray[Any]]]


def engine(
    path: Path, signature: Signature, states: Mapping[str, int], behind: Mapping[str, tuple[str, int]]
) -> Engine | None:
    """Outputs of `signature` for inputs by name; None where LiteRT (the extra `tflite`) is not installed.

    `states`, inputs and outputs as well, are variables among the tensors of the first graph, by their numbers.
    `behind`, of `detection.rows_behind`, names outputs whose rows behind a count LiteRT does not write; they are 0.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        return None

    def run(inputs: Arrays) -> dict[str, NDArray[Any]]:
        results = written(inputs)
        for name, (count, each) in behind.items():
            results[name] = np.array(results[name])
            results[name][:, each * int(results[count].item()) :] = 0
        return results

    def written(inputs: Arrays) -> dict[str, NDArray[Any]]:
        try:
            interpreter = Interpreter(str(path), num_threads=1)
            if signature.key and not states:
                # The runner resizes the inputs to what it is given.
                outputs = interpreter.get_signature_runner(signature.key)(**inputs)
                return {name: np.asarray(outputs[name]) for name in signature.outputs}
            for name, index in signature.inputs.items():
                interpreter.resize_tensor_input(index, inputs[name].shape)
            interpreter.allocate_tensors()
            for name, index in {**signature.inputs, **states}.items():
                interpreter.set_tensor(index, inputs[name])
            interpreter.invoke()
            results = {**signature.outputs, **states}
            return {name: np.array(interpreter.get_tensor(index)) for name, index in results.items()}
        except (RuntimeError, ValueError) as reason:
            raise not_run("LiteRT", path.name, reason) from reason

    return run
