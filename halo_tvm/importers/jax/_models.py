"""Models of libraries on JAX as functions of weights and inputs. No library is imported: who has a model has it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ...errors import UnsupportedModel, UsageError

# The function of weights and inputs, its weights, and the types of its inputs where the model declares them.
Door = tuple[Callable[..., object], object, Sequence[object] | None]


def opened(model: Any, weights: object) -> Door:
    """A Flax nnx module or a Keras model as a function of its own weights, a linen module of those that are given.

    Anything else is a function already, or called like one: an Equinox module with `weights` None is its own weights.
    """
    if _is(model, "flax.nnx", "Module"):
        return _of_nnx(model, weights)
    if _is(model, "flax.linen", "Module"):
        if weights is None:
            raise UsageError("expected the variables of a linen module, found none: pass what module.init returned")
        return lambda variables, *inputs: model.apply(variables, *inputs), weights, None
    if _is(model, "keras", "Model"):
        return _of_keras(model, weights)
    if _is(model, "equinox", "Module") and weights is None:
        return lambda module, *inputs: module(*inputs), model, None
    return model, weights, None


def _is(model: object, library: str, name: str) -> bool:
    kind = getattr(sys.modules.get(library), name, None)
    return isinstance(kind, type) and isinstance(model, kind)


def _of_nnx(model: Any, weights: object) -> Door:
    if weights is not None:
        raise UsageError("expected no weights beside an nnx module, which has its own, found some: pass None")
    nnx = sys.modules["flax.nnx"]
    graph, state = nnx.split(model)

    def function(values: object, *inputs: object) -> object:
        own = jax.tree_util.tree_map(lambda leaf: leaf, state)  # a state of this trace, not the model's
        nnx.replace_by_pure_dict(own, values)
        return nnx.merge(graph, own)(*inputs)

    return function, nnx.to_pure_dict(state), None


def _of_keras(model: Any, weights: object) -> Door:
    if weights is not None:
        raise UsageError("expected no weights beside a Keras model, which has its own, found some: pass None")
    backend = sys.modules["keras"].backend.backend()
    if backend != "jax":
        raise UnsupportedModel(
            f"expected Keras on the backend jax, found {backend}: set KERAS_BACKEND=jax before keras is imported"
        )
    trained, others = model.trainable_variables, model.non_trainable_variables
    if any(not value.built for value in model.layers):
        raise UsageError("expected a built Keras model, found layers without weights: call it once, or give it inputs")

    def function(values: dict[str, object], *inputs: object) -> object:
        lists = [[values[key] for key in _keys(variables)] for variables in (trained, others)]
        given = list(inputs) if len(inputs) != 1 else inputs[0]
        return model.stateless_call(*lists, given, training=False)[0]

    held = {key: v.value for group in (trained, others) for key, v in zip(_keys(group), group)}
    return function, held, _keras_specs(model)


def _keys(variables: Sequence[Any]) -> list[str]:
    """A name for each variable of a Keras model: its path, with a number where two have one."""
    out: list[str] = []
    for variable in variables:
        path = variable.path.replace("/", ".")
        out.append(path if path not in out else f"{path}_{len(out)}")
    return out


def _keras_specs(model: Any) -> list[object]:
    """The declared inputs; an unknown first axis is `batch`, any other `length_<axis>`."""
    specs: list[object] = []
    for tensor in model.inputs:
        sizes = [d if d is not None else "batch" if a == 0 else f"length_{a}" for a, d in enumerate(tensor.shape)]
        specs.append((", ".join(map(str, sizes)), str(tensor.dtype)))
    return specs
