"""Compiled models inside JAX.

    fast = halo_tvm.integrations.jax.function("model.halo")     arrays in, arrays out
    jax.jit(lambda ids: fast(ids).argmax(-1))                   also inside jit, as a callback on the CPU

Arrays on the CPU come in without a copy. Under `jit` the sizes of results follow from those of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingPackage, UsageError

try:
    import jax
except ImportError as missing:
    raise MissingPackage("jax", "calling an artifact from JAX", "pip install 'halo_tvm[jax]'") from missing


def function(artifact: Path | str, *, threads: int | None = None) -> Callable[..., Any]:
    """The artifact as a function of JAX arrays: one result, or a dict of several by name.

    It has no derivative: under `jax.grad` jax says that a pure callback cannot be differentiated.
    Raises `UsageError` for arrays of another device than the CPU.
    """
    from ..runtime import load

    program = load(str(artifact), threads=threads)
    names = [spec.name for spec in program.output_specs]

    def run(*arrays: Any) -> tuple[np.ndarray[Any, Any], ...]:
        outputs = program(*map(_host, arrays))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def call(*inputs: Any) -> Any:
        if any(isinstance(x, jax.core.Tracer) for x in inputs):
            types = _result_types(program, inputs)
            results = jax.pure_callback(run, types, *inputs, vmap_method="sequential")
        else:
            results = tuple(map(jax.numpy.asarray, run(*inputs)))
        return results[0] if len(results) == 1 else dict(zip(names, results, strict=True))

    return call


def _host(array: Any) -> np.ndarray[Any, Any]:
    """`array` as NumPy's view of the same memory."""
    if not isinstance(array, jax.Array):
        return np.asarray(array)
    kinds = {device.platform for device in array.devices()}
    if kinds != {"cpu"}:
        raise UsageError(
            f"expected arrays on the CPU, found one on {', '.join(sorted(kinds))}: move it with jax.device_put"
        )
    return np.from_dlpack(array)


def _result_types(program: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Shapes of the results for inputs of known sizes."""
    sizes: dict[str, int] = {}
    for spec, value in zip(program.input_specs, inputs, strict=True):
        for dim, size in zip(spec.shape, value.shape, strict=True):
            if isinstance(dim, str):
                sizes[dim] = int(size)
    types = []
    for spec in program.output_specs:
        unknown = [dim for dim in spec.shape if isinstance(dim, str) and dim not in sizes]
        if unknown:
            raise UsageError(
                f"expected results whose sizes are sizes of inputs, found {', '.join(unknown)} in {spec.name}: "
                "call the function outside of jit"
            )
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
        types.append(jax.ShapeDtypeStruct(shape, spec.dtype))
    return tuple(types)
