"""Models of libraries on JAX as functions of weights and inputs. No library is imported: who has a model has it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ...errors import UnsupportedModel, UsageError
from ..keras.declared import arranged, declared


class Door(NamedTuple):
    """A function of weights and inputs, its weights; what a model declares of its inputs."""

    function: Callable[..., object]
    weights: object
    specs: tuple[object, ...] = ()
    names: tuple[str, ...] = ()


def opened(model: Any, weights: object) -> Door:
    """A Flax nnx module or a Keras model as a function of its own weights, a linen module of those that are given.

    Anything else is a function already, or called like one: an Equinox module with `weights` None is its own weights.
    """
    if isinstance(model, Door):
        return model
    if _is(model, "flax.nnx", "Module"):
        return _of_nnx(model, weights)
    if _is(model, "flax.linen", "Module"):
        if weights is None:
            raise UsageError("expected the variables of a linen module, found none: pass what module.init returned")
        return Door(lambda variables, *inputs: model.apply(variables, *inputs), weights)
    if _is(model, "keras", "Model"):
        return _of_keras(model, weights)
    if _is(model, "equinox", "Module") and weights is None:
        return Door(lambda module, *inputs: module(*inputs), model)
    return Door(model, weights)


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

    return Door(function, nnx.to_pure_dict(state))


def _of_keras(model: Any, weights: object) -> Door:
    if weights is not None:
        raise UsageError("expected no weights beside a Keras model, which has its own, found some: pass None")
    backend = sys.modules["keras"].backend.backend()
    if backend != "jax":
        raise UnsupportedModel(
            f"expected Keras on the backend jax, found {backend}: set KERAS_BACKEND=jax before keras is imported"
        )
    inputs = declared(model, {}).inputs
    trained, others = model.trainable_variables, model.non_trainable_variables

    def function(values: dict[str, object], *given: object) -> object:
        lists = [[values[key] for key in _keys(variables)] for variables in (trained, others)]
        return model.stateless_call(*lists, arranged(model, list(given)), training=False)[0]

    held = {key: v.value for group in (trained, others) for key, v in zip(_keys(group), group)}
    specs = tuple((", ".join(map(str, spec.shape)), spec.dtype) for spec in inputs)
    return Door(function, held, specs, tuple(spec.name for spec in inputs))


def _keys(variables: Sequence[Any]) -> list[str]:
    """A name for each variable of a Keras model: its path, with a number where two have one."""
    out: list[str] = []
    for variable in variables:
        path = variable.path.replace("/", ".")
        out.append(path if path not in out else f"{path}_{len(out)}")
    return out
