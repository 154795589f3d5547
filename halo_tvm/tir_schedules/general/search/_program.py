"""What a function computes, nest by nest: reductions with the element-wise stages behind them, and maps.

Before -> after
    a[i] = f(x[i]); s[j] += a[..]; y[j] = g(s[j])   ->   one reduction: s[j] += f(x[..]), then y[j] = g(s[j])
A cheap intermediate, or one of which every element is read once, is inlined. An element-wise block that reads a
reduction at its own place becomes a stage of it; what nobody else reads of the reduction is never stored.
Declines
    functions without blocks or without a reduction, or scheduled already; dimensions that are long expressions; blocks
    with a predicate; a store whose place is not one iterator per axis (scatter); iterators that are no int64
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ....errors import Declined
from ...blocks import Block, calls, loads, unscheduled_blocks
from ...code.lanes import constant, product
from ...injective.intermediates import Intermediates
from ...injective.match import one_iterator_per_axis
from ...injective.nest import Nest, substituted
from ...rows.stages import Operation, accumulated

_LONG = 8  # operations in the dimensions of a function


@dataclass(frozen=True)
class Total:
    """A buffer that a reduction accumulates into: its place, how it begins, and its value after one more step."""

    buffer: ir.Var
    indices: tuple[Expr, ...]
    start: Expr
    update: Expr  # loads of totals are their values so far

    @property
    def operation(self) -> Operation | None:
        """Of `total = total operation operand`; None where steps must come in their order."""
        return None if self._accumulated is None else self._accumulated[0]

    @property
    def operand(self) -> Expr:
        assert self._accumulated is not None, "asked only where there is an operation"
        return self._accumulated[1]

    @cached_property
    def _accumulated(self) -> tuple[Operation, Expr] | None:
        return accumulated(self.update, self.buffer)


@dataclass(frozen=True)
class Stage:
    """An element-wise step on the totals, over the axes of their reduction."""

    buffer: ir.Var
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Reduction:
    """for axes: totals = start; for steps: totals = update; stages; the buffers in `stored` go to memory."""

    axes: tuple[ir.Var, ...]
    extents: tuple[Expr, ...]
    steps: tuple[ir.Var, ...]
    lengths: tuple[Expr, ...]
    totals: tuple[Total, ...]
    stages: tuple[Stage, ...] = ()
    stored: tuple[ir.Var, ...] = ()

    @property
    def written(self) -> tuple[ir.Var, ...]:
        return (*(t.buffer for t in self.totals), *(s.buffer for s in self.stages))

    @property
    def places(self) -> tuple[tuple[ir.Var, tuple[Expr, ...]], ...]:
        """The buffers that are written, each with its indices."""
        return (*((t.buffer, t.indices) for t in self.totals), *((s.buffer, s.indices) for s in self.stages))

    @property
    def iterators(self) -> tuple[tuple[ir.Var, Expr], ...]:
        """Axes, then steps, with their extents: what a decision numbers."""
        return (*zip(self.axes, self.extents), *zip(self.steps, self.lengths))


@dataclass(frozen=True)
class Program:
    nests: tuple[Reduction | Nest, ...]
    kept: tuple[ir.Var, ...]  # intermediates that live in memory

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        return tuple(nest for nest in self.nests if isinstance(nest, Reduction))


def program_of(func: tirx.PrimFunc) -> Program:
    """The nests of `func`, or `Declined` with the reason."""
    found = unscheduled_blocks(func)
    if not any("R" in block.kinds for block in found):
        raise Declined("no block reduces")
    if _spelled_out(func) > _LONG:
        raise Declined("the shapes are long expressions of dimensions: building the nests would take half a minute")
    local = tuple(func.body.block.alloc_buffers)
    inline = Intermediates()
    nests: list[Reduction | Nest] = []
    for block in found:
        _check(block)
        if "R" in block.kinds:
            nests.append(_reduction(block, inline))
            continue
        if block.store is None:
            raise Declined("a block without a reduction stores several values")
        value = inline.inlined(block.store.value)
        if any(load.source.same_as(block.store.buffer) for load in loads(value)):
            raise Declined("a block reads the buffer it writes")
        if _is(block.store.buffer, local) and _worth_inlining(block, value, found):
            inline.add(block, block.store, value)
        elif (at := _reduction_before(block, value, nests)) is not None:
            nests[at] = _with_stage(nests[at], block, value)
        else:
            nests.append(Nest(block.store.buffer, tuple(block.store.indices), block.vars, block.extents, value))
    nests = [_with_stored(nest, nests, local) if isinstance(nest, Reduction) else nest for nest in nests]
    written = [b for nest in nests for b in (nest.stored if isinstance(nest, Reduction) else (nest.output,))]
    return Program(tuple(nests), tuple(b for b in local if _is(b, written)))


def _spelled_out(func: tirx.PrimFunc) -> int:
    """Operations in the dimensions of the parameters: every access repeats those of its buffer."""
    count = [0]

    def visit(node: Expr) -> None:
        count[0] += not isinstance(node, (ir.Var, tirx.IntImm))

    for param in func.params:
        for dim in param.ty.shape if isinstance(param.ty, tirx.BufferType) else ():
            tvm_ffi.structural_walk(dim, (ir.Expr, visit), order="post")
    return count[0]


def with_named_extents(program: Program) -> tuple[Program, list[tirx.Stmt]]:
    """`program` with its symbolic extents as variables; the statements that name them and allocate intermediates.

    Places and numbers of tiles are made of extents: spelled out, the larger ones double the time that a build takes.
    """
    named: list[tirx.Bind] = []

    def name(extent: Expr) -> Expr:
        if isinstance(extent, (tirx.IntImm, ir.Var)):
            return extent
        for bind in named:
            if tvm_ffi.structural_equal(bind.value, extent):
                return bind.var
        named.append(tirx.Bind(tirx.Var("extent", "int64"), extent))
        return named[-1].var

    kept = {old: tirx.decl_buffer([name(e) for e in old.shape], str(old.dtype), name=old.name) for old in program.kept}

    def here(value: Expr) -> Expr:
        def load(node: ir.TensorLoad) -> Expr:
            return kept[node.source][list(node.indices)] if node.source in kept else node

        return tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post")

    nests: list[Reduction | Nest] = []
    for nest in program.nests:
        extents = tuple(name(extent) for extent in nest.extents)
        if isinstance(nest, Nest):
            output = kept.get(nest.output, nest.output)
            nests.append(replace(nest, extents=extents, output=output, value=here(nest.value)))
            continue
        totals = [replace(t, buffer=kept.get(t.buffer, t.buffer), update=here(t.update)) for t in nest.totals]
        stages = [replace(s, buffer=kept.get(s.buffer, s.buffer), value=here(s.value)) for s in nest.stages]
        stored = tuple(kept.get(buffer, buffer) for buffer in nest.stored)
        lengths = tuple(name(length) for length in nest.lengths)
        nests.append(
            replace(nest, extents=extents, lengths=lengths, totals=tuple(totals), stages=tuple(stages), stored=stored)
        )
    return Program(tuple(nests), tuple(kept.values())), [*named, *(tirx.AllocBuffer(b) for b in kept.values())]


def _check(block: Block) -> None:
    if not block.plain or "O" in block.kinds:
        raise Declined("a block has a predicate, or loops that are not its iterators")
    for store in _stores(block):
        if not one_iterator_per_axis(store, block):
            raise Declined("a store is not at one iterator per axis")
    if any(str(v.ty.dtype) != "int64" for v in block.vars):
        raise Declined("an iterator is no int64")


def _stores(block: Block) -> list[tirx.BufferStore]:
    """The stores of a block whose body is stores and the values they name; `Declined` for any other body."""
    body = block.node.body
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(part, (tirx.BufferStore, tirx.Bind)) for part in parts):
        raise Declined("a block has loops or conditions of its own")
    return [part for part in parts if isinstance(part, tirx.BufferStore)]


def _reduction(block: Block, inline: Intermediates) -> Reduction:
    body, init = block.node.body, block.node.init
    named: dict[ir.Var, Expr] = {}
    for part in list(body.seq) if isinstance(body, tirx.SeqStmt) else []:
        if isinstance(part, tirx.Bind):
            named[part.var] = substituted(part.value, named)
    starts = list(init.seq) if isinstance(init, tirx.SeqStmt) else [init]
    totals = []
    for store in _stores(block):
        start = next((s for s in starts if isinstance(s, tirx.BufferStore) and s.buffer.same_as(store.buffer)), None)
        if start is None or loads(start.value):
            raise Declined("a reduction does not begin with a value of its own")
        update = inline.inlined(substituted(store.value, named))
        totals.append(Total(store.buffer, tuple(store.indices), start.value, update))
    spatial = [n for n, kind in enumerate(block.kinds) if kind == "S"]
    reduced = [n for n, kind in enumerate(block.kinds) if kind == "R"]
    found = Reduction(
        tuple(block.vars[n] for n in spatial),
        tuple(block.extents[n] for n in spatial),
        tuple(block.vars[n] for n in reduced),
        tuple(block.extents[n] for n in reduced),
        tuple(totals),
    )
    for total in totals:
        for load in loads(total.update):
            own = next((t for t in totals if t.buffer.same_as(load.source)), None)
            if own is not None and not _all_same(load.indices, own.indices):
                raise Declined("a reduction reads its total at another place")
    return found


def _worth_inlining(block: Block, value: Expr, all_blocks: Sequence[Block]) -> bool:
    """Cheap, or every element read once: by one load of a block that runs over equally many iterations."""
    assert block.store is not None
    readers = [(b, load) for b in all_blocks for load in loads(b.node.body) if load.source.same_as(block.store.buffer)]
    if not readers:
        return False
    if not calls(value) and len(loads(value)) <= 1:
        return True
    reader = readers[0][0]
    once = tvm_ffi.structural_equal(product(reader.extents), product(block.extents))
    return len(readers) == 1 and ("R" not in reader.kinds or once)


def _reduction_before(block: Block, value: Expr, nests: Sequence[Reduction | Nest]) -> int | None:
    """Which of `nests` the element-wise `block` is a stage of: the last it reads from, if at its own place only."""
    assert block.store is not None
    read = loads(value)
    for at in reversed(range(len(nests))):
        nest = nests[at]
        written = nest.written if isinstance(nest, Reduction) else (nest.output,)
        mine = [load for load in read if _is(load.source, written)]
        if not mine:
            continue
        if not isinstance(nest, Reduction) or len(block.vars) != len(nest.axes):
            return None
        same = all(tvm_ffi.structural_equal(a, b) for a, b in zip(block.extents, nest.extents))
        places = dict(nest.places)
        here = dict(zip(block.vars, nest.axes))
        at_own = all(_all_same([substituted(i, here) for i in load.indices], places[load.source]) for load in mine)
        return at if same and at_own else None
    return None


def _with_stage(nest: Reduction | Nest, block: Block, value: Expr) -> Reduction:
    assert isinstance(nest, Reduction) and block.store is not None
    here: Mapping[ir.Var, Expr] = dict(zip(block.vars, nest.axes))
    indices = tuple(substituted(i, here) for i in block.store.indices)
    return replace(nest, stages=(*nest.stages, Stage(block.store.buffer, indices, substituted(value, here))))


def _with_stored(nest: Reduction, nests: Sequence[Reduction | Nest], local: Sequence[ir.Var]) -> Reduction:
    """Outputs of the function, and what other nests read."""
    read = [load.source for other in nests if other is not nest for load in _loads_of(other)]
    return replace(nest, stored=tuple(b for b in nest.written if not _is(b, local) or _is(b, read)))


def _loads_of(nest: Reduction | Nest) -> list[ir.TensorLoad]:
    values = (
        [nest.value] if isinstance(nest, Nest) else [*(t.update for t in nest.totals), *(s.value for s in nest.stages)]
    )
    return [load for value in values for load in loads(value)]


def _all_same(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(
        x.same_as(y) or constant(x) is not None and constant(x) == constant(y) for x, y in zip(a, b)
    )


def _is(buffer: ir.Var, among: Iterable[ir.Var]) -> bool:
    return any(buffer.same_as(other) for other in among)
