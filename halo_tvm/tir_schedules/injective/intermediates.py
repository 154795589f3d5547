"""Values of a function's own buffers, written where they are read.

Before -> after
    a[i] = f(x[i]);  y[i] = a[i] * g(a[i])    ->    y[i] = f(x[i]) * g(f(x[i]))
    the same, where that would be long        ->    y[i] = let a = f(x[i]) in a * g(a)
Written out, the steps of an integrator (x + h * (x - x * x * x), eight times) would be 5^8 expressions.
What only some elements may read, behind the condition of `if_then_else`, has names of its own there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...errors import Declined
from ..blocks import Block, choices_along, chosen_along, is_choice, length, loads
from ..code.lanes import index, simplify
from ..code.lets import chain_of, hoist_lets, under_lets, with_own_names
from .nest import substituted

MAX_NODES = 20_000  # of one value: beyond, compilation takes seconds
_MOST_PLACES = 2_000
_MUCH, _FUNCTION = 150, 20  # nodes from which on what is read several times is named; of a function's polynomial


@dataclass(frozen=True)
class _Held:
    """The values of a buffer, as its block writes them."""

    block: Block
    store: tirx.BufferStore
    value: Expr  # with loads of earlier intermediates
    number: int
    weight: int  # with all of these written out

    def at(self, load: ir.TensorLoad, value: Expr) -> Expr:
        """`value` of this buffer where `load` reads it."""
        here = {at: place for at, place in zip(self.store.indices, load.indices) if isinstance(at, ir.Var)}
        here |= {v: index(0) for v in self.block.vars if v not in here}
        return with_own_names(substituted(value, here))


@dataclass
class _Place:
    """One place of an intermediate: its value with what that reads, and how often it is read itself."""

    load: ir.TensorLoad
    value: Expr
    count: int = 0
    reads: list[tuple[ir.TensorLoad, _Place]] = field(default_factory=list)


class Intermediates:
    """Blocks in the order they run, each of which may read those before it."""

    def __init__(self) -> None:
        self._held: dict[ir.Var, _Held] = {}
        self._whole: dict[ir.Var, Expr] = {}
        self._left = _MOST_PLACES

    def add(self, block: Block, store: tirx.BufferStore, value: Expr) -> None:
        """What `block` stores at `store`; `value` may read what was added before."""
        self._held[store.buffer] = _Held(block, store, value, len(self._held), self._weight(value))

    def inlined(self, value: Expr) -> Expr:
        """`value` without loads of intermediates; `Declined` where it would be too long."""
        self._left = _MOST_PLACES
        result = self._inlined(value)
        if length(result) > MAX_NODES:
            raise Declined(f"an inlined expression has more than {MAX_NODES} nodes")
        return result

    def _inlined(self, value: Expr) -> Expr:
        if self._weight(value) <= _MUCH:
            return self._written_out(value)
        found: dict[ir.Var, list[_Place]] = {}
        reads = self._collected(value, found)
        places = sorted((place for same in found.values() for place in same), key=lambda p: self._of(p.load).number)
        chain: list[tuple[tirx.Var, Expr]] = []
        made: dict[int, Expr] = {}
        for place in places:
            lets, last = chain_of(hoist_lets(self._with(place.value, place.reads, made)))
            chain += lets
            made[id(place)] = last
            dtype = str(last.ty.dtype)
            if place.count > 1 and length(last) > 1 and dtype != "bool":  # TVM has no names of vectors of those
                wide = "float32" if dtype == "bfloat16" else dtype  # TVM lowers it by integers, which a name is none of
                var = tirx.Var("named", wide)
                chain.append((var, last.astype(wide)))
                made[id(place)] = var.astype(dtype)
        return under_lets(chain, self._with(value, reads, made))

    def _of(self, load: ir.TensorLoad) -> _Held:
        return self._held[load.source]

    def _is_held(self, load: ir.TensorLoad) -> bool:
        return load.source in self._held

    def _weight(self, value: Expr) -> int:
        calls: list[ir.Call] = []
        tvm_ffi.structural_walk(value, (ir.Call, calls.append), order="post")
        inside = sum(self._of(load).weight for load in loads(value) if self._is_held(load))
        return length(value) + _FUNCTION * len(calls) + inside

    def _collected(self, value: Expr, found: dict[ir.Var, list[_Place]]) -> list[tuple[ir.TensorLoad, _Place]]:
        """What `value` reads, behind no condition; all places that it is made of go into `found`."""
        reads: list[tuple[ir.TensorLoad, _Place]] = []
        waiting = [(value, reads)]
        while waiting:  # no recursion: chains may be long
            expr, its_reads = waiting.pop()
            for load in filter(self._is_held, loads(_unguarded(expr))):
                self._left -= 1
                if self._left < 0:
                    raise Declined(f"an inlined expression reads more than {_MOST_PLACES} places of intermediates")
                at = tirx.BufferLoad(load.source, list(map(simplify, load.indices)))  # equal places look alike
                same = found.setdefault(load.source, [])
                place = next((p for p in same if tvm_ffi.structural_equal(p.load, at)), None)
                if place is None:
                    held = self._of(load)
                    place = _Place(at, held.at(at, held.value))
                    same.append(place)
                    waiting.append((place.value, place.reads))
                place.count += 1
                its_reads.append((load, place))
        return reads

    def _with(self, value: Expr, reads: list[tuple[ir.TensorLoad, _Place]], made: Mapping[int, Expr]) -> Expr:
        """`value` with what was `made` of its `reads`; branches read what they read."""

        def load(node: ir.TensorLoad) -> Expr:
            place = next((place for own, place in reads if tvm_ffi.structural_equal(own, node)), None)
            return node if place is None else made[id(place)]

        changed = []  # made here, since no callback may raise
        for call in _choices(value):
            choices, rest = choices_along(call)
            parts = [(self._with(c.args[0], reads, made), self._inlined(c.args[1])) for c in choices]
            changed.append((call, chosen_along(choices, parts, self._inlined(rest))))

        def choice(node: ir.Call) -> Expr:
            return next((new for call, new in changed if call.same_as(node)), node)

        # From outside: a place may be made of another one.
        return tvm_ffi.structural_map(value, ((ir.TensorLoad, load), (ir.Call, choice)), order="pre")

    def _written_out(self, value: Expr) -> Expr:
        """`value` with everything written where it is read."""
        read = [load for load in loads(value) if self._is_held(load)]
        if not read:
            return value
        needed: set[ir.Var] = set()
        waiting = [load.source for load in read]
        while waiting:
            source = waiting.pop()
            if source not in self._whole and source not in needed:
                needed.add(source)
                waiting += [load.source for load in loads(self._held[source].value) if self._is_held(load)]
        for source in sorted(needed, key=lambda s: self._held[s].number):
            self._whole[source] = self._from_whole(self._held[source].value)
        return self._from_whole(value)

    def _from_whole(self, value: Expr) -> Expr:
        def load(node: ir.TensorLoad) -> Expr:
            return self._of(node).at(node, self._whole[node.source]) if self._is_held(node) else node

        return tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post")


def _choices(value: Expr) -> list[ir.Call]:
    """The outermost parts of `value` of which only some elements read all."""
    found: list[ir.Call] = []

    def choice(call: ir.Call) -> Expr:
        if is_choice(call):
            found.append(call)
            return call.args[0]
        return call

    tvm_ffi.structural_map(value, (ir.Call, choice), order="pre")
    return found


def _unguarded(value: Expr) -> Expr:
    """`value` without what only some elements may read."""
    return tvm_ffi.structural_map(value, (ir.Call, lambda c: c.args[0] if is_choice(c) else c), order="pre")
