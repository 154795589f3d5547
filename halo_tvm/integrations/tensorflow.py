"""Compiled models inside TensorFlow.

    fast = halo_tvm.integrations.tensorflow.function("model.halo")     tensors in, tensors out, eager
    tf.function(lambda ids: tf.argmax(fast(ids), -1))                  also inside a graph, as a call of Python

Tensors on the CPU come in without a copy, results go out without one where they are aligned. In a graph a size that the
artifact fixes, or that is known of an input, is known of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingPackage
from ._call import can_be_shared, foreign_device, in_order, named, no_derivative, result_shapes, run_of

try:
    import tensorflow as tf
except ImportError as missing:
    how = "pip install 'halo_tvm[tensorflow]'"
    raise MissingPackage("tensorflow", "calling an artifact from TensorFlow", how) from missing


def function(artifact: Path | str, *, threads: int | None = None) -> Callable[..., Any]:
    """The artifact as a function of tensors, by position or name: one result, or a dict of several by name.

    It has no derivative: a gradient through it raises `UsageError`, as do eager tensors of another device than the CPU.
    """
    from ..runtime import load

    program = load(str(artifact), threads=threads)
    inputs, outputs, run = program.input_specs, program.output_specs, run_of(program)

    def in_graph(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        shapes = result_shapes(inputs, outputs, [_known_shape(t, len(s.shape)) for t, s in zip(tensors, inputs)])
        results = tf.numpy_function(run, tensors, [tf.as_dtype(spec.dtype) for spec in outputs])
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)
        return list(results)

    @tf.custom_gradient
    def flat(*tensors: Any) -> tuple[list[tf.Tensor], Callable[..., object]]:
        def derivative(*_: object, **__: object) -> object:
            raise no_derivative()

        results = [_tensor(a) for a in run(*map(_host, tensors))] if tf.executing_eagerly() else in_graph(tensors)
        return results, derivative

    def call(*args: Any, **kwargs: Any) -> Any:
        given = in_order(inputs, args, kwargs)
        tensors = [tf.convert_to_tensor(value, spec.dtype) for value, spec in zip(given, inputs, strict=True)]
        return named(outputs, flat(*tensors))

    return call


def _known_shape(tensor: tf.Tensor, rank: int) -> Sequence[int | None]:
    return [None] * rank if tensor.shape.rank is None else list(tensor.shape)


def _host(tensor: Any) -> np.ndarray[Any, Any]:
    """An eager tensor as NumPy's view of the same memory."""
    if "CPU" not in tensor.device:
        raise foreign_device(tensor.device, "tf.identity under tf.device('CPU')")
    return np.asarray(tensor) if tensor.dtype == tf.bfloat16 else np.from_dlpack(tensor)


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    if can_be_shared(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)
