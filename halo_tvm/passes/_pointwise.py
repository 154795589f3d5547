"""Element-wise kernels of an importer's own: recognised, so that a pass can compute them in another layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx

from ..errors import Declined
from ..relay_ops.operator import op_name, same_shape, shaped
from ..tir_schedules.blocks import is_const, loads, uses, without_loads
from ..tir_schedules.injective.match import nests_of
from ..tir_schedules.injective.nest import Nest
from ..tir_schedules.stages import is_at

BYTES = ("int8", "uint8")
# Operators that make every element of the same element of their operands, or of one of a row for all.
UNARY = {
    "relax.nn.relu",
    "relax.nn.gelu",
    "relax.nn.gelu_tanh",
    "relax.nn.silu",
    "relax.sigmoid",
    "relax.tanh",
    "relax.erf",
    "relax.exp",
    "relax.sqrt",
    "relax.rsqrt",
    "relax.negative",
    "relax.abs",
    "relax.round",
    "relax.astype",
}
BINARY = {"relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum", "relax.minimum"}


@dataclass(frozen=True)
class Pointwise:
    """A call of a kernel whose every element is made of the same element of `full` operands, and of scalars."""

    name: str
    nest: Nest
    params: tuple[ir.Var, ...]  # buffers, one for each operand
    operands: tuple[relax.Expr, ...]
    full: frozenset[int]  # numbers of the operands that have the result's shape
    sizes: tuple[
        tuple[ir.Var, ir.Expr], ...
    ] = ()  # dimensions whose values the kernel reads, and what they are in main

    def on(self, builder: relax.BlockBuilder, moved: Callable[[relax.Expr], relax.Expr | None]) -> relax.Call | None:
        """The same of other operands: `moved` gives what stands for a full one; None where it has nothing."""
        operands = [moved(x) if i in self.full else x for i, x in enumerate(self.operands)]
        if any(x is None for x in operands):
            return None

        def compute(*arguments: te.Tensor | ir.Expr) -> te.Tensor:
            tensors, sizes = arguments[: len(operands)], arguments[len(operands) :]
            known = {size: value for (size, _), value in zip(self.sizes, sizes)}

            def element(*index: ir.Expr) -> ir.Expr:
                def load(node: ir.TensorLoad) -> ir.Expr:
                    i = next(i for i, param in enumerate(self.params) if param.same_as(node.source))
                    return tensors[i][index if i in self.full else tuple(node.indices)]

                def size(node: ir.Var) -> ir.Expr:
                    return known.get(node, node)

                return tvm_ffi.structural_map(self.nest.value, [(ir.TensorLoad, load), (ir.Var, size)], order="post")

            return te.compute(tensors[min(self.full)].shape, element, name=self.name)

        values = [value for _, value in self.sizes]
        return builder.call_te(compute, *operands, *values, primfunc_name_hint=self.name)


def pointwise_of(mod: tvm.IRModule, call: relax.Call) -> Pointwise | None:
    """`call` as an element-wise kernel, or None."""
    if op_name(call) != "relax.call_tir" or len(call.args) != 2 or not isinstance(call.args[1], relax.Tuple):
        return None
    func, operands = mod[call.args[0]], tuple(call.args[1].fields)
    if not isinstance(func, tirx.PrimFunc):
        return None
    try:
        nests = nests_of(func)
    except Declined:
        return None
    if len(nests) != 1 or not is_at(nests[0].indices, nests[0].axes):
        return None
    (nest,), params = nests, tuple(func.params[: len(operands)])
    full = set()
    for load in loads(nest.value):
        number = next((i for i, param in enumerate(params) if param.same_as(load.source)), None)
        if number is None:
            return None
        if _is_here(load.indices, nest):
            types = (operands[number].ty, call.ty_args[0])
            if not all(map(shaped, types)) or not same_shape(*(ty.shape.values for ty in types)):
                return None  # the first elements of a larger one
            full.add(number)
        elif any(uses(at, axis) for at in load.indices for axis in nest.axes) or number in full:
            return None
    bare = without_loads(nest.value)
    if not full or any(uses(bare, axis) for axis in nest.axes):
        return None
    read = _sizes_read(nest, params, operands)
    return None if read is None else Pointwise(call.args[0].name_hint, nest, params, operands, frozenset(full), read)


def _sizes_read(
    nest: Nest, params: Sequence[ir.Var], operands: Sequence[relax.Expr]
) -> tuple[tuple[ir.Var, ir.Expr], ...] | None:
    """The dimensions whose values `nest` reads, and what they are where it is called; None where one is not known."""
    dims = {}
    for param, operand in zip(params, operands):
        if shaped(operand.ty):
            dims |= {d: value for d, value in zip(param.shape, operand.ty.shape.values) if isinstance(d, ir.Var)}
    found: list[ir.Var] = []
    for expr in (without_loads(nest.value), *(at for load in loads(nest.value) for at in load.indices)):
        tvm_ffi.structural_walk(expr, (ir.Var, found.append), order="post")
    read = dict.fromkeys(var for var in found if not any(var.same_as(axis) for axis in nest.axes))
    return tuple((var, dims[var]) for var in read) if all(var in dims for var in read) else None


def _is_here(indices: Sequence[ir.Expr], nest: Nest) -> bool:
    """Whether `indices` are the place of the element that is made; along an axis of size one that is 0, too."""
    return len(indices) == len(nest.axes) and all(
        at.same_as(axis) or (is_const(at, 0) and is_const(extent, 1))
        for at, axis, extent in zip(indices, nest.axes, nest.extents)
    )


def operands_of(call: relax.Call) -> Sequence[relax.Expr]:
    """Of a call of an operator or of a kernel."""
    is_kernel = op_name(call) == "relax.call_tir" and isinstance(call.args[1], relax.Tuple)
    return call.args[1].fields if is_kernel else call.args
