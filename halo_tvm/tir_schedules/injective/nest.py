"""One output of an injective function, with every intermediate inlined."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ..code.lanes import constant, index, simplify
from ..code.lets import hoist_lets


@dataclass(frozen=True)
class Nest:
    """One output: y[axes...] = value."""

    output: ir.Var
    indices: tuple[Expr, ...]
    axes: tuple[ir.Var, ...]
    extents: tuple[Expr, ...]
    value: Expr


def without_ones(nest: Nest) -> Nest:
    """`nest` without its axes of one element, behind which the vectors of an image of one channel would be lost."""
    kept = [constant(extent) != 1 for extent in nest.extents]
    if all(kept) or not any(kept):
        return nest
    zeros = {axis: index(0) for axis, keep in zip(nest.axes, kept) if not keep}
    return Nest(
        nest.output,
        tuple(substituted(at, zeros) for at in nest.indices),
        tuple(itertools.compress(nest.axes, kept)),
        tuple(itertools.compress(nest.extents, kept)),
        substituted(nest.value, zeros),
    )


def store_at(nest: Nest, here: Mapping[ir.Var, Expr]) -> tirx.Stmt:
    """The statement for the element at `here`."""
    indices = [simplify(substituted(i, here)) for i in nest.indices]
    return tirx.BufferStore(nest.output, hoist_lets(substituted(nest.value, here)), indices)


def substituted(expr: Expr, values: Mapping[ir.Var, Expr]) -> Expr:
    """`expr` with variables replaced."""
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: values.get(v, v)), order="post")


def read_from(value: Expr, held: Iterable[tuple[ir.TensorLoad, ir.Var]], place: Expr) -> Expr:
    """`value` with loads that are `held` taken from their buffers, at `place`."""
    held = list(held)

    def load(node: ir.TensorLoad) -> Expr:
        return next((buffer[place] for access, buffer in held if tvm_ffi.structural_equal(node, access)), node)

    return tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post")


def bits(buffer: ir.Var) -> int:
    """Width of one element."""
    return tvm_ffi.dtype(str(buffer.dtype)).bits
