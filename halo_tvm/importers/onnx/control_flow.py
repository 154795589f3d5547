"""If, Loop and Scan: decided or unrolled while importing where that is possible, Relax functions elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
from onnx import GraphProto
from tvm import relax

from .._loops import allocate_rows, first_rows, if_then_else, while_loop, write_row
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.constant import Constant
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter
from ._values import Sequence as SequenceValue
from ._values import Symbolic, Tensor, Value

# A loop is unrolled when its copies stay below this many nodes: a graph without calls fuses and folds better.
_UNROLLED_NODES = 512
_MOST_ROWS = (
    1 << 24
)  # of a scan output that is allocated ahead; a larger trip count means "until the condition ends it"


@converter("If")
def if_(node: Node) -> object:
    """The branch that is taken, where that is known; else both, as blocks of a Relax `If`."""
    then, otherwise = node.attr("then_branch"), node.attr("else_branch")
    condition = node.value(0)
    if isinstance(condition, Constant):
        return tuple(node.graph.convert_graph(then if bool(condition.array.reshape(-1)[0]) else otherwise))
    squeezed = _squeezed_axes(node, then, otherwise)
    if squeezed is not None:
        return _squeeze(node, *squeezed)

    def branch(graph: GraphProto) -> Callable[[], list[relax.Expr]]:
        def results() -> list[relax.Expr]:
            values = node.graph.convert_graph(graph)
            if any(v is None or isinstance(v, SequenceValue) for v in values):
                node.constant(0)  # only one branch taken now can give these
            return [_expr(node, v) for v in values]

        return results

    results = if_then_else(node.graph.builder, node.x(0), branch(then), branch(otherwise), name="if")
    for i, result in enumerate(results):
        ty = result.ty
        if not isinstance(ty, relax.TensorType) or ty.ndim < 0 or ty.dtype is None:
            node.refuse(f"expected the rank and the element type of result {i} to be the same in both branches")
    return tuple(results)


def _squeezed_axes(node: Node, then: GraphProto, otherwise: GraphProto) -> tuple[Tensor, list[int]] | None:
    """What is squeezed and where, of branches that squeeze a tensor if they can, and else pass it on.

    The legacy exporter of torch writes a squeeze of an axis of unknown size so. The ranks of its branches differ, and
    what follows was traced with one of them: an axis that somebody squeezes has size 1.
    """
    inner = [n for n in then.node if n.op_type != "Constant"]
    if (
        len(then.output) != 1
        or [n.op_type for n in inner] != ["Squeeze"]
        or list(inner[0].output) != [then.output[0].name]
    ):
        return None
    passed = [n.input[0] for n in otherwise.node if n.op_type == "Identity"]
    if len(otherwise.node) > 1 or (passed or [otherwise.output[0].name]) != [inner[0].input[0]]:
        return None
    value = node.graph.lookup(inner[0].input[0])
    named = {n.output[0]: n for n in then.node if n.op_type == "Constant"}
    if len(inner[0].input) == 2 and inner[0].input[1] in named:
        proto = named[inner[0].input[1]].attribute[0]
        found = node.graph.attribute(proto)
        axes = np.asarray(found).reshape(-1).tolist()
    else:
        axes = [i for a in inner[0].attribute if a.name == "axes" for i in a.ints]
    if not isinstance(value, Tensor) or not axes:
        return None
    sizes = [value.shape[_axis(a, len(value.shape))] for a in axes if -len(value.shape) <= a < len(value.shape)]
    return (value, axes) if len(sizes) == len(axes) and _asks_for_ones(node, sizes) else None


def _asks_for_ones(node: Node, sizes: Sequence[Dim]) -> bool:
    """Whether the condition holds exactly where all `sizes` are 1: it compares one of them with 1, the rest are 1."""
    pair = node.graph.equalities.get(node.proto.input[0])
    if pair is None or 1 not in [s for s in pair if isinstance(s, int)]:
        return False
    size = pair[1] if isinstance(pair[0], int) else pair[0]
    return all(node.sizes.is_equal(s, size) or isinstance(s, int) and s == 1 for s in sizes)


def _squeeze(node: Node, value: Tensor, axes: Sequence[int]) -> relax.Expr:
    """`value` without `axes`, which are declared to have size 1; a run where they have not is refused."""
    rank = len(value.shape)
    axes = [_axis(a, rank) for a in axes]
    if any(isinstance(value.shape[a], int) and value.shape[a] != 1 for a in axes):
        return value.expr
    shape = [1 if i in axes else d for i, d in enumerate(value.shape)]
    return node.emit(relax.op.squeeze(node.declared(value.expr, shape), axes))


def _expr(node: Node, value: Value | None) -> relax.Expr:
    if value is None or isinstance(value, SequenceValue):
        node.refuse("expected tensors as results of its graph, found a sequence or an absent value")
    return node.graph.expr_of(value)


@converter("Loop")
def loop(node: Node) -> object:
    """Trip count and condition, both optional; then carried values; results: carried values, then scan outputs."""
    body: GraphProto = node.attr("body")
    carried = list(node.inputs[2:])  # an optional value may be absent
    trips, condition = (node.inputs[i] if node.has(i) else None for i in (0, 1))
    unrolled = _unrolled_loop(node, body, trips, condition, carried)
    if unrolled is None and any(isinstance(v, SequenceValue) for v in carried):
        _refuse_unknown_end(node, trips, condition, "a sequence is carried through it")
    return unrolled if unrolled is not None else _while(node, body, trips, condition, carried)


def _refuse_unknown_end(node: Node, trips: Value | None, condition: Value | None, reason: str) -> NoReturn:
    """Some loops can be converted only where all iterations are known now."""
    for index, value in enumerate((trips, condition)):
        if value is not None:
            node.constant(index)
    node.refuse(f"{reason}, and how often it runs is known at run time only, or too often to copy its nodes")


def _unrolled_loop(
    node: Node, body: GraphProto, trips: Value | None, condition: Value | None, carried: Sequence[Value]
) -> tuple[Value, ...] | None:
    """All iterations one behind the other; None when how many there are is known at run time only, or too many."""
    count = _number(trips)
    if count is None or count * _size(body) > _UNROLLED_NODES:
        return None
    going, state = (Constant.of(_true()) if condition is None else condition), list(carried)
    rows: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    for index in range(count):
        if not isinstance(going, Constant):
            return None
        if not bool(going.array.reshape(-1)[0]):
            break
        going, *results = node.graph.convert_graph(body, [Constant.of(_int64(index)), going, *state])
        state = results[: len(carried)]
        for kept, row in zip(rows, results[len(carried) :]):
            kept.append(row)
    if rows and not rows[0]:
        return None
    return (*state, *(_stacked(node, kept) for kept in rows))


def _size(body: GraphProto) -> int:
    """Nodes of a body and of the graphs inside them; loops among them may be unrolled in turn."""
    inner = [(n.op_type, a.g) for n in body.node for a in n.attribute if a.HasField("g")]
    own = max(len(body.node), 1)
    return own + sum(_size(graph) + (_UNROLLED_NODES // 8 if op in ("Loop", "Scan") else 0) for op, graph in inner)


def _stacked(node: Node, rows: Sequence[Value], axis: int = 0) -> relax.Expr:
    """`rows` as one tensor along a new axis."""
    exprs = [_expr(node, row) for row in rows]
    parts = [node.emit(relax.op.expand_dims(e if isinstance(e, relax.Var) else node.emit(e), axis)) for e in exprs]
    return node.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else parts[0]


def _while(
    node: Node, body: GraphProto, trips: Value | None, condition: Value | None, carried: Sequence[Value]
) -> tuple[relax.Expr, ...]:
    builder = node.graph.builder
    zero, true = relax.const(_int64(0), "int64"), relax.const(_true())
    limit = None if trips is None else _trip_count(node)
    going = true if condition is None else _scalar(node, node.x(1))
    init = [_expr(node, v) for v in carried]
    names_before = node.graph.dimension_names
    # One iteration whose results nobody reads: it tells the types, and is dropped as dead code.
    probe = [_expr(node, v) for v in node.graph.convert_graph(body, [Tensor(zero), Tensor(true), *map(Tensor, init)])]
    after, scanned = probe[1 : 1 + len(init)], probe[1 + len(init) :]
    if any(_names(row) - names_before for row in scanned):
        _refuse_unknown_end(node, trips, condition, "the size of its scan outputs is known inside its body only")
    varying = {i + 2 for i, (a, b) in enumerate(zip(init, after)) if not _same_shape(node, a, b)}
    count = _row_count(node, trips)
    first = len(init) + 2
    if count is None:  # rows are appended as they come
        init += [_empty_rows(node, row) for row in scanned]
        varying |= set(range(first, first + len(scanned)))
    else:
        init += [allocate_rows(builder, count, expr_shape(row), expr_dtype(row)) for row in scanned]

    def proceed(state: list[relax.Expr]) -> relax.Expr:
        if limit is None:
            return state[1]
        return builder.emit(relax.op.logical_and(state[1], builder.emit(relax.op.less(state[0], limit))))

    def step(state: list[relax.Expr]) -> list[relax.Expr]:
        inputs = [Tensor(s) for s in state[:first]]
        found = [_expr(node, v) for v in node.graph.convert_graph(body, inputs)]
        rows = []
        for kept, row in zip(state[first:], found[first - 1 :]):
            row = row if isinstance(row, relax.Var) else builder.emit(row)
            if count is None:
                rows.append(builder.emit(relax.op.concat([kept, builder.emit(relax.op.expand_dims(row, 0))], 0)))
            else:
                rows.append(write_row(builder, kept, state[0], row))
        following = builder.emit(relax.op.add(state[0], relax.const(_int64(1), "int64")))
        return [following, _scalar(node, found[0]), *found[1 : first - 1], *rows]

    steps, _, *results = while_loop(builder, [zero, going, *init], proceed, step, varying=varying, name="onnx_loop")
    results = [_known_shape(node, r) for r in results]
    if count is not None and scanned:
        results[first - 2 :] = [first_rows(builder, rows, steps) for rows in results[first - 2 :]]
    return tuple(results)


def _names(value: relax.Expr) -> frozenset[str]:
    """Symbols in the shape of a value."""
    return frozenset(v.name for v in relax.analysis.free_symbolic_vars(relax.ShapeExpr(expr_shape(value))))


def _row_count(node: Node, trips: Value | None) -> Dim | relax.Expr | None:
    """Rows to allocate for scan outputs; None when no useful bound is known ahead."""
    number = _number(trips)
    if number is not None:
        return max(number, 0) if number <= _MOST_ROWS else None
    if isinstance(trips, Symbolic):
        return node.sizes.maximum(trips.array.reshape(-1)[0], 0)
    return None if trips is None else _trip_count(node)


def _trip_count(node: Node) -> relax.Expr:
    """A loop of fewer than 0 iterations has none."""
    count = _scalar(node, node.x(0))
    count = count if isinstance(count, relax.Var) else node.emit(count)
    return node.emit(relax.op.maximum(count, relax.const(_int64(0), "int64")))


def _empty_rows(node: Node, row: relax.Expr) -> relax.Expr:
    dims = [0, *expr_shape(row)]
    return node.emit(relax.op.zeros(relax.ShapeExpr(dims), expr_dtype(row)))


def _known_shape(node: Node, value: relax.Expr) -> relax.Expr:
    if isinstance(value.ty.shape, relax.ShapeExpr):
        return value
    return node.fresh_dims(value, [None] * value.ty.ndim)


@converter("Scan", since=9)
def scan(node: Node) -> object:
    """State, then tensors that are scanned along an axis; results: state, then stacked outputs."""
    body: GraphProto = node.attr("body")
    scanned = int(node.attr("num_scan_inputs"))
    kept = len(node.inputs) - scanned
    outputs = len(body.output) - kept
    axes = list(node.attr("scan_input_axes", [0] * scanned))
    out_axes = list(node.attr("scan_output_axes", [0] * outputs))
    backwards = list(node.attr("scan_input_directions", [0] * scanned))
    out_backwards = list(node.attr("scan_output_directions", [0] * outputs))
    xs = [node.x(kept + i) for i in range(scanned)]
    axes = [a + len(expr_shape(x)) if a < 0 else a for a, x in zip(axes, xs)]
    length = expr_shape(xs[0])[axes[0]]
    for i, (x, a) in enumerate(zip(xs, axes)):  # all of one length
        shape = expr_shape(x)
        xs[i] = same_sizes(node, x, [*shape[:a], length, *shape[a + 1 :]], f"scanned input {i}")
    state = [node.value(i) for i in range(kept)]
    if isinstance(length, int) and 0 < length * _size(body) <= _UNROLLED_NODES:
        rows: list[list[Value]] = [[] for _ in range(outputs)]
        for index in range(length):
            slices = [
                Tensor(_row(node, x, a, relax.const(_int64(length - 1 - index if b else index), "int64")))
                for x, a, b in zip(xs, axes, backwards)
            ]
            results = node.graph.convert_graph(body, [*state, *slices])
            state = results[:kept]
            for kept_rows, row in zip(rows, results[kept:]):
                kept_rows.append(row)
        stacked = [
            _stacked(node, r[::-1] if b else r, _axis(a, len(r[0].shape) + 1))
            for r, a, b in zip(rows, out_axes, out_backwards)
        ]
        return (*state, *stacked)
    return _scan_loop(node, body, state, xs, axes, backwards, length, out_axes, out_backwards)


def _scan_loop(
    node: Node,
    body: GraphProto,
    state: Sequence[Value],
    xs: Sequence[relax.Expr],
    axes: Sequence[int],
    backwards: Sequence[int],
    length: Dim,
    out_axes: Sequence[int],
    out_backwards: Sequence[int],
) -> tuple[relax.Expr, ...]:
    builder, kept = node.graph.builder, len(state)
    zero, one = relax.const(_int64(0), "int64"), relax.const(_int64(1), "int64")
    limit = (
        node.graph.expr_of(Symbolic(_object(length), "int64"))
        if not isinstance(length, int)
        else relax.const(_int64(length), "int64")
    )
    last = builder.emit(relax.op.subtract(limit, one))

    def inputs(index: relax.Expr) -> list[Tensor]:
        mirrored = builder.emit(relax.op.subtract(last, index))
        return [Tensor(_row(node, x, a, mirrored if b else index)) for x, a, b in zip(xs, axes, backwards)]

    init = [_expr(node, v) for v in state]
    probe = [_expr(node, v) for v in node.graph.convert_graph(body, [*map(Tensor, init), *inputs(zero)])]
    rows = [allocate_rows(builder, length, expr_shape(r), expr_dtype(r)) for r in probe[kept:]]

    def step(current: list[relax.Expr]) -> list[relax.Expr]:
        index = current[0]
        found = [
            _expr(node, v)
            for v in node.graph.convert_graph(body, [*map(Tensor, current[1 : 1 + kept]), *inputs(index)])
        ]
        found = [f if isinstance(f, relax.Var) else builder.emit(f) for f in found]
        mirrored = builder.emit(relax.op.subtract(last, index))
        written = [
            write_row(builder, r, mirrored if b else index, row)
            for r, row, b in zip(current[1 + kept :], found[kept:], out_backwards)
        ]
        return [builder.emit(relax.op.add(index, one)), *found[:kept], *written]

    def proceed(current: list[relax.Expr]) -> relax.Expr:
        return builder.emit(relax.op.less(current[0], limit))

    results = while_loop(builder, [zero, *init, *rows], proceed, step, name="onnx_scan")[1:]
    out = [_moved(node, r, _axis(a, len(expr_shape(r)))) for r, a in zip(results[kept:], out_axes)]
    return (*results[:kept], *out)


def _moved(node: Node, rows: relax.Expr, axis: int) -> relax.Expr:
    """`rows` with its first axis at `axis`."""
    if axis == 0:
        return rows
    order = list(range(1, len(expr_shape(rows))))
    order.insert(axis, 0)
    return node.emit(relax.op.permute_dims(rows, order))


def _row(node: Node, x: relax.Expr, axis: int, index: relax.Expr) -> relax.Expr:
    """`x` at one position of `axis`, which vanishes."""
    x = x if isinstance(x, relax.Var) else node.emit(x)
    return node.emit(relax.op.take(x, index, axis, mode="clip"))


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def _number(value: Value | None) -> int | None:
    return int(value.array.reshape(-1)[0]) if isinstance(value, Constant) else None


def _scalar(node: Node, value: relax.Expr) -> relax.Expr:
    """A tensor of one element without dimensions."""
    return value if not expr_shape(value) else node.emit(relax.op.reshape(value, ()))


def _same_shape(node: Node, a: relax.Expr, b: relax.Expr) -> bool:
    left, right = expr_shape(a), expr_shape(b)
    return len(left) == len(right) and all(node.sizes.is_equal(x, y) for x, y in zip(left, right))


def _int64(value: int) -> np.ndarray:
    return np.array(value, np.int64)


def _true() -> np.ndarray:
    return np.array(True)


def _object(value: Dim) -> np.ndarray:
    out = np.empty((), dtype=object)
    out[()] = value
    return out
