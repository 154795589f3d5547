"""Converters by family; importing this package registers them all."""

from . import arithmetic, constants, control, indexing, movement, reductions, sorting  # noqa: F401
