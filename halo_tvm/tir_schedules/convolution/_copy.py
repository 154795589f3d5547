"""What the nest reads: x itself, or a copy of it in float32 that has its padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .._lanes import index, kept, product, simplify, unravel
from .._windows import Windows


@dataclass(frozen=True)
class Padded:
    """A buffer [batch, *sizes, c], of which windows begin `before` elements in front."""

    buffer: ir.Var
    before: tuple[int, ...]
    sizes: Sequence[ir.Expr]
    inside: tuple[bool, ...]  # by axis, whether no window reaches beyond the buffer

    @classmethod
    def of(cls, w: Windows) -> Padded:
        """x as it is."""
        return cls(w.x, w.before, w.sizes, tuple(w.is_inside(axis) for axis in range(w.rank)))

    def is_inside(self, axis: int) -> bool:
        return self.inside[axis]


def padded_copy(w: Windows, lanes: int) -> Padded:
    """Emit a copy of what the windows reach, in float32, zeros where x ends."""
    sizes = [w.reach(axis) for axis in range(w.rank)]
    buffer = T.alloc_buffer((w.batch, *sizes, w.channels), "float32", align=64)
    channels, width = w.channels, sizes[-1]
    begin = tirx.min(index(w.before[-1]), width)
    length = tirx.max(tirx.min(w.sizes[-1], width - begin), index(0))
    zero = tirx.const(0, "float32")
    with T.parallel(product([w.batch, *sizes[:-1]])) as row:
        n, *place = (kept(simplify(at)) for at in unravel(row, [w.batch, *sizes[:-1]]))
        source = [at - before for at, before in zip(place, w.before)]
        inside = [t for at, size in zip(source, w.sizes) for t in (at >= 0, at < size)]
        first = kept(simplify(begin * channels))
        whole = length * channels
        count = kept(simplify(tirx.if_then_else(tirx.all(*inside), whole, index(0)) if inside else whole))

        def at(flat: ir.Expr) -> list[ir.Expr]:
            return [flat // channels, flat % channels]

        with T.serial(first) as i:
            T.buffer_store(buffer, zero, [n, *place, *at(i)])
        with T.serial(count // lanes) as v, T.vectorized(index(lanes)) as lane:
            flat = v * lanes + lane
            value = w.x[(n, *source, *at(flat))].astype("float32")
            T.buffer_store(buffer, value, [n, *place, *at(first + flat)])
        with T.serial(count % lanes) as i:
            flat = count // lanes * lanes + i
            T.buffer_store(buffer, w.x[(n, *source, *at(flat))].astype("float32"), [n, *place, *at(first + flat)])
        with T.serial(simplify(width * channels) - first - count) as i:
            T.buffer_store(buffer, zero, [n, *place, *at(first + count + i)])
    return Padded(buffer, (0,) * w.rank, sizes, (True,) * w.rank)
