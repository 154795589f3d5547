"""Loop and Scan: unrolled while importing where that is possible, Relax functions elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from onnx import GraphProto
from tvm import relax

from ..loops import Stepped, allocate_rows, counted_loop, first_rows, not_negative, while_loop, write_row
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.constant import Constant
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter
from ._values import Sequence as SequenceValue
from ._values import Symbolic, Tensor, Value, known
from .branches import result_of

# A loop is unrolled when its copies stay below this many nodes: a graph without calls fuses and folds better.
_UNROLLED_NODES = 512
_MOST_ROWS = 1 << 24  # of a scan output that are allocated before the first iteration


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
        number = Constant.of(_int64(index).reshape(_number_shape(body)))
        going, *results = node.graph.convert_graph(body, [number, going, *state])
        state = results[: len(carried)]
        for kept, row in zip(rows, results[len(carried) :]):
            kept.append(row)
    if rows and not rows[0]:
        return None
    return (*state, *(_stacked(node, kept) for kept in rows))


def _number_shape(body: GraphProto) -> tuple[int, ...]:
    """Of the number of an iteration: (1,) where the body says so, as exporters of PyTorch do, and runtimes follow."""
    declared = body.input[0].type.tensor_type if body.input else None
    return (1,) if declared is not None and len(declared.shape.dim) == 1 else ()


def _size(body: GraphProto) -> int:
    """Nodes of a body and of the graphs inside them; loops among them may be unrolled in turn."""
    inner = [(n.op_type, a.g) for n in body.node for a in n.attribute if a.HasField("g")]
    own = max(len(body.node), 1)
    return own + sum(_size(graph) + (_UNROLLED_NODES // 8 if op in ("Loop", "Scan") else 0) for op, graph in inner)


def _stacked(node: Node, rows: Sequence[Value], axis: int = 0) -> relax.Expr:
    """`rows` as one tensor along a new axis."""
    parts = [node.emit(relax.op.expand_dims(node.bind(result_of(node, row)), axis)) for row in rows]
    return node.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else parts[0]


def _while(
    node: Node, body: GraphProto, trips: Value | None, condition: Value | None, carried: Sequence[Value]
) -> tuple[relax.Expr, ...]:
    builder = node.graph.builder
    zero, true = relax.const(_int64(0), "int64"), relax.const(_true())

    def numbered(number: relax.Expr) -> Tensor:
        return Tensor(builder.emit(relax.op.reshape(number, (1,))) if _number_shape(body) else number)

    limit = None if trips is None else _trip_count(node)
    going = true if condition is None else _scalar(node, node.x(1))
    init = [result_of(node, v) for v in carried]
    names_before = node.graph.dimension_names
    probe = _probe(node, body, [numbered(zero), Tensor(true), *map(Tensor, init)])
    after, scanned = probe[1 : 1 + len(init)], probe[1 + len(init) :]
    if any(_names(row) - names_before for row in scanned):
        _refuse_unknown_end(node, trips, condition, "the size of its scan outputs is known inside its body only")
    varying = {i + 2 for i in _varying(node, body, [numbered(zero), Tensor(true)], init, after)}
    count = _row_count(node, trips, scanned)
    if node.graph.only_types:
        open_rows = [[None, *expr_shape(r)] for r in scanned]
        shapes = [[None] * len(expr_shape(v)) if i in varying else expr_shape(v) for i, v in enumerate(init, 2)]
        return tuple(_of_shape(node, s, v) for s, v in zip([*shapes, *open_rows], [*init, *scanned]))
    first = len(init) + 2
    if count is None:  # rows are appended as they come
        init += [_empty_rows(node, row) for row in scanned]
    else:
        init += [allocate_rows(builder, count, expr_shape(row), expr_dtype(row)) for row in scanned]

    def proceed(state: list[relax.Expr]) -> relax.Expr:
        if limit is None:
            return state[1]
        return builder.emit(relax.op.logical_and(state[1], builder.emit(relax.op.less(state[0], limit))))

    def step(state: list[relax.Expr]) -> list[relax.Expr]:
        inputs = [numbered(state[0]), *map(Tensor, state[1:first])]
        found = [result_of(node, v) for v in node.graph.convert_graph(body, inputs)]
        rows = []
        for kept, row in zip(state[first:], found[first - 1 :]):
            row = row if isinstance(row, relax.Var) else builder.emit(row)
            if count is None:
                rows.append(builder.emit(relax.op.concat([kept, builder.emit(relax.op.expand_dims(row, 0))], 0)))
            else:
                rows.append(write_row(builder, kept, state[0], row))
        following = builder.emit(relax.op.add(state[0], relax.const(_int64(1), "int64")))
        return [following, _scalar(node, found[0]), *found[1 : first - 1], *rows]

    growing = range(first, len(init) + 2) if count is None else ()
    steps, _, *results = while_loop(
        builder, [zero, going, *init], proceed, step, varying=varying, growing=growing, name="onnx_loop"
    )
    state, rows = [_known_shape(node, v) for v in results[: first - 2]], results[first - 2 :]
    if count is None:
        return (*state, *(node.fresh_dims(r, [None, *expr_shape(row)]) for r, row in zip(rows, scanned)))
    return (*state, *(first_rows(builder, _known_shape(node, r), steps) for r in rows))


def _varying(
    node: Node, body: GraphProto, control: Sequence[Value], init: Sequence[relax.Expr], after: Sequence[relax.Expr]
) -> set[int]:
    """Which parts of the state change their sizes; `after`: the state behind one iteration.

    What takes on the sizes of one that varies does so an iteration later.
    """
    found: set[int] = set()
    while more := {i for i, (a, b) in enumerate(zip(init, after)) if not node.has_shape(a, expr_shape(b))} - found:
        found |= more
        # What checks sizes is no dead code: this iteration is emitted into a block that is dropped.
        node.graph.builder._begin_binding_block()
        try:
            opened = [_of_shape(node, [None] * v.ty.ndim, v) if i in found else v for i, v in enumerate(init)]
            after = _probe(node, body, [*control, *map(Tensor, opened)])[1 : 1 + len(init)]
        finally:
            node.graph.builder._end_block()
    return found


def _probe(node: Node, body: GraphProto, inputs: Sequence[Value]) -> list[relax.Expr]:
    """One iteration whose results nobody reads: it tells their types, and is dropped as dead code.

    Of loops inside only the types are asked in turn: else each would be converted twice for every loop around it.
    """
    graph, before = node.graph, node.graph.only_types
    graph.only_types = True
    try:
        return [result_of(node, v) for v in graph.convert_graph(body, inputs)]
    finally:
        graph.only_types = before


def _of_shape(node: Node, shape: Sequence[Dim | None], like: relax.Expr) -> relax.Expr:
    """What stands for a result of which only the type is asked; None is a size that the run decides."""
    zeros = relax.op.zeros(relax.ShapeExpr([1 if d is None else d for d in shape]), expr_dtype(like))
    return node.fresh_dims(zeros, shape) if None in shape else node.emit(zeros)


def _names(value: relax.Expr) -> frozenset[str]:
    """Symbols in the shape of a value."""
    return frozenset(v.name for v in relax.analysis.free_symbolic_vars(relax.ShapeExpr(expr_shape(value))))


def _row_count(node: Node, trips: Value | None, scanned: Sequence[relax.Expr]) -> Dim | relax.Expr | None:
    """Rows to allocate for scan outputs; None when no useful bound is known ahead.

    A larger number means "until the condition ends it": of a constant, rows are appended; one that only a run knows
    is refused then, since the program that allocates them is made by now.
    """
    number = _number(trips)
    if number is not None:
        return max(number, 0) if number <= _MOST_ROWS else None
    if isinstance(trips, Symbolic):
        return node.sizes.maximum(trips.array.reshape(-1)[0], 0)
    if trips is None or not scanned:
        return None
    most = relax.const(np.array([_MOST_ROWS], np.int64), "int64")
    left = node.emit(relax.op.subtract(most, node.emit(relax.op.reshape(_trip_count(node), (1,)))))
    left = not_negative(node.graph.builder, left, f"more than {_MOST_ROWS} iterations for {node.op} ({node.name[:80]})")
    return node.emit(relax.op.reshape(node.emit(relax.op.subtract(most, left)), ()))


def _trip_count(node: Node) -> relax.Expr:
    """A loop of fewer than 0 iterations has none."""
    count = node.bind(_scalar(node, node.x(0)))
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
    axes = [node.axis(a, len(expr_shape(x))) for a, x in zip(axes, xs)]
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
            _stacked(node, r[::-1] if b else r, node.axis(a, len(r[0].shape) + 1))
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
    limit = node.graph.expr_of(known(_object(length), "int64"))
    last = builder.emit(relax.op.subtract(limit, one))

    def inputs(index: relax.Expr) -> list[Tensor]:
        mirrored = builder.emit(relax.op.subtract(last, index))
        return [Tensor(_row(node, x, a, mirrored if b else index)) for x, a, b in zip(xs, axes, backwards)]

    init = [result_of(node, v) for v in state]
    probe = _probe(node, body, [*map(Tensor, init), *inputs(zero)])
    rows = [allocate_rows(builder, length, expr_shape(r), expr_dtype(r)) for r in probe[kept:]]

    def step(carried: list[relax.Expr], index: relax.Expr) -> Stepped:
        made = node.graph.convert_graph(body, [*map(Tensor, carried), *inputs(index)])
        found = [f if isinstance(f, relax.Var) else builder.emit(f) for f in (result_of(node, v) for v in made)]
        mirrored = builder.emit(relax.op.subtract(last, index))
        return found[:kept], [(mirrored if b else index, row) for row, b in zip(found[kept:], out_backwards)]

    results = [*init, *rows]
    if not node.graph.only_types:
        results = counted_loop(builder, limit, init, rows, step, name="onnx_scan")
    out = [_moved(node, r, node.axis(a, len(expr_shape(r)))) for r, a in zip(results[kept:], out_axes)]
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
    return node.emit(relax.op.take(node.bind(x), index, axis, mode="clip"))


def _number(value: Value | None) -> int | None:
    return int(value.array.reshape(-1)[0]) if isinstance(value, Constant) else None


def _scalar(node: Node, value: relax.Expr) -> relax.Expr:
    """A tensor of one element without dimensions."""
    return value if not expr_shape(value) else node.emit(relax.op.reshape(value, ()))


def _int64(value: int) -> np.ndarray:
    return np.array(value, np.int64)


def _true() -> np.ndarray:
    return np.array(True)


def _object(value: Dim) -> np.ndarray:
    out = np.empty((), dtype=object)
    out[()] = value
    return out
