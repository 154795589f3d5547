"""The element-wise stages that FuseTIR put behind a product: read from their blocks, run vector by vector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..errors import Declined
from ._blocks import Block, blocks, loads, substitute


@dataclass(frozen=True)
class Stage:
    """One element-wise step of the epilogue: out[axes...] = value(axes...)."""

    out: ir.Var  # buffer
    value: ir.Expr
    axes: tuple[ir.Var, ...]


def main_and_behind(func: tirx.PrimFunc, ops: Collection[str], called: str) -> tuple[Block, list[Block]]:
    """The block annotated with one of `ops`, which reasons call `called`, and those behind it.

    `Declined` where there is none, or another block runs before it.
    """
    found = blocks(func)
    if not any(block.op in ops for block in found):
        raise Declined(f"no block is annotated halo.op = {' or '.join(ops)}")
    main, *behind = found
    if main.op not in ops:
        raise Declined(f"block {main.node.name_hint} runs before {called}: only stages behind it are served")
    return main, behind


def read_stage(block: Block, earlier: Sequence[ir.Var], axes: str) -> Stage:
    """`block` as a stage over the axes of the product, whose names `axes` lists; `Declined` when it is none.

    `earlier`: buffers of the product and of the stages before, which a stage may read at its own place only.
    """
    name, store, rank = block.node.name_hint, block.store, len(axes.split(","))
    if store is None or not block.plain or block.kinds != "S" * rank or block.node.init is not None:
        raise Declined(f"stage {name} is not one element-wise store over [{axes}]")
    if not is_at(store.indices, block.vars):
        raise Declined(f"stage {name} writes at other indices than it runs over: {list(store.indices)}")
    for load in loads(store.value):
        if any(load.source.same_as(buffer) for buffer in earlier) and not is_at(load.indices, block.vars):
            raise Declined(f"stage {name} reads {load.source.name} at {list(load.indices)}, not at its own indices")
    return Stage(store.buffer, store.value, block.vars)


def is_at(indices: Sequence[ir.Expr], axes: Sequence[ir.Var]) -> bool:
    """Whether `indices` are exactly `axes`."""
    return len(indices) == len(axes) and all(at.same_as(axis) for at, axis in zip(indices, axes))


def written_by(stages: Sequence[Stage], product: ir.Var, func: tirx.PrimFunc) -> tuple[ir.Var, ...]:
    """The buffers of the stages, or of the product without any, that are parameters of the function."""
    if stages and any(product.same_as(param) for param in func.params):
        raise Declined("the product is an output, and so are stages behind it: it would not be stored")
    written = [stage.out for stage in stages] or [product]
    outputs = tuple(buffer for buffer in written if any(buffer.same_as(param) for param in func.params))
    if not outputs:
        raise Declined("no stage writes a parameter of the function")
    return outputs


def emit_stages(
    stages: Sequence[Stage],
    product: ir.Var,
    outputs: Sequence[ir.Var],
    total: Callable[[ir.Expr], ir.Expr],
    place: Callable[[ir.Expr], Sequence[ir.Expr]],
    width: int,
    scope: str = "global",
) -> None:
    """All stages on one vector of `width` lanes: the product of a lane is `total(lane)`, its place `place(lane)`.

    Each stage keeps its value in a vector of its own, in `scope`, so nothing is computed twice.
    """
    lanes = tirx.IntImm("int64", width)
    if not stages:
        with T.vectorized(lanes) as lane:
            T.buffer_store(product, total(lane), list(place(lane)))
        return
    values = [T.alloc_buffer((width,), str(stage.out.ty.dtype), scope=scope) for stage in stages]
    for index, stage in enumerate(stages):
        with T.vectorized(lanes) as lane:
            known = {s.out: value[lane] for s, value in zip(stages[:index], values)}
            known[product] = total(lane)
            value = substitute(stage.value, dict(zip(stage.axes, place(lane))), known)
            T.buffer_store(values[index], value, [lane])
        if any(stage.out.same_as(out) for out in outputs):
            with T.vectorized(lanes) as lane:
                T.buffer_store(stage.out, values[index][lane], list(place(lane)))
