"""Vectors whose lanes lie apart, or in another order, are read in order and shuffled.

Before -> after, in a function whose arguments TVM has packed
    x[2 * i + (1, 0, 3, 2)]    ->    shuffle(x[2 * i + (0, 1, 2, 3)], (1, 0, 3, 2))
    x[i // 2 + (0, 0, 1, 1)]   ->    shuffle(x[i // 2 + (0, 1)], (0, 0, 1, 1))
    x[i + (0, 2, 4, 6)]        ->    shuffle(x[i + (0, 1, 2, 3)], x[i + (3, 4, 5, 6)], (0, 2, 5, 7))
Serves
    loads whose lanes are a constant distance apart, on CPUs: partners of pairs, repeats, strides, reversals
Leaves alone
    lanes too far apart; lanes whose distance is not known; bits, of which there is no vector
Nothing outside of the tensor is read: what lies between two of its elements is part of it.
Without it TVM reads lane by lane: an interleaved rotary embedding takes three times as long as one of halves.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import ir, sym, tirx
from tvm.ir import Expr

from .tir_schedules.blocks import loads
from .tir_schedules.code.lanes import constant

_MOST_LOADS = 4  # of whole vectors for one: with more, shuffles cost what single lanes do
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod, tirx.Min, tirx.Max)


@tirx.transform.prim_func_pass(opt_level=0, name="halo.LoadsInOrder")
def loads_in_order(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """The pass, for functions behind TVM's `VectorizeLoop` whose buffers are flat."""
    vectors: dict[ir.Var, Expr] = {}

    def note(bind: tirx.Bind) -> None:
        if _lanes(bind.value) > 1 and not loads(bind.value):  # what is read may be written before the variable is used
            vectors[bind.var] = bind.value

    tvm_ffi.structural_walk(func.body, (tirx.Bind, note))
    shuffling = _Loads(vectors)
    return func.with_body(tvm_ffi.structural_map(func.body, ((ir.TensorLoad, shuffling.in_order),), order="post"))


class _Loads:
    """Loads of one function. `vectors`: what its variables of more than one lane stand for."""

    def __init__(self, vectors: dict[ir.Var, Expr]) -> None:
        self.vectors = vectors
        self.analyzer = sym.Analyzer()

    def in_order(self, load: ir.TensorLoad) -> Expr:
        """`load`, or the same lanes out of loads in order."""
        index = load.indices[-1]
        if isinstance(index, tirx.Broadcast) or (lanes := _lanes(index)) == 1 or len(load.indices) > 1:
            return load
        if isinstance(index, tirx.Ramp) and constant(index.stride) == 1 or str(load.ty.dtype).startswith("bool"):
            return load
        first = self.lane(index, 0)
        if first is None:
            return load
        distances = [0]
        for at in range(1, lanes):
            distance = constant(self.analyzer.simplify(self.lane(index, at) - first))
            if distance is None or abs(distance) >= _MOST_LOADS * lanes:
                return load
            distances.append(distance)
        return _shuffled(load, first, distances)

    def lane(self, vector: Expr, at: int) -> Expr | None:
        """Lane `at` of `vector`; None where it is not made of ramps by arithmetic."""
        if _lanes(vector) == 1:
            return vector
        if isinstance(vector, tirx.Ramp):
            return vector.base + vector.stride * at
        if isinstance(vector, tirx.Broadcast):
            return vector.value
        if isinstance(vector, ir.Var):
            return self.lane(self.vectors[vector], at) if vector in self.vectors else None
        if isinstance(vector, tirx.Cast):
            value = self.lane(vector.value, at)
            return None if value is None else value.astype(str(vector.ty.dtype).split("x")[0])
        if isinstance(vector, _ARITHMETIC):
            a, b = self.lane(vector.a, at), self.lane(vector.b, at)
            return None if a is None or b is None else type(vector)(a, b)
        return None


def _shuffled(load: ir.TensorLoad, first: Expr, distances: Sequence[int]) -> Expr:
    """Elements of `load.source` at `distances` from `first`, of vectors between the nearest and the farthest."""
    least, lanes = min(distances), len(distances)
    span = max(distances) - least + 1
    if span == 1:
        return tirx.Broadcast(load.source[first], lanes)
    width = min(span, lanes)
    # The last vector ends with the farthest element.
    starts = [min(start, span - width) for start in range(0, span, width)]
    order = []
    for distance in distances:
        vector = (distance - least) // width
        order.append(vector * width + distance - least - starts[vector])
    vectors = [load.source[tirx.Ramp(first + (least + start), 1, width)] for start in starts]
    vectors *= -(-lanes // (width * len(vectors)))  # TVM gives no more lanes than it takes
    return tirx.Shuffle(vectors, [tirx.IntImm("int32", place) for place in order])


def _lanes(value: Expr) -> int:
    return int(value.ty.dtype.lanes) if isinstance(value.ty, ir.PrimType) else 1
