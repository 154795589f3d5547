"""Operators that hold graphs: cond, while_loop, scan, map, and regions that are entered as they are.

A condition that is known is decided now, and a short scan is written out. Integers that a loop carries are tensors
of one element between its steps, and numbers inside of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import ir, relax

from ...loops import Stepped, allocate_rows, counted_loop, if_then_else, while_loop
from ...meaning.builder import Refused, expr_dtype, expr_shape, is_tensor
from ...meaning.sizes import plain
from .._call import Call
from .._registry import converter, is_random

_UNROLLED_STEPS = 32
_UNROLLED_NODES = 512  # a graph without calls fuses and folds better, as long as it is small


@converter("higher_order.invoke_subgraph")
def region(c: Call) -> tuple[object, ...]:
    """A graph that several places share: each has its own copy here."""
    return tuple(c.translator.enter(_graph(c, 0), [_argument(c, a) for a in c.node.args[2:]]))


@converter("higher_order.cond")
def cond(c: Call) -> tuple[object, ...]:
    then, otherwise = (_graph(c, position) for position in (1, 2))
    given, chosen = _arguments(c, 3), _decided(c, c["0"])
    if chosen is not None:
        results = c.translator.enter(then if chosen else otherwise, given)
        return tuple(_measured(c, c.bind(_tensor(c, r)), m) for r, m in zip(results, _metas(c.node), strict=True))
    condition = c.as_tensor(c["0"], "bool")
    found = if_then_else(
        c.block,
        condition,
        lambda: _tensors(c, c.translator.enter(then, given)),
        lambda: _tensors(c, c.translator.enter(otherwise, given)),
        name="cond",
    )
    return tuple(_measured(c, value, meta) for value, meta in zip(found, _metas(c.node), strict=True))


@converter("higher_order.while_loop")
def loop(c: Call) -> tuple[object, ...]:
    condition, body = (_graph(c, position) for position in (0, 1))
    _refuse_draws(condition, body)
    init, used = [c.bind(_tensor(c, value)) for value in _arguments(c, 2)], _arguments(c, 3)
    examples = [node.meta["val"] for node in body.nodes if node.op == "placeholder"][: len(init)]
    varying = {i for i, example in enumerate(examples) if _has_sizes_of_its_own(c, example)}

    def run(graph: fx.Graph, state: Sequence[relax.Expr]) -> list[relax.Expr]:
        metas = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
        with c.translator.dims.scope():
            given = [_measured(c, value, meta) for value, meta in zip(state, metas)]
            return _tensors(c, c.translator.enter(graph, [*given, *used]))

    found = while_loop(
        c.block, init, lambda s: run(condition, s)[0], lambda s: run(body, s), varying=varying, name="while"
    )
    return tuple(_measured(c, value, meta) for value, meta in zip(found, _metas(c.node), strict=True))


@converter("higher_order.scan")
def scan(c: Call) -> tuple[object, ...]:
    """A state that is carried, and a row of every further result, for every row of the scanned tensors."""
    return tuple(_scanned(c, _graph(c, 0), _arguments(c, 1), _arguments(c, 2), _arguments(c, 3)))


@converter("higher_order.map_impl")
def each_row(c: Call) -> tuple[object, ...]:
    return tuple(_scanned(c, _graph(c, 0), [], _arguments(c, 1), _arguments(c, 2)))


def _scanned(
    c: Call, body: fx.Graph, state: Sequence[object], rows: Sequence[object], used: Sequence[object]
) -> list[relax.Expr]:
    _refuse_draws(body)
    init, scanned = (_tensors(c, values) for values in (state, rows))
    length = plain(expr_shape(scanned[0])[0])

    def step(carried: Sequence[relax.Expr], at: relax.Expr) -> list[relax.Expr]:
        given = [c.emit(relax.op.take(x, at, 0, mode="clip")) for x in scanned]
        return _tensors(c, c.translator.enter(body, [*carried, *given, *used]))

    if isinstance(length, int) and 0 < length <= _UNROLLED_STEPS and length * _count(body) <= _UNROLLED_NODES:
        carried, made = init, []
        for number in range(length):
            found = step(carried, _number(number))
            carried = found[: len(init)]
            made.append([c.emit(relax.op.expand_dims(row, 0)) for row in found[len(init) :]])
        return [*carried, *(c.emit(relax.op.concat(list(column), 0)) for column in zip(*made, strict=True))]
    count = c.as_tensor(length, "int64")
    shapes = [c.translator.dims.shape(meta.shape) for meta in _metas(c.node)[len(init) :]]
    dtypes = [str(meta.dtype).removeprefix("torch.") for meta in _metas(c.node)[len(init) :]]
    kept = [allocate_rows(c.block, length, shape[1:], dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def turn(carried: Sequence[relax.Expr], at: relax.Expr) -> Stepped:
        found = step(carried, at)
        return found[: len(init)], [(at, row) for row in found[len(init) :]]

    return counted_loop(c.block, count, init, kept, turn)


def _graph(c: Call, position: int) -> fx.Graph:
    node = c.node.args[position]
    return node.graph.owning_module.get_submodule(str(node.target)).graph


def _arguments(c: Call, position: int) -> list[object]:
    given = c.node.args[position] if position < len(c.node.args) else ()
    return [_argument(c, value) for value in given]


def _argument(c: Call, value: object) -> object:
    return c.translator.env[value] if isinstance(value, fx.Node) else value


def _metas(node: fx.Node) -> list[Any]:
    """Example values of the results."""
    found = node.meta["val"]
    return list(found) if isinstance(found, tuple | list) else [found]


def _tensor(c: Call, value: object) -> relax.Expr:
    if not is_tensor(value) and not isinstance(value, int | float | ir.Expr):
        raise Refused(f"a value of class {type(value).__name__} that goes into or out of its graph")
    return c.as_tensor(value, None)


def _tensors(c: Call, values: Sequence[object]) -> list[relax.Expr]:
    return [c.bind(_tensor(c, value)) for value in values]


def _number(value: int) -> relax.Expr:
    return relax.const(np.int64(value), "int64")


def _decided(c: Call, condition: object) -> bool | None:
    """What is known of it now."""
    if is_tensor(condition):
        known = c.known(condition)
        return None if known is None else bool(known.array.reshape(-1)[0])
    return c.sizes.decided(condition)


def _has_sizes_of_its_own(c: Call, example: object) -> bool:
    return isinstance(example, torch.Tensor) and any(
        not c.translator.dims.knows(symbol)
        for size in example.shape
        if isinstance(size, torch.SymInt)
        for symbol in size.node.expr.free_symbols
    )


def _measured(c: Call, value: relax.Expr, meta: object) -> object:
    """`value` with names for the sizes that torch names here first; the number that it holds where torch has one."""
    dims = c.translator.dims
    if isinstance(meta, torch.SymInt):
        c.translator.find(value, meta, is_size=_is_size(meta))
        return dims.expr(meta)
    if isinstance(meta, int | float):
        return meta
    if not isinstance(meta, torch.Tensor) or not _has_sizes_of_its_own(c, meta):
        return value
    shape = [dims.define(size, c.op) for size in meta.shape]
    return c.block.match_cast(value, relax.TensorType(shape, expr_dtype(value)))


def _is_size(number: torch.SymInt) -> bool:
    """Whether torch knows that it is not below 0; loops also count down to -1."""
    limits = number.node.shape_env.var_to_range.get(number.node.expr)
    return limits is not None and bool(limits.lower >= 0)


def _inside(graph: fx.Graph) -> Iterator[fx.Node]:
    """Its nodes that compute, and those of graphs in it."""
    for node in graph.nodes:
        if node.op == "call_function":
            yield node
        inner = node.op == "get_attr" and getattr(graph.owning_module, str(node.target), None)
        if isinstance(inner, fx.GraphModule):
            yield from _inside(inner.graph)


def _count(graph: fx.Graph) -> int:
    return max(sum(1 for _ in _inside(graph)), 1)


def _refuse_draws(*graphs: fx.Graph) -> None:
    """Numbers are drawn by their place in a model: each step would draw the same."""
    if any(is_random(node.target) for graph in graphs for node in _inside(graph)):
        raise Refused("random numbers that are drawn in its steps")
