"""The element-wise stages that FuseTIR put behind a product: read from their blocks, run vector by vector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T
from tvm.sym import Analyzer

from ..errors import Declined
from .blocks import Block, annotated, loads, substitute


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
    main, earlier, behind = annotated(func, ops)
    if earlier:
        raise Declined(f"block {earlier[0].node.name_hint} runs before {called}: only stages behind it are served")
    return main, behind


def read_stage(block: Block, earlier: Sequence[ir.Var], axes: str, *, beside: bool = False) -> Stage:
    """`block` as a stage over the axes of the product, whose names `axes` lists; `Declined` when it is none.

    `earlier`: buffers of the product and of the stages before, which a stage may read at its own place only, or, with
    `beside`, a constant number of places further along the last axis, too.
    """
    name, store, rank = block.node.name_hint, block.store, len(axes.split(","))
    if store is None or not block.plain or block.kinds != "S" * rank or block.node.init is not None:
        raise Declined(f"stage {name} is not one element-wise store over [{axes}]")
    if not is_at(store.indices, block.vars):
        raise Declined(f"stage {name} writes at other indices than it runs over: {list(store.indices)}")
    for load in loads(store.value):
        served = offset_of(load, block.vars) is not None if beside else is_at(load.indices, block.vars)
        if any(load.source.same_as(buffer) for buffer in earlier) and not served:
            raise Declined(f"stage {name} reads {load.source.name} at {list(load.indices)}, not at its own indices")
    return Stage(store.buffer, store.value, block.vars)


def read_stages(
    behind: Sequence[Block], product: ir.Var, axes: str, extents: Sequence[ir.Expr], called: str
) -> tuple[Stage, ...]:
    """The blocks `behind` that of `product`, which reasons call `called`, as stages that run over all its `extents`."""
    stages: list[Stage] = []
    for block in behind:
        stage = read_stage(block, [product, *(s.out for s in stages)], axes)
        if not all(map(Analyzer().can_prove_equal, block.extents, extents)):
            here, there = list(block.extents), list(extents)
            raise Declined(f"stage {block.node.name_hint} runs over {here}, {called} over {there}")
        stages.append(stage)
    return tuple(stages)


def is_at(indices: Sequence[ir.Expr], axes: Sequence[ir.Var]) -> bool:
    """Whether `indices` are exactly `axes`."""
    return len(indices) == len(axes) and all(at.same_as(axis) for at, axis in zip(indices, axes))


def offset_of(load: ir.TensorLoad, axes: Sequence[ir.Var]) -> int | None:
    """How far behind `axes` along the last one `load` reads; None where it reads at another place."""
    if len(load.indices) != len(axes) or not is_at(load.indices[:-1], axes[:-1]):
        return None
    distance = Analyzer().simplify(load.indices[-1] - axes[-1])
    return int(distance) if isinstance(distance, tirx.IntImm) and int(distance) >= 0 else None


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
    products: Mapping[ir.Var, Callable[[ir.Expr], ir.Expr]],
    outputs: Sequence[ir.Var],
    place: Callable[[ir.Expr], Sequence[ir.Expr]],
    width: int,
    scope: str = "global",
) -> None:
    """All stages on one vector of `width` lanes, whose place is `place(lane)`; `products` have its values by lane.

    Each stage keeps its value in a vector of its own, in `scope`, so nothing is computed twice.
    """
    lanes = tirx.IntImm("int64", width)
    if not stages:
        ((product, total),) = products.items()
        with T.vectorized(lanes) as lane:
            T.buffer_store(product, total(lane), list(place(lane)))
        return
    values = [T.alloc_buffer((width,), str(stage.out.ty.dtype), scope=scope) for stage in stages]
    for index, stage in enumerate(stages):
        with T.vectorized(lanes) as lane:
            known = {s.out: value[lane] for s, value in zip(stages[:index], values)}
            known |= {product: total(lane) for product, total in products.items()}
            value = substitute(stage.value, dict(zip(stage.axes, place(lane))), known)
            T.buffer_store(values[index], value, [lane])
        if any(stage.out.same_as(out) for out in outputs):
            with T.vectorized(lanes) as lane:
                T.buffer_store(stage.out, values[index][lane], list(place(lane)))
