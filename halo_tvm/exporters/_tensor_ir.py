"""A kernel, a function of TensorIR that an importer made, as nodes of ONNX.

Each nest of loops that stores one element at a time is written from its expression (`_scalars.py`):

    out[i, j] = f(x[i, j], ...)               f of tensors
    out[i] = sum over k of f(...)             ReduceSum; an Einsum where f is a product
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir.prim import expr as prim

from ..errors import UnsupportedModel
from ._graph import Graph, is_int, same
from ._scalars import Elements, Read, Value

_REDUCED = {prim.Add: "ReduceSum", prim.Mul: "ReduceProd", prim.Max: "ReduceMax", prim.Min: "ReduceMin"}
_WITH = {prim.Add: "Add", prim.Mul: "Mul", prim.Max: "Max", prim.Min: "Min"}
_NOTHING = {prim.Add: 0, prim.Mul: 1}  # what a reduction begins with and need not be said
_EINSUM = ("float32", "float64")
_REDUCTION = 2  # an iteration variable that is summed over


def written_kernel(g: Graph, func: tirx.PrimFunc, call: relax.Call, names: Sequence[object]) -> str | tuple[str, ...]:
    """The results of `call` of `func` on tensors called `names`, None for a number among its arguments.

    Raises `UnsupportedModel` for a function that is more than nests of loops around one store each.
    """
    given = list(call.args[1].fields)
    numbers = list(call.args[2].values) if len(call.args) > 2 else []
    reads: dict[ir.Var, Read] = {}
    sizes: dict[ir.Var, ir.Expr] = {}
    outputs: list[tirx.Var] = []
    results = call.ty.fields if isinstance(call.ty, ir.TupleType) else [call.ty]
    for position, param in enumerate(func.params):
        if not isinstance(param.ty, tirx.BufferType):
            sizes[param] = given[position] if position < len(given) else numbers.pop(0)
            continue
        is_input = position < len(given)
        ty = given[position].ty if is_input else results[len(outputs)]
        if not isinstance(ty.shape, relax.ShapeExpr):
            raise UnsupportedModel("a kernel of tensors of unknown sizes")
        if is_input:
            reads[param] = Read(str(names[position]), list(ty.shape.values))
        else:
            outputs.append(param)
        for own, size in zip(param.ty.shape, ty.shape.values, strict=True):
            if isinstance(own, prim.Var):
                sizes.setdefault(own, size)
    for stage in _stages(func):
        _store(g, stage, reads, sizes)
    missing = [param for param in outputs if param not in reads]
    if missing:
        raise UnsupportedModel("a kernel that leaves a result unset")
    made = tuple(reads[param].name for param in outputs)
    return made if isinstance(call.ty, ir.TupleType) else made[0]


def _stages(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """The blocks of `func`, in the order in which they run."""
    root = getattr(func.body, "block", None)
    if root is None or root.iter_vars:
        raise UnsupportedModel("a kernel without blocks")
    found = []
    for part in root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]:
        while isinstance(part, tirx.For):
            part = part.body
        always = isinstance(part, s_tir.SBlockRealize) and is_int(part.predicate) and bool(part.predicate)
        if not always or not isinstance(part.block.body, tirx.BufferStore):
            raise UnsupportedModel("a kernel that does more than to store an element in each step")
        found.append(part.block)
    return found


def _store(g: Graph, block: s_tir.SBlock, reads: dict[ir.Var, Read], sizes: dict[ir.Var, ir.Expr]) -> None:
    """What `block` stores, as one more tensor to read."""

    def in_main(dim: ir.Expr) -> ir.Expr:
        return tvm_ffi.structural_map(dim, (prim.Var, lambda v: sizes.get(v, v)))

    store = block.body
    places = {var.var: place for place, var in enumerate(block.iter_vars)}
    elements = Elements(g, places, [in_main(var.dom.extent) for var in block.iter_vars], reads, sizes)
    summed = [place for place, var in enumerate(block.iter_vars) if int(var.iter_type) == _REDUCTION]
    value = elements.value(store.value) if block.init is None else _reduced(elements, block, summed)
    axes = [places[index] for index in store.indices if isinstance(index, prim.Var) and index in places]
    shape = [in_main(dim) for dim in store.buffer.ty.shape]
    fixed = [place for place, index in enumerate(store.indices) if is_int(index)]
    if len(axes) + len(fixed) < len(shape) or axes != sorted(set(axes)):
        raise UnsupportedModel("a kernel that stores its elements in another order")
    single = [place for place, axis in enumerate(value.axes) if axis not in axes]
    if single:  # loops of one step
        left = tuple(axis for axis in value.axes if axis in axes)
        value = Value(g.once("Squeeze", value.name, g.vector(single)), left)
    extents = [elements.extents[axis] for axis in axes]
    if not all(same(a, b) for a, b in zip(extents, (d for i, d in enumerate(shape) if i not in fixed), strict=True)):
        raise UnsupportedModel("a kernel that sets a part of its result")
    name = elements.whole(value, axes)
    if fixed:
        name = g.once("Unsqueeze", name, g.vector(fixed))
    reads[store.buffer] = Read(name, shape)


def _reduced(elements: Elements, block: s_tir.SBlock, summed: Sequence[int]) -> Value:
    """init combined with the step of `block` over the variables `summed`."""
    store, kind = block.body, type(block.body.value)
    if kind not in _REDUCED or not isinstance(block.init, tirx.BufferStore):
        raise UnsupportedModel("a kernel that reduces by more than a sum, a product or an extreme")
    sides = [store.value.a, store.value.b]
    own = [isinstance(side, ir.TensorLoad) and side.source.same_as(store.buffer) for side in sides]
    if sum(own) != 1:
        raise UnsupportedModel("a kernel that reduces its own results")
    step = sides[own.index(False)]
    value = _summed_product(elements, step, summed) if kind is prim.Add else None
    if value is None:
        value = elements.value(step)
        if kind in _NOTHING:
            axes = tuple(sorted({*value.axes, *summed}))
            value = Value(elements.whole(value, axes), axes)
        over = [place for place, axis in enumerate(value.axes) if axis in summed]
        if over:
            kept = tuple(axis for axis in value.axes if axis not in summed)
            value = Value(elements.g.once(_REDUCED[kind], value.name, elements.g.vector(over), keepdims=0), kept)
    first = block.init.value
    if kind in _NOTHING and isinstance(first, prim.IntImm | prim.FloatImm) and first.value == _NOTHING[kind]:
        return value
    return elements.node(_WITH[kind], value, elements.value(first))


def _summed_product(elements: Elements, step: ir.Expr, summed: Sequence[int]) -> Value | None:
    """The sum over a * b, or over that where a condition holds, as one Einsum; None where `step` is none."""
    condition = None
    if isinstance(step, ir.Call) and str(step.op.name).endswith("if_then_else") and _is_zero(step.args[2]):
        condition, step = step.args[0], step.args[1]
    if not isinstance(step, prim.Mul) or str(step.ty.dtype) not in _EINSUM:
        return None
    if condition is None:
        a, b = elements.value(step.a), elements.value(step.b)
    else:
        a, b = (elements.chosen(condition, side, prim.FloatImm(side.ty.dtype, 0.0)) for side in (step.a, step.b))
        plain = elements.chosen(condition, step.b, step.b)  # its places stay inside; a is zero where they do not
        b = plain if set(plain.axes) < set(b.axes) else b
    every = sorted({*a.axes, *b.axes})
    if not set(summed) <= set(every) or len(every) > len(string.ascii_letters):
        return None
    letter = dict(zip(every, string.ascii_letters, strict=False))
    kept = tuple(axis for axis in every if axis not in summed)
    left, right, out = ("".join(letter[axis] for axis in axes) for axes in (a.axes, b.axes, kept))
    name = elements.g.once("Einsum", a.name, b.name, equation=f"{left},{right}->{out}")
    return Value(name, kept)


def _is_zero(x: ir.Expr) -> bool:
    return isinstance(x, prim.IntImm | prim.FloatImm) and not np.any(x.value)
