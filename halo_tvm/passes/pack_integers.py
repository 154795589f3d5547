"""Pack the 8-bit weights of quantised model files once, at compile time, into the blocks their kernel reads.

Before -> after
    halo.linear_integer(q, z, w [k, n], layout="kn")
        ->   halo.linear_integer(q, z, w' [1, ceil(n/nr), ceil(k/4), nr, 4], sums [n], layout="packed")
    where k is no multiple of four, q is padded with columns that meet rows of zeros in w'
Leaves alone
    GPUs, whose rules read [k, n]; weights that are no parameter
No data moves here: `ParamRecipe`s say how w' and the sums of the columns are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import ir, relax

from ..relay_ops import OPERATORS
from ..relay_ops.linear_w8a8 import GROUP
from ..relay_ops.operator import attrs_of, operator_of
from ..targets import Target
from ..tir_schedules.products.gemm.narrow_pairs import NarrowPairs, marked_share
from ..tir_schedules.products.packing import pack_shape
from .graph_pass import Context, Pass, Report, bindings, rebuild
from .weights import WeightEditor

_MOST_MARKED = 0.2  # of the steps: from there on bytes that are widened are as fast
_LOW_ZERO = 64  # of rows that lie mostly below 128: whatever the weights, few steps need mending
_MOST_LOOKED_AT = 1 << 26  # bytes of a weight


@dataclass(frozen=True)
class PackIntegers(Pass):
    """Give every weight of an integer product the layout that the target's GEMM rule reads."""

    name = "pack_integers"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func, operator = mod["main"], OPERATORS["linear_integer"]
        if context.target.spec.gpu or not any(operator_of(b.value) is operator for b in bindings(func)):
            return mod, {"formats": {}}
        editor = WeightEditor(func, context.params)
        formats: dict[str, int] = {}

        def rewrite(call: relax.Call) -> relax.Expr:
            name = editor.name(call.args[2]) if operator_of(call) is operator else None
            if name is None or attrs_of(call)["layout"] != "kn":
                return call
            k = editor.params.shape(name)[0]
            packed, sums, how = packed_integers(editor, name, call.args[1], context.target)
            label = f"i8/k{GROUP}/n{packed.ty.shape.values[3]}"
            formats[label] = formats.get(label, 0) + 1
            q, zero = call.args[:2]
            if k % GROUP:
                q = relax.op.nn.pad(q, [0] * (2 * q.ty.ndim - 1) + [-k % GROUP])
            return operator.call(q, zero, packed, sums, **{**attrs_of(call), **how, "layout": "packed"})

        mod = editor.finish(mod, rebuild(func, rewrite).body)
        return relax.transform.Normalize()(mod), {"formats": formats}


def packed_integers(
    editor: WeightEditor, name: str, zero: relax.Expr, target: Target
) -> tuple[relax.Var, relax.Var, dict[str, object]]:
    """The weight [k, n] as [1, ceil(n/nr), ceil(k/4), nr, 4], the sums of its columns, attributes of the product."""
    k, n = editor.params.shape(name)
    _, nr = pack_shape(k, n, target)
    shape = (1, -(-n // nr), -(-k // GROUP), nr, GROUP)
    label = f"{name}|i8/k{GROUP}/n{nr}"
    packed = editor.derive(label, "pack_int8", [name], shape, nr=nr)
    sums = editor.derive(f"{name}|i8/sums", "sums_int8", [name], (n,), "int32")
    return packed, sums, narrow_pairs(editor, label, zero, target)


def narrow_pairs(editor: WeightEditor, packed: str, zero: relax.Expr, target: Target) -> dict[str, object]:
    """Attributes of a product by the weight `packed`: whether sums of two products mostly fit 16 bits.

    It is asked where the target gains by it. Rows whose zero point is low, as behind a ReLU, have few that do not. Of
    others the weights are looked at: a bell-shaped distribution has few, a uniform one has them everywhere.
    """
    isa = target.isa
    if not NarrowPairs.serves(isa.vector_bits, isa.byte_dot) or prod(editor.params.shape(packed)) > _MOST_LOOKED_AT:
        return {}
    low = isinstance(zero, ir.GenericConst) and int(zero.value.numpy()) <= _LOW_ZERO
    narrow = low or marked_share(editor.params.materialise(packed)) <= _MOST_MARKED
    return {"narrow": True} if narrow else {}
