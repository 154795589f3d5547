"""Fourier transforms of tensors whose last axis holds the real and the imaginary part."""

from __future__ import annotations

from ...meaning import fourier
from .._complex import transform
from .._primitive import Primitive
from .._registry import converter
from .._values import Value


@converter(transform.name)
def discrete_fourier(c: Primitive) -> Value:
    length = c.walker.dims.dim(c.params["length"])
    return fourier.transform(c, c.x(), length, c.params["inverse"], c.params["onesided"], c.params["axis"])
