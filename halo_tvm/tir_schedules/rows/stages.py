"""Functions of rows: what each block does along the last axis, for the rules that serve them on CPUs and on GPUs.

Serves
    functions whose blocks share their leading spatial loops (the rows) and have at most one loop more
    (the depth): reductions over it, maps over it, and scalars of a row
Declines
    no reduction; loops that differ; several reduced axes; a reduced axis that is not the operand's last;
    reductions of several values (argmax); a stage that reads another row
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...errors import Declined
from ...extremes import maximum, minimum
from ..blocks import Block, loads, unscheduled_blocks, uses
from ..code.lanes import constant, is_var

Operation = Callable[[Expr, Expr], Expr]
OPERATIONS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)
_CHOICES = (maximum, minimum)  # as expressions of floating-point numbers: a selection of the total or of the element


@dataclass(frozen=True)
class Stage:
    """One block: a map or a reduction over the depth, or a scalar of the row."""

    block: Block
    rows: tuple[ir.Var, ...]  # iterators of the row
    depth: ir.Var | None
    operation: Operation | None  # of a reduction
    value: Expr  # what is stored, or what is reduced
    init: Expr | None
    target: ir.Var  # buffer written
    indices: tuple[Expr, ...]
    position: int | None  # of the depth among the indices

    @property
    def start(self) -> Expr | None:
        """What every lane of a reduction starts with."""
        return start_of(self.operation, self.init, dtype_of(self.target))

    def begun(self, total: Expr) -> Expr:
        """`total`, of lanes that started so, with the block's initial value."""
        if self.operation not in (tirx.Add, tirx.Mul) or _is_neutral(self.init, self.operation):
            return total
        return self.operation(self.init, total)


@dataclass(frozen=True)
class Rows:
    extents: tuple[Expr, ...]
    depth: Expr
    stages: tuple[Stage, ...]
    local: tuple[ir.Var, ...]  # intermediates


def rows_of(func: tirx.PrimFunc) -> Rows:
    """The rows of `func`, or `Declined` with the reason."""
    found = unscheduled_blocks(func)
    reducing = [b for b in found if "R" in b.kinds]
    if not reducing:
        raise Declined("no block reduces anything")
    first = reducing[0]
    if first.kinds.count("R") != 1:
        raise Declined(f"one reduced axis is served, found {first.kinds.count('R')}")
    extents = tuple(e for e, kind in zip(first.extents, first.kinds) if kind == "S" and constant(e) != 1)
    depth = first.extents[first.kinds.index("R")]
    local = tuple(func.body.block.alloc_buffers)
    stages: list[Stage] = []
    for block in found:
        stages.append(_stage(block, extents, depth))
    outputs = [s.target for s in stages]
    for stage in stages:
        _check_loads(stage, stages, outputs)
    return Rows(extents, depth, tuple(stages), local)


def _stage(block: Block, extents: tuple[Expr, ...], depth: Expr) -> Stage:
    if not block.plain or set(block.kinds) - {"S", "R"}:
        raise Declined("a block has a predicate, or loops that are not its iterators")
    if block.store is None:
        raise Declined("a block stores several values (argmax and the like)")
    core = [(v, e, k) for v, e, k in zip(block.vars, block.extents, block.kinds) if k == "R" or constant(e) != 1]
    rows = core[: len(extents)]
    if [k for _, _, k in rows] != ["S"] * len(extents) or not all(_same(e, x) for (_, e, _), x in zip(rows, extents)):
        raise Declined("the blocks do not share their leading loops")
    rest = core[len(extents) :]
    if len(rest) > 1 or (rest and not _same(rest[0][1], depth)):
        raise Declined("a block has other loops than the rows and the reduced axis")
    var = rest[0][0] if rest else None
    store = block.store
    operation, value, init = None, store.value, None
    if rest and rest[0][2] == "R":
        operation, value, init = _reduction(block)
    position = next((i for i, at in enumerate(store.indices) if var is not None and is_var(at, var)), None)
    return Stage(
        block, tuple(v for v, _, _ in rows), var, operation, value, init, store.buffer, tuple(store.indices), position
    )


def _reduction(block: Block) -> tuple[Operation, Expr, Expr]:
    """Operation, operand and initial value of a reduction block."""
    store = block.store
    assert store is not None and isinstance(block.node.init, tirx.BufferStore), (
        "a reduction stores one value and has an init"
    )
    found = accumulated(store.value, store.buffer)
    if found is None and not isinstance(store.value, (*OPERATIONS, tirx.Select)):
        raise Declined(f"reduces by {type(store.value).__name__}, served are Add, Mul, Max and Min")
    if found is None:
        raise Declined("the update of a reduction is not `total = total op value`")
    return *found, block.node.init.value


def accumulated(update: Expr, buffer: ir.Var) -> tuple[Operation, Expr] | None:
    """(operation, operand) where `update` is `total operation operand`, total being read of `buffer`; else None.

    Steps may come in any order then. The larger and the smaller of two floats are choices, which NaN ends.
    """
    candidates: list[tuple[Operation, Expr, Expr]] = []
    if isinstance(update, OPERATIONS):
        candidates = [(type(update), update.a, update.b), (type(update), update.b, update.a)]
    elif isinstance(update, tirx.Select) and dtype_of(buffer).startswith(("float", "bfloat")):
        total, element = update.true_value, update.false_value
        candidates = [(choice, total, element) for choice in _CHOICES if _same(update, choice(total, element))]
    for operation, total, element in candidates:
        if isinstance(total, ir.TensorLoad) and total.source.same_as(buffer):
            return None if any(x.source.same_as(buffer) for x in loads(element)) else (operation, element)
    return None


def _check_loads(stage: Stage, stages: Sequence[Stage], outputs: Sequence[ir.Var]) -> None:
    """Loads of earlier stages must be of the same row; a reduction must run along its operands' last axis."""
    for load in loads(stage.value):
        writer = next((s for s in stages if s.target.same_as(load.source)), None)
        if writer is not None:
            for at, mine in zip(load.indices, writer.indices):
                if not _same_place(at, mine, stage, writer):
                    raise Declined("a stage reads another row, or another place of the row, than it is at")
        if stage.operation is not None and stage.depth is not None:
            for at in load.indices[:-1]:
                if uses(at, stage.depth):
                    raise Declined("the reduced axis is not the last axis of its operand")


def _same_place(at: Expr, mine: Expr, reader: Stage, writer: Stage) -> bool:
    for row_here, row_there in zip(reader.rows, writer.rows):
        if is_var(mine, row_there):
            return is_var(at, row_here)
    if writer.depth is not None and is_var(mine, writer.depth):
        return reader.depth is not None and is_var(at, reader.depth)
    # What is left are iterators of extent one, whose place is zero whatever the reader calls it.
    return isinstance(mine, ir.Var) or constant(mine) is not None and constant(at) == constant(mine)


def passes(rows: Rows) -> list[list[int]]:
    """Stages that share one pass over the row: none needs a scalar that another of them makes."""
    groups: list[list[int]] = []
    for number, stage in enumerate(rows.stages):
        made = [rows.stages[n] for n in groups[-1]] if groups else []
        waits = any(
            w.depth is None or w.operation is not None and any(w.target.same_as(x.source) for x in loads(stage.value))
            for w in made
        )
        if groups and not waits and stage.depth is not None:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def is_divisor(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether a map over the depth divides by this float32 scalar: one division per row replaces one per element.

    x * (1 / s) is within two units in the last place of x / s for s of 2**-126 to 2**126 in size; below 2**-128 1 / s
    is infinite, and so is the product.
    """
    if stage.depth is not None and stage.operation is None or dtype_of(stage.target) != "float32":
        return False
    found: list[tirx.Div] = []
    for other in stages:
        if other.depth is not None:
            tvm_ffi.structural_walk(other.value, (tirx.Div, found.append), order="post")
    return any(isinstance(d.b, ir.TensorLoad) and d.b.source.same_as(stage.target) for d in found)


def by_inverses(value: Expr, rows: Rows, inverses: Mapping[int, ir.Var]) -> Expr:
    """`value` with products where it divides by scalars of the row whose `inverses`, by number of stage, are known."""

    def divide(node: tirx.Div) -> Expr:
        for number, inverse in inverses.items():
            if isinstance(node.b, ir.TensorLoad) and node.b.source.same_as(rows.stages[number].target):
                return node.a * inverse[0]
        return node

    return tvm_ffi.structural_map(value, (tirx.Div, divide), order="post") if inverses else value


def start_of(operation: Operation | None, init: Expr, dtype: str) -> Expr:
    """What every lane of a reduction starts with; max and min may start with the block's initial value in each."""
    return tirx.const(0 if operation is tirx.Add else 1, dtype) if operation in (tirx.Add, tirx.Mul) else init


def _is_neutral(value: Expr, operation: Operation) -> bool:
    neutral = 0 if operation is tirx.Add else 1
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and value.value == neutral


def _same(a: Expr, b: Expr) -> bool:
    return tvm_ffi.structural_equal(a, b)


def dtype_of(buffer: ir.Var) -> str:
    return str(buffer.dtype)
