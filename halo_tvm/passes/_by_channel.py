"""What treats every channel alike, with the channels last: kernels of an importer's own, pads, slices, softmax.

Before -> after
    y [n, c, *space] = f(x [n, c, *space])     ->   y' [n, *space, c] = f'(x' [n, *space, c])
A kernel of an importer's own is served when it makes an element of channel c of one channel of its operands, which
does not move the spatial axes by c: slopes, gates, resizing, padding, windows of the spatial axes, the interleaving
of phases. What it reads besides is read where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import tvm_ffi
from tvm import ir, relax, te, tirx

from ..errors import Declined
from ..relay_ops.operator import op_name, shaped
from ..tir_schedules.blocks import is_const, loads, uses, without_loads
from ..tir_schedules.injective.match import nests_of
from ..tir_schedules.injective.nest import Nest
from ..tir_schedules.stages import is_at
from ._pointwise import operands_of

T = TypeVar("T")
# (value whose channels are second) -> the same with its channels last
Last = Callable[[relax.Expr], relax.Expr]


def moved_axis(axis: int, rank: int) -> int:
    """Where `axis` of a channels-first tensor is with the channels last."""
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


def to_last(values: Sequence[T]) -> list[T]:
    """What belongs to the axes [n, c, *space], as [n, *space, c]."""
    return [values[0], *values[2:], values[1]]


@dataclass(frozen=True)
class _Twin:
    """A kernel of known sizes with the channels last, and the numbers of the operands that have them so."""

    kernel: ir.GlobalVar
    by: frozenset[int]


class ByChannel:
    """Makes the channels-last twins of what treats channels alike."""

    def __init__(self, builder: relax.BlockBuilder, last: Last) -> None:
        self._builder, self._last = builder, last
        self._kernels: dict[str, _Twin] = {}  # by the name of what they are of: a recurrent net calls one many times

    def twin(self, call: relax.Call, ty: relax.TensorType, made: Mapping[relax.Expr, object]) -> relax.Expr | None:
        """The channels-last twin of `call`, which makes a `ty`; None where it does not treat channels alike.

        `made` has the values whose twins are known already: without one among the operands nothing is gained.
        """
        name, rank = op_name(call), ty.ndim
        if name == "relax.call_tir":
            return self._of_kernel(call, ty, made) if any(a in made for a in operands_of(call)) else None
        if not call.args or call.args[0] not in made:
            return None
        x = self._last(call.args[0])
        if name == "relax.nn.pad":
            widths = [int(w) for w in call.attrs.pad_width]
            moved = [w for a in to_last(range(rank)) for w in widths[2 * a : 2 * a + 2]]
            return relax.op.nn.pad(x, moved, call.attrs.pad_mode, call.attrs.pad_value)
        if name == "relax.nn.softmax" or name == "relax.nn.log_softmax":
            axis = moved_axis(int(call.attrs.axis) % rank, rank)
            return getattr(relax.op.nn, name.removeprefix("relax.nn."))(x, axis)
        if name == "relax.strided_slice" and isinstance(call.args[1], relax.Tuple):
            axes = [moved_axis(int(a.value) % rank, rank) for a in call.args[1].fields]
            return relax.op.strided_slice(x, axes, *call.args[2:], assume_inbound=bool(call.attrs.assume_inbound))
        return None

    def _of_kernel(
        self, call: relax.Call, ty: relax.TensorType, made: Mapping[relax.Expr, object]
    ) -> relax.Call | None:
        given, name, shape = operands_of(call), call.args[0].name_hint, to_last(list(ty.shape.values))
        if name in self._kernels:
            known = self._kernels[name]
            moved = self._moved(given, known.by, made)
            return None if moved is None else relax.call_tir(known.kernel, moved, relax.TensorType(shape, ty.dtype))
        func = self._builder.get()[call.args[0]]
        if not isinstance(func, tirx.PrimFunc):
            return None
        numbers = [i for i, param in enumerate(func.params[: len(given)]) if isinstance(param.ty, tirx.BufferType)]
        params, operands = [func.params[i] for i in numbers], [given[i] for i in numbers]
        sizes = {param: size for param, size in zip(func.params, given) if not isinstance(param.ty, tirx.BufferType)}
        if not _with_sizes_of(sizes, params, operands) or (found := _nest(func, params)) is None:
            return None
        nest, by = found
        moved = self._moved(operands, by, made)
        if moved is None:
            return None

        def compute(known: Sequence[ir.Expr], shape: Sequence[ir.Expr], *tensors: te.Tensor) -> te.Tensor:
            def element(*index: ir.Expr) -> ir.Expr:
                at = {**dict(zip(sizes, known)), **dict(zip(nest.axes, (index[0], index[-1], *index[1:-1])))}

                def load(node: ir.TensorLoad) -> ir.Expr:
                    i = next(i for i, param in enumerate(params) if param.same_as(node.source))
                    places = list(node.indices)
                    return tensors[i][tuple(to_last(places) if i in by else places)]

                value = tvm_ffi.structural_map(nest.value, (ir.TensorLoad, load), order="post")
                return tvm_ffi.structural_map(value, (ir.Var, lambda v: at.get(v, v)), order="post")

            return te.compute(shape, element, name=name)

        # Sizes are arguments: TVM gives the kernel variables of its own for those of main.
        pattern = {"op_pattern": func.attrs["op_pattern"]} if func.attrs and "op_pattern" in func.attrs else {}
        twin = self._builder.call_te(
            compute, list(sizes.values()), shape, *moved, primfunc_name_hint=name, primfunc_attrs=pattern
        )
        if not sizes and len(operands) == len(given):
            self._kernels[name] = _Twin(twin.args[0], by)
        return twin

    def _moved(
        self, operands: Sequence[relax.Expr], by: frozenset[int], made: Mapping[relax.Expr, object]
    ) -> list[relax.Expr] | None:
        """`operands`, those of `by` with their channels last; None where no twin, or another's, is known."""
        twins = {i for i, x in enumerate(operands) if x in made}
        if not twins or not twins <= by:
            return None
        return [self._last(x) if i in by else x for i, x in enumerate(operands)]


def _nest(func: tirx.PrimFunc, params: Sequence[ir.Var]) -> tuple[Nest, frozenset[int]] | None:
    """(what the kernel computes, the numbers of the operands of which each channel makes channels of the result)."""
    try:
        nests = nests_of(func)
    except Declined:
        return None
    if len(nests) != 1 or len(nests[0].axes) < 3 or not is_at(nests[0].indices, nests[0].axes):
        return None
    (nest,) = nests
    channel = nest.axes[1]
    by: set[int] = set()
    besides: set[int] = set()
    for load in loads(nest.value):
        number = next((i for i, param in enumerate(params) if param.same_as(load.source)), None)
        users = [d for d, at in enumerate(load.indices) if uses(at, channel)]
        if number is None or any(d != 1 and not load.indices[d].same_as(channel) for d in users):
            return None
        is_image = len(load.indices) == len(nest.axes) and all(
            is_const(extent, 1) or any(uses(at, axis) for axis in nest.axes)
            for at, extent in zip(load.indices[2:], nest.extents[2:])
        )
        if users and not is_image and not load.indices[users[0]].same_as(channel):
            return None
        (by if is_image and users == [1] else besides).add(number)
    if by & besides or uses(without_loads(nest.value), channel):
        return None
    return nest, frozenset(by)


def _with_sizes_of(sizes: dict[ir.Var, ir.Expr], params: Sequence[ir.Var], operands: Sequence[relax.Expr]) -> bool:
    """Add the variables in the shapes of `params` to `sizes`, as main has them; False where one stays unknown."""
    for param, operand in zip(params, operands):
        if not shaped(operand.ty):
            return False
        for dim, size in zip(param.shape, operand.ty.shape.values):
            if isinstance(dim, ir.Var):
                sizes.setdefault(dim, size)
    free: list[ir.Var] = []
    for dim in (dim for param in params for dim in param.shape):
        tvm_ffi.structural_walk(dim, (ir.Var, free.append), order="post")
    return all(any(v.same_as(known) for known in sizes) for v in free)
