"""Compiled models inside JAX.

    fast = halo_tvm.integrations.jax.function("model.halo")     arrays in, arrays out
    jax.jit(lambda ids: fast(ids).argmax(-1))                   also inside jit, as a callback on the CPU

Arrays on the CPU come in without a copy, results go out without one where they are aligned. Under `jit` the sizes of
results follow from those of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingPackage, UsageError
from ..runtime.inputs import check_types
from ._call import can_be_shared, foreign_device, in_order, named, no_derivative, result_shapes, run_of

try:
    import jax
except ImportError as missing:
    raise MissingPackage("jax", "calling an artifact from JAX", "pip install 'halo_tvm[jax]'") from missing


def function(artifact: Path | str, *, threads: int | None = None) -> Callable[..., Any]:
    """The artifact as a function of JAX arrays, by position or name: one result, or a dict of several by name.

    It has no derivative: `jax.grad` and `jax.jvp` of it raise `UsageError`.
    So do arrays on another device than the CPU.
    """
    from ..runtime import load

    program = load(str(artifact), threads=threads)
    inputs, outputs, run = program.input_specs, program.output_specs, run_of(program)

    dtypes = [jax.dtypes.canonicalize_dtype(spec.dtype) for spec in outputs]  # jax has 64 bits only where it is told so

    def narrowed(*arrays: Any) -> tuple[np.ndarray[Any, Any], ...]:
        results = run(*map(_host, arrays))
        return tuple(a.astype(dtype, copy=False) for a, dtype in zip(results, dtypes, strict=True))

    @jax.custom_jvp
    def flat(*arrays: Any) -> tuple[Any, ...]:
        if not any(isinstance(x, jax.core.Tracer) for x in arrays):
            return tuple(map(_array, run(*map(_host, arrays))))
        check_types(program.spec, [(x.dtype, x.shape) for x in arrays])  # while tracing, not in the callback
        shapes = result_shapes(inputs, outputs, [x.shape for x in arrays])
        unknown = [spec.name for spec, shape in zip(outputs, shapes, strict=True) if None in shape]
        if unknown:
            raise UsageError(
                f"expected results whose sizes are sizes of inputs, found others in {', '.join(unknown)}: "
                "call the function outside of jit"
            )
        types = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        return tuple(jax.pure_callback(narrowed, types, *arrays, vmap_method="sequential"))

    @flat.defjvp
    def _derivative(primals: object, tangents: object) -> object:
        raise no_derivative()

    def call(*args: Any, **kwargs: Any) -> Any:
        return named(outputs, flat(*in_order(inputs, args, kwargs)))

    return call


def _host(array: Any) -> np.ndarray[Any, Any]:
    """`array` as NumPy's view of the same memory."""
    if not isinstance(array, jax.Array):
        return np.asarray(array)
    kinds = {device.platform for device in array.devices()}
    if kinds != {"cpu"}:
        raise foreign_device(", ".join(sorted(kinds)), "jax.device_put")
    return np.from_dlpack(array)


def _array(array: np.ndarray[Any, Any]) -> Any:
    if can_be_shared(array) and jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype:
        return jax.dlpack.from_dlpack(array)
    return jax.numpy.asarray(array)
