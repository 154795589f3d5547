"""A function of JAX -> `ImportedModel`: its jaxpr, walked primitive by primitive.

import_function(function, weights, *specs)    of arrays and pytrees of arrays

JAX traces; shapes, dtypes and symbolic sizes are those it states, and what follows from constants alone it computes.
"""

from __future__ import annotations

from ...errors import MissingPackage

try:
    import jax  # noqa: F401
except ImportError as missing:
    raise MissingPackage("jax", "reading a JAX function", "pip install 'halo_tvm[jax]'") from missing

from ._program import import_function

__all__ = ["import_function"]
