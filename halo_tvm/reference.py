"""reference.npz: seeded inputs and what the source computes for them.

A built-in definition, with random or real weights, is evaluated by NumPy in float64; a model file by
the engine of its format.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .imported import ImportedModel, InputSpec
from .interpreter import evaluate_all

# Sizes per dimension and case: small, so that validating is quick; odd, so that tails are run.
_CASES = ({"batch": 1, "sequence": 16}, {"batch": 2, "sequence": 7})
_OTHER = (16, 7)


def cases_of(model: ImportedModel, seed: int) -> dict[str, np.ndarray]:
    """Arrays by the key of `runtime.validation`: case{i}.input.{name} and case{i}.output.{name}."""
    symbolic = any(isinstance(d, str) for spec in model.inputs for d in spec.shape)
    cases = []
    for i, sizes in enumerate(_CASES if symbolic else _CASES[:1]):
        dims = {name: min(max(sizes.get(name, _OTHER[i]), low), high) for name, (low, high) in model.ranges.items()}
        cases.append(random_inputs(model.inputs, dims, seed + i))
    results = [model.engine(case) for case in cases] if model.engine else evaluate_all(model, cases)
    arrays: dict[str, np.ndarray] = {}
    for i, (inputs, outputs) in enumerate(zip(cases, results)):
        arrays.update({f"case{i}.input.{name}": value for name, value in inputs.items()})
        arrays.update({f"case{i}.output.{name}": value for name, value in outputs.items()})
    return arrays


def random_inputs(specs: tuple[InputSpec, ...], dims: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Seeded inputs of the given sizes: normal numbers, or integers over the allowed values.

    A mask (an input that defaults to ones) hides the end of every row but the first, as padding does.
    """
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for spec in specs:
        shape = tuple(dims[d] if isinstance(d, str) else d for d in spec.shape)
        dtype = np.dtype(spec.dtype)
        if spec.default == "ones" and len(shape) == 2:
            visible = rng.integers(1, shape[1] + 1, shape[0])
            visible[0] = shape[1]
            inputs[spec.name] = (np.arange(shape[1]) < visible[:, None]).astype(dtype)
        elif dtype.kind == "f":
            inputs[spec.name] = rng.standard_normal(shape).astype(dtype)
        elif dtype.kind == "b":
            inputs[spec.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            low, high = spec.values or (0, 1)
            inputs[spec.name] = rng.integers(low, high + 1, shape).astype(dtype)
    return inputs
