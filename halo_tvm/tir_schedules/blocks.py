"""Facts about the blocks of a PrimFunc, for the authors of schedule rules.

A rule finds its block by the annotation `halo.op` (set through `te.compute(attrs=...)`, kept by
FuseTIR), never by name: names belong to the printer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..errors import Declined

EXACT_BUFFERS = "halo.exact_buffers"

_KINDS = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}


@dataclass(frozen=True)
class Block:
    """One block and the loops around it, outermost first."""

    node: s_tir.SBlock
    realize: s_tir.SBlockRealize
    loops: tuple[tirx.For, ...]

    @property
    def op(self) -> str | None:
        """The operator this is the main block of: the annotation `halo.op`."""
        value = self.node.annotations.get("halo.op")
        return None if value is None else str(value)

    @property
    def kinds(self) -> str:
        """One letter per block iterator: S spatial, R reduction, O anything else ("SSR" for a matmul)."""
        return "".join(_KINDS.get(v.iter_type, "O") for v in self.node.iter_vars)

    @property
    def vars(self) -> tuple[ir.Var, ...]:
        return tuple(v.var for v in self.node.iter_vars)

    @property
    def extents(self) -> tuple[ir.Expr, ...]:
        return tuple(v.dom.extent for v in self.node.iter_vars)

    @property
    def store(self) -> tirx.BufferStore | None:
        """The single store the block consists of; None when its body is anything else."""
        body = self.node.body
        return body if isinstance(body, tirx.BufferStore) else None

    @property
    def plain(self) -> bool:
        """One loop per iterator, in order, starting at zero, and no predicate. A single zero needs no loop."""
        pairs = zip(self.realize.iter_values, self.extents)
        values = [value for value, extent in pairs if not (is_const(value, 0) and is_const(extent, 1))]
        return (
            len(self.loops) == len(values)
            and all(loop.loop_var.same_as(value) for loop, value in zip(self.loops, values))
            and all(is_const(loop.min, 0) and loop.kind == tirx.ForKind.SERIAL for loop in self.loops)
            and is_const(self.realize.predicate, 1)
        )


def blocks(func: tirx.PrimFunc) -> list[Block]:
    """The blocks directly under the root block, in the order they run; nested blocks are not entered."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize):
        return []
    found: list[Block] = []

    def visit(stmt: tirx.Stmt, loops: tuple[tirx.For, ...]) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                visit(part, loops)
        elif isinstance(stmt, tirx.For):
            visit(stmt.body, (*loops, stmt))
        elif isinstance(stmt, s_tir.SBlockRealize):
            found.append(Block(stmt.block, stmt, loops))

    visit(root.block.body, ())
    return found


def unscheduled_blocks(func: tirx.PrimFunc) -> list[Block]:
    """`blocks` for a rule; `Declined` where another one, or its author, has scheduled `func`."""
    if is_scheduled(func):
        raise Declined("the function is scheduled already")
    return blocks(func)


def annotated(func: tirx.PrimFunc, ops: Collection[str]) -> tuple[Block, list[Block], list[Block]]:
    """The first block annotated with one of `ops`, those before it, and those behind it; `Declined` without one."""
    found = unscheduled_blocks(func)
    at = next((i for i, block in enumerate(found) if block.op in ops), None)
    if at is None:
        raise Declined(f"no block is annotated halo.op = {' or '.join(ops)}")
    return found[at], found[:at], found[at + 1 :]


def main_block(func: tirx.PrimFunc, op: str) -> Block | None:
    """The first block annotated as the main block of operator `op`."""
    return next((block for block in blocks(func) if block.op == op), None)


def loads(node: ir.Expr | tirx.Stmt) -> list[ir.TensorLoad]:
    """Every load inside `node`."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(node, (ir.TensorLoad, lambda load: found.append(load)), order="post")
    return found


def allocated(body: tirx.Stmt) -> list[ir.Var]:
    """The buffers that `body` allocates, in order."""
    found: list[ir.Var] = []
    tvm_ffi.structural_walk(
        body,
        [
            (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)),
            (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer)),
        ],
        order="pre",
    )
    return found


def calls(node: ir.Expr) -> int:
    """Number of calls (exp, if_then_else, ...) in `node`."""
    found: list[ir.Call] = []
    tvm_ffi.structural_walk(node, (ir.Call, found.append), order="post")
    return len(found)


def is_choice(node: object) -> bool:
    """Whether `node` evaluates only one of its branches."""
    return isinstance(node, ir.Call) and isinstance(node.op, ir.Op) and node.op.name.endswith("if_then_else")


def choices_along(call: ir.Call) -> tuple[list[ir.Call], ir.Expr]:
    """`call`, a choice, with those that stand one in the else of another, and what the last else holds.

    Hundreds of tensors that are put together are as many: whoever goes on by calls runs out of Python's stack.
    """
    found: list[ir.Call] = []
    rest: ir.Expr = call
    while is_choice(rest):
        found.append(rest)
        rest = rest.args[2]
    return found, rest


def chosen_along(choices: Sequence[ir.Call], parts: Sequence[tuple[ir.Expr, ir.Expr]], rest: ir.Expr) -> ir.Expr:
    """The `choices` again, with a condition and a branch of `parts` for each, and `rest` behind them."""
    for choice, (condition, branch) in zip(reversed(choices), reversed(parts)):
        rest = ir.Call(choice.op, [condition, branch, rest], choice.attrs, ret_ty=choice.ty)
    return rest


def length(expr: ir.Expr, names: Mapping[ir.Var, int] | None = None) -> int:
    """How many expressions `expr` is made of, itself included; a variable of `names` counts as it says."""
    count = 0

    def visit(node: ir.Expr) -> None:
        nonlocal count
        count += names.get(node, 1) if names and isinstance(node, ir.Var) else 1

    tvm_ffi.structural_walk(expr, (ir.Expr, visit), order="post")
    return count


def without_loads(expr: ir.Expr) -> ir.Expr:
    """`expr` with a constant for every load: what is left uses iterators by value."""
    return tvm_ffi.structural_map(expr, (ir.TensorLoad, lambda load: tirx.const(0, str(load.ty.dtype))), order="post")


def uses(expr: ir.Expr, var: ir.Var) -> bool:
    """Whether `var` occurs in `expr`."""
    found: list[ir.Var] = []
    tvm_ffi.structural_walk(expr, (ir.Var, found.append), order="post")
    return any(v.same_as(var) for v in found)


def substitute(expr: ir.Expr, values: Mapping[ir.Var, ir.Expr], buffers: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
    """`expr` with variables replaced by `values`, and every load from a key of `buffers` by its value."""

    def load(node: ir.TensorLoad) -> ir.Expr:
        return next((value for source, value in buffers.items() if source.same_as(node.source)), node)

    def variable(node: ir.Var) -> ir.Expr:
        return next((value for var, value in values.items() if var.same_as(node)), node)

    return tvm_ffi.structural_map(expr, [(ir.TensorLoad, load), (ir.Var, variable)], order="post")


def is_const(expr: ir.Expr, value: int) -> bool:
    """Whether `expr` is the integer constant `value`."""
    return isinstance(expr, tirx.IntImm) and int(expr.value) == value


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Whether a rule, or its author, has scheduled `func` already."""
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled", False))


def written_out(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    """`func` with a body that a rule wrote itself, buffers and all: it is scheduled, and no buffer is too large."""
    return func.with_body(body).with_attr("tirx.is_scheduled", True).with_attr(EXACT_BUFFERS, True)


def has_exact_buffers(func: tirx.PrimFunc) -> bool:
    """Whether all that `func` allocates is used: schedules made with `compute_at` leave buffers that are to shrink."""
    return bool(func.attrs and func.attrs.get(EXACT_BUFFERS, False)) or not allocated(func.body)
