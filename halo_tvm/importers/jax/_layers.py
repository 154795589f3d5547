"""An LSTM or GRU cell in a `scan` is the layer of `relay_ops`, whatever the length.

It is recognised here and not by a lift: behind the importer a scan is written out, or a chain of functions, and no
loop any more whose body a pattern could be held against.

LSTM   c' = f c + i g,   h' = o act(c')          i, f, o = sigmoid, g = act of an affine map of the row and of h
GRU    h' = (1 - z) n + z h,   n = act(a + r b)  z, r = sigmoid; a an affine map of the row, b of h, or of r h
RNN    h' = act of an affine map of the row and of h
A row that was multiplied with its weight before the loop is taken apart again where that product shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...relay_ops.operator import op_name
from ..meaning.builder import expr_shape
from ..meaning.recurrence import recurrent_layer
from ..meaning.sizes import prim
from ._cells import Affine, Columns, Held, NoCell, Node, Row, State, Symbol, is_one, symbols_of
from ._primitive import Primitive
from ._values import Opaque, Spread, Value

_ACTIVATIONS = {"logistic": "sigmoid", "tanh": "tanh"}


@dataclass
class _Cell:
    """A cell whose gates are in the operator's order; `outer` is its hidden state's place among what is carried."""

    kind: str
    gates: list[Affine]
    hidden: int
    cell: int | None
    activations: list[str]
    inner: Affine | None = None  # of a GRU: what the reset gate is multiplied with


def recurrent(c: Primitive, used: Sequence[Value], init: Sequence[Value]) -> list[Value] | None:
    """The results of the scan `c` as one layer, or None where its body is no cell that the operators have."""
    places = len(init)
    body = c.params["jaxpr"]
    inner = getattr(body, "jaxpr", body)
    kept = [inner.outvars[i] is inner.invars[len(used) + i] for i in range(places)]  # carried, and never changed
    state: list[Symbol] = [Held(v) if k else State(i) for i, (v, k) in enumerate(zip(init, kept))]
    rows = [Row(i) for i in range(len(c.values) - len(used) - places)]
    try:
        results = symbols_of(c, body, [*map(Held, used), *state, *rows])
        cell = _cell(results[:places], kept)
        return _layer(c, cell, results, init, c.values[len(used) + places :])
    except NoCell:
        return None


def _cell(carried: Sequence[Symbol], kept: Sequence[bool]) -> _Cell:
    changed = [i for i, same in enumerate(kept) if not same]
    if len(changed) == 2:
        for cell, hidden in (changed, changed[::-1]):
            for found in _lstm(carried, cell, hidden):
                return found
    if len(changed) == 1:
        for found in _gru(carried, changed[0]):
            return found
        step = _gate(carried[changed[0]])
        if step is not None:
            return _Cell("rnn", [step[0]], changed[0], None, [step[1]])
    raise NoCell("arithmetic")


def _pairs(x: Symbol, op: str) -> Iterator[tuple[object, object]]:
    """Both orders of the operands of an `op` that has no order."""
    if isinstance(x, Node) and x.op == op:
        a, b = x.operands
        yield from ((a, b), (b, a))


def _gate(x: object, *allowed: str) -> tuple[Affine, str] | None:
    """The affine map in an activation, and that one's name."""
    if isinstance(x, Node) and x.op in (allowed or tuple(_ACTIVATIONS)) and isinstance(x.operands[0], Affine):
        return x.operands[0], _ACTIVATIONS[x.op]
    return None


def _lstm(carried: Sequence[Symbol], cell: int, hidden: int) -> Iterator[_Cell]:
    for keep, add in _pairs(carried[cell], "add"):
        for forget, old in _pairs(keep, "mul"):  # type: ignore[arg-type]
            for gate, new in _pairs(add, "mul"):  # type: ignore[arg-type]
                for out, turned in _pairs(carried[hidden], "mul"):
                    i, f, o = (_gate(x, "logistic") for x in (gate, forget, out))
                    g = _gate(new)
                    last = turned.op if isinstance(turned, Node) and turned.operands == (carried[cell],) else ""
                    if old != State(cell) or not (i and f and o and g) or last not in _ACTIVATIONS:
                        continue
                    names = ["sigmoid", g[1], _ACTIVATIONS[last]]
                    yield _Cell("lstm", [i[0], o[0], f[0], g[0]], hidden, cell, names)


def _gru(carried: Sequence[Symbol], hidden: int) -> Iterator[_Cell]:
    for keep, add in _pairs(carried[hidden], "add"):
        for update, old in _pairs(keep, "mul"):  # type: ignore[arg-type]
            for rest, new in _pairs(add, "mul"):  # type: ignore[arg-type]
                z = _gate(update, "logistic")
                if old != State(hidden) or z is None or not _is_rest(rest, update):
                    continue
                if not isinstance(new, Node) or new.op not in _ACTIVATIONS:
                    continue
                before = new.operands[0]
                for term, _ in before.terms if isinstance(before, Affine) else ():
                    for reset, state in _pairs(term, "mul"):
                        r = _gate(reset, "logistic")
                        if r and state == State(hidden) and isinstance(before, Affine):
                            names = ["sigmoid", _ACTIVATIONS[new.op]]
                            yield _Cell("gru", [z[0], r[0], _of_state(before, term, state)], hidden, None, names)
                for outer, product in _pairs(before, "add"):  # type: ignore[arg-type]
                    for reset, inner in _pairs(product, "mul"):  # type: ignore[arg-type]
                        r = _gate(reset, "logistic")
                        if r and isinstance(outer, Affine) and isinstance(inner, Affine):
                            names = ["sigmoid", _ACTIVATIONS[new.op]]
                            yield _Cell("gru", [z[0], r[0], outer], hidden, None, names, inner)


def _of_state(gate: Affine, term: Symbol, state: object) -> Affine:
    """`gate` with `state` for `term`."""
    terms = tuple((state if source is term else source, columns) for source, columns in gate.terms)
    return Affine(terms, gate.biases, gate.width)  # type: ignore[arg-type]


def _is_rest(x: object, part: object) -> bool:
    """Whether `x` is 1 - `part`."""
    return isinstance(x, Node) and x.op == "sub" and x.operands[1] == part and is_one(x.operands[0])


def _layer(
    c: Primitive, cell: _Cell, results: Sequence[Symbol], init: Sequence[Value], scanned: Sequence[Value]
) -> list[Value]:
    """The layer, and what the scan returns of it: the last states, and all hidden ones."""
    if any(result != results[cell.hidden] for result in results[len(init) :]):
        raise NoCell("other results")
    row, from_row, from_state = _terms(cell)
    x = c.walker.expr_of(scanned[row])
    before = _projection(c, x) if all(columns.held is None for columns in from_row) else None
    if before is not None:
        x = before.x
        from_row = [Columns(Held(before.weight), columns.low, columns.high) for columns in from_row]
    w, r = _stacked(c, from_row), _stacked(c, from_state)
    bias = _biases(c, cell, before, from_row)
    start = {"initial_h": _state(c, init[cell.hidden])}
    if cell.cell is not None:
        start["initial_c"] = _state(c, init[cell.cell])
    flags = {"linear_before_reset": True} if cell.inner else {}
    y, *last = recurrent_layer(
        c,
        cell.kind,
        x,
        w,
        r,
        {"bias": bias, **start},
        direction="reverse" if c.params["reverse"] else "forward",
        activations=cell.activations,
        **flags,
    )
    s, _, b, h = expr_shape(y)
    out: list[Value] = list(init)
    for place, state in zip((cell.hidden, cell.cell), last):
        if place is not None:
            out[place] = c.reshape(state, [b, h])
    rows = c.reshape(y, [s, b, h])
    return [*out, *(rows for _ in results[len(init) :])]


def _terms(cell: _Cell) -> tuple[int, list[Columns], list[Columns]]:
    """Which scanned operand the gates read; for each gate what it and the state are multiplied with."""
    rows: set[int] = set()
    from_row, from_state = [], []
    for gate in cell.gates:
        terms = [*gate.terms, *(cell.inner.terms if cell.inner and gate is cell.gates[-1] else ())]
        of_row = [columns for source, columns in terms if isinstance(source, Row)]
        of_state = [columns for source, columns in terms if source == State(cell.hidden) and columns.held is not None]
        rows |= {source.place for source, _ in terms if isinstance(source, Row)}
        if len(terms) != 2 or len(of_row) != 1 or len(of_state) != 1:
            raise NoCell("a gate of other terms")
        from_row += of_row
        from_state += of_state
    mixed = cell.inner is not None and any(isinstance(source, State) for source, _ in cell.gates[-1].terms)
    if mixed or len(rows) != 1 or len({columns.held is None for columns in from_row}) != 1:
        raise NoCell("a gate of other terms")
    return rows.pop(), from_row, from_state


@dataclass(frozen=True)
class _Projection:
    """x @ weight + bias, x [s, b, k], weight [k, n], bias [n] or None."""

    x: relax.Expr
    weight: relax.Expr
    bias: relax.Expr | None = None


def _projection(c: Primitive, x: relax.Expr) -> _Projection:
    """`x` as the product it is bound to; as itself times the identity where no product shows."""
    found = _product_behind(c, x)
    if found is None:
        width = int(expr_shape(x)[-1])
        return _Projection(x, relax.const(np.eye(width, dtype=str(x.ty.dtype))))
    return found


def _product_behind(c: Primitive, x: relax.Expr) -> _Projection | None:
    bound = c.bound_to(x)
    name = op_name(bound)
    if name == "relax.permute_dims" and [int(a) for a in bound.attrs.axes] == [1, 0, 2]:
        inner = _product_behind(c, bound.args[0])
        if inner is not None:
            return _Projection(c.emit(relax.op.permute_dims(inner.x, [1, 0, 2])), inner.weight, inner.bias)
    if name == "relax.add":
        for product, bias in (tuple(bound.args), tuple(bound.args)[::-1]):
            inner, shape = _product_behind(c, product), expr_shape(bias)
            if inner is not None and inner.bias is None and all(size == 1 for size in shape[:-1]):
                return _Projection(inner.x, inner.weight, c.reshape(bias, [shape[-1]]))
    if name == "relax.matmul" and bound.args[0].ty.ndim == 3 and bound.args[1].ty.ndim == 2:
        return _Projection(bound.args[0], bound.args[1])
    return None


def _biases(c: Primitive, cell: _Cell, before: _Projection | None, from_row: Sequence[Columns]) -> relax.Expr:
    """[1, 2 * gates * h]: what is added to the products of the row, then to those of the state."""
    width = cell.gates[0].width
    first = [_vector(c, gate.biases, width) for gate in cell.gates]
    if before is not None and before.bias is not None:
        parts = [Columns(Held(before.bias), columns.low, columns.high) for columns in from_row]
        first = [c.emit(relax.op.add(own, _vector(c, [part], width))) for own, part in zip(first, parts)]
    second = [_vector(c, (), width) for _ in cell.gates]
    if cell.inner:
        second[-1] = _vector(c, cell.inner.biases, width)
    return c.reshape(c.emit(relax.op.concat([*first, *second], 0)), [1, 2 * len(cell.gates) * width])


def _matrix(c: Primitive, columns: Columns) -> relax.Expr:
    """The columns as rows, [h, k]."""
    assert columns.held is not None, "the identity is made a weight before"
    weight = c.walker.expr_of(columns.held.value)
    whole = weight if columns.turned else c.emit(relax.op.permute_dims(weight, [1, 0]))
    if columns.low == 0 and columns.high == expr_shape(whole)[0]:
        return whole
    return c.emit(relax.op.strided_slice(whole, [0], [prim(columns.low)], [prim(columns.high)]))


def _stacked(c: Primitive, gates: Sequence[Columns]) -> relax.Expr:
    """[1, gates * h, k]"""
    return c.emit(relax.op.expand_dims(c.emit(relax.op.concat([_matrix(c, gate) for gate in gates], 0)), [0]))


def _vector(c: Primitive, biases: Sequence[Columns], width: int) -> relax.Expr:
    """The sum of the vectors, [width]; zeros where there are none."""
    total = None
    for bias in biases:
        assert bias.held is not None, "a vector has elements"
        value = bias.held.value
        small = value.small if isinstance(value, Spread) else value
        if isinstance(small, Opaque):
            raise NoCell("a vector of another type")
        vector = c.walker.expr_of(small)
        if any(size != 1 for size in expr_shape(vector)[:-1]) or not expr_shape(vector):
            raise NoCell("a sum with another shape")
        vector = c.reshape(vector, expr_shape(vector)[-1:])
        if expr_shape(vector) == [1]:
            vector = c.emit(relax.op.broadcast_to(vector, [bias.high]))
        if (bias.low, bias.high) != (0, expr_shape(vector)[0]):
            vector = c.emit(relax.op.strided_slice(vector, [0], [prim(bias.low)], [prim(bias.high)]))
        total = vector if total is None else c.emit(relax.op.add(total, vector))
    return total if total is not None else c.emit(relax.op.zeros([width], c.dtype))


def _state(c: Primitive, value: Value) -> relax.Expr:
    whole = c.walker.expr_of(value)
    return c.reshape(whole, [1, *expr_shape(whole)])
