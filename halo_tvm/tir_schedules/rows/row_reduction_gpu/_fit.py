"""How rows may be cut among the threads of a GPU: the decision, what is read as vectors, what registers keep."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ....dimensions import itemsize_of
from ....errors import Declined
from ....targets import THREADS_PER_BLOCK as MOST_THREADS
from ....targets import WARP
from ...blocks import loads, uses
from ...code.lanes import constant
from ...code.threads import is_row_access, vector_lanes
from ..stages import Rows, Stage, dtype_of, passes, rows_of

KEPT = 64  # registers of a thread that hold its part of a row; a third of what two blocks of 256 leave it
SHUFFLED = ("float32", "float64", "float16", "bfloat16", "int32", "uint32", "int64", "uint64")


@dataclass(frozen=True)
class RowThreads:
    """How rows are cut among threads."""

    threads: int  # of one row, a power of two; up to a warp they need no shared memory
    rows: int  # of one block
    lanes: int  # elements of one load
    keep: bool  # the row stays in registers between passes


def served(func: tirx.PrimFunc) -> Rows:
    """The rows of `func`, or `Declined`."""
    rows = rows_of(func)
    for stage in rows.stages:
        if stage.operation is not None and dtype_of(stage.target) not in SHUFFLED:
            raise Declined(f"elements of {', '.join(SHUFFLED)} go from thread to thread, not {stage.target.dtype}")
        if stage.operation is not None and _multiplies_matrices(stage):
            raise Declined("each element of a product of matrices is read by many rows: threads would not share it")
    if any(constant(extent) == 0 for extent in (rows.depth, *rows.extents)):
        raise Declined("there are no rows, or a row has no elements")
    return rows


def _multiplies_matrices(stage: Stage) -> bool:
    """Whether a reduction reads elements that rows along one axis share, and others that rows along another share."""
    read = [x.indices for x in loads(stage.value) if any(uses(i, stage.depth) for i in x.indices)]
    along = [{n for n, v in enumerate(stage.rows) if any(uses(i, v) for i in indices)} for indices in read]
    return any(a - b and b - a for a in along for b in along)


def streams(rows: Rows) -> list[ir.Var]:
    """The buffers of which vectors may be read or written: those that hold rows and are no intermediates."""
    found = []
    for stage in rows.stages:
        if stage.depth is None:
            continue
        found += [
            x.source
            for x in loads(stage.value)
            if is_input(x, rows) and is_row_access(x.source, x.indices, stage.depth, 1)
        ]
        if stage.operation is None and not is_local(stage, rows):
            found.append(stage.target)
    return [b for b in found if str(b.dtype) != "bool"]


def is_local(stage: Stage, rows: Rows) -> bool:
    return any(stage.target.same_as(b) for b in rows.local)


def is_input(load: ir.TensorLoad, rows: Rows) -> bool:
    return not any(load.source.same_as(s.target) for s in rows.stages)


def kept_registers(rows: Rows, threads: int, lanes: int) -> int:
    """32-bit registers of a thread that hold its part of the row, as read and as made; intermediates of one pass none.

    What a pass makes and a later one reads is kept beside what was read: softmax has two arrays, a norm one.
    """
    depth = constant(rows.depth)
    if depth is None:
        return MOST_THREADS
    per_thread = -(-(depth // lanes) // threads) * lanes
    arrays = [2 if itemsize_of(b.dtype) > 4 else 1 for b in _kept(rows)]
    return per_thread * max(1, sum(arrays))


def _kept(rows: Rows) -> list[ir.Var]:
    """Buffers whose elements a later pass reads again: inputs, and what is made of them."""
    seen: list[tuple[ir.Var, int]] = []
    kept: list[ir.Var] = []
    for number, group in enumerate(passes(rows)):
        for stage in (rows.stages[n] for n in group):
            for load in loads(stage.value):
                depth = stage.depth
                if depth is None or not any(uses(i, depth) for i in load.indices):
                    continue
                first = next((n for b, n in seen if b.same_as(load.source)), None)
                if first is None:
                    seen.append((load.source, number))
                elif first < number and not any(load.source.same_as(b) for b in kept):
                    kept.append(load.source)
            if stage.depth is not None and stage.operation is None:
                seen.append((stage.target, number))
    return kept


def unfit(rows: Rows, d: RowThreads) -> str:
    """Why a decision does not fit these rows; empty when it does."""
    if d.threads & (d.threads - 1) or d.threads * d.rows % WARP or d.threads * d.rows > MOST_THREADS:
        return f"whole warps of at most {MOST_THREADS} threads are served, not {d.rows} rows of {d.threads}"
    most = vector_lanes(streams(rows), rows.depth)
    if d.lanes > most or most % d.lanes:
        return f"rows of {rows.depth} are read in vectors of up to {most} elements, not {d.lanes}"
    if d.keep and kept_registers(rows, d.threads, d.lanes) > 2 * KEPT:
        return f"a row of {rows.depth} does not fit the registers of {d.threads} threads"
    return ""
