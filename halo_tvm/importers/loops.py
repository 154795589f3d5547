"""Control flow for importers: loops and branches as pure Relax functions, callable inside a dataflow block.

    [total, i] = while_loop(bb, [zero, start], lambda s: less(s[1], n), lambda s: [add(s[0], s[1]), add(s[1], one)])
    [y] = if_then_else(bb, condition, lambda: [exp(x)], lambda: [x])

Bodies are plain Python that emits into `bb`. They may use every outer variable and symbolic dimension: what they use
becomes an argument of the function that is made of them.

A loop is not one recursive function: Relax has no tail calls and its virtual machine takes about a kilobyte of the
C stack per call, so that some thousand steps end the process. Instead `step` does one iteration and

    run_0 = step,   run_k = up to four times run_(k-1), as long as the loop goes on
    loop  = run_0, run_1, run_2, ... as long as the loop goes on

is a chain of functions that call only their predecessor: `LEVELS` calls deep for up to MOST_STEPS steps, with 1.4
calls per step. Whether the loop goes on is the first part of what each function returns.

Scan outputs: `allocate_rows` before the loop, `write_row` in its body, `first_rows` behind it. The rows are one tensor
that each step writes in place, so that n steps cost n rows. `counted_loop` writes one row of each in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..errors import REFUSED
from ..loop_kernels import LOOP

LEVELS = 16
_FACTOR = 4
MOST_STEPS = sum(_FACTOR**level for level in range(LEVELS))  # 1.4e9

CHECKED = "halo.checked"  # of a function whose result is its argument, once that was found to be in order
ALLOCATES, WRITES = "halo.allocates_rows", "halo.writes_row"  # of kernels
_OPAQUE = {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}  # no pass looks inside

State = list[relax.Expr]
Stepped = tuple[State, list[tuple[relax.Expr, relax.Expr]]]  # the state behind a step, and places and rows


def while_loop(
    builder: relax.BlockBuilder,
    init: Sequence[relax.Expr],
    condition: Callable[[State], relax.Expr],
    body: Callable[[State], Sequence[relax.Expr]],
    *,
    varying: Collection[int] = (),
    growing: Collection[int] = (),
    name: str = "loop",
) -> State:
    """The state when `condition(state)`, a scalar bool, is first false; `state` = `body(state)` while it is true.

    Each part of the state keeps its dtype, rank and shape, except that the sizes of those numbered in `varying` may
    change from step to step, and of those in `growing` the first size. A body whose shapes are not known to stay is
    checked as it runs.
    """
    init = [builder.normalize(value) for value in init]
    varying = {*varying, *growing}
    types = [_open_type(v.ty) if i in varying else v.ty for i, v in enumerate(init)]
    kept = [list(v.ty.shape.values)[1:] if i in growing else [] for i, v in enumerate(init)]
    inside = [_fresh_type(builder, v.ty, rest) if i in varying else v.ty for i, (v, rest) in enumerate(zip(init, kept))]

    def next_state(params: State) -> list[relax.Expr]:
        state = [_fitted(builder, v, ty) for v, ty in zip(body(params), types, strict=True)]
        sizes = zip(state, inside, kept)
        named = [_named(builder, v, ty, rest) if i in varying else v for i, (v, ty, rest) in enumerate(sizes)]
        return [_condition(builder, condition(named)), *state]

    step = _Closed(builder, f"{name}_step", inside, next_state)
    flagged = [relax.TensorType((), "bool"), *types]
    run = [step]
    for level in range(1, LEVELS):
        run.append(_Closed(builder, f"{name}_{level}", inside, _chain(builder, [run[-1]] * _FACTOR, flagged)))

    def whole(params: State) -> list[relax.Expr]:
        return _chain(builder, run, flagged, _condition(builder, condition(params)))(params)[1:]

    return _Closed(builder, name, inside, whole, {LOOP: step.name})(init)


def if_then_else(
    builder: relax.BlockBuilder,
    condition: relax.Expr,
    then: Callable[[], Sequence[relax.Expr]],
    otherwise: Callable[[], Sequence[relax.Expr]],
    *,
    name: str = "branch",
) -> State:
    """What `then()` or `otherwise()` emits, by a scalar bool; sizes that differ between them become new dimensions."""

    def choose(params: State) -> list[relax.Expr]:
        chosen = builder.emit(relax.If(params[0], _block(builder, then), _block(builder, otherwise)))
        return [builder.emit(relax.TupleGetItem(chosen, i)) for i in range(len(chosen.ty.fields))]

    condition = _condition(builder, condition)
    found = _Closed(builder, name, [condition.ty], choose)([condition])
    return [_named(builder, value, _fresh_type(builder, value.ty)) if _is_open(value.ty) else value for value in found]


def allocate_rows(
    builder: relax.BlockBuilder, count: relax.Expr | tvm.ir.Expr | int, shape: Sequence[object], dtype: str
) -> relax.Expr:
    """A tensor [count, *shape] that `write_row` may write in place; its elements are not set.

    `count` is a size or an int64 scalar tensor, which then names a new dimension.
    """
    if isinstance(getattr(count, "ty", None), relax.TensorType):
        count = size_of_tensor(builder, count)
    dims = [count, *shape]
    buffer = tirx.decl_buffer([tirx.Var(f"d{i}", "int64") for i in range(len(dims))], dtype, "rows")
    seed = tirx.decl_buffer((), "int64", "seed")
    untouched = tirx.PrimFunc([seed, buffer], tirx.Evaluate(0))
    gvar = builder.add_func(untouched.with_attrs({**_OPAQUE, ALLOCATES: True}), "rows")

    # In a function of its own, behind an argument: no pass computes it once for two buffers, or ahead of time.
    def allocate(params: State) -> list[relax.Expr]:
        return [relax.op.call_tir(gvar, params, relax.TensorType(dims, dtype))]

    zero = relax.const(0, "int64")
    return _Closed(builder, "rows", [zero.ty], allocate, single=True)([zero])[0]


def write_row(builder: relax.BlockBuilder, rows: relax.Expr, at: relax.Expr, row: relax.Expr) -> relax.Expr:
    """`rows` with its row number `at` (int64 scalar) set to `row`: use the result, never `rows`, from here on.

    A row outside 0 .. count - 1 is not written.
    """
    rank, dtype = rows.ty.ndim, rows.ty.dtype
    dims = [tirx.Var(f"d{i}", "int64") for i in range(rank)]
    target = tirx.decl_buffer(dims, dtype, "rows")
    source = tirx.decl_buffer(dims[1:], dtype, "row")
    index = tirx.decl_buffer((), "int64", "at")
    loops = [tirx.Var(f"i{i}", "int64") for i in range(1, rank)]
    body = tirx.BufferStore(target, tirx.BufferLoad(source, loops), [tirx.BufferLoad(index, []), *loops])
    for var, extent in zip(reversed(loops), reversed(dims[1:])):
        body = tirx.For(var, 0, extent, tirx.ForKind.SERIAL, body)
    number = tirx.BufferLoad(index, [])
    body = tirx.IfThenElse(tirx.all(number >= 0, number < dims[0]), body, None)
    func = tirx.PrimFunc([index, source, target], body)
    gvar = builder.add_func(func.with_attrs({**_OPAQUE, WRITES: True}), "write_row")
    return builder.emit(relax.op.call_tir_inplace(gvar, relax.Tuple([at, row, rows]), [2], rows.ty))


def counted_loop(
    builder: relax.BlockBuilder,
    count: relax.Expr,
    init: Sequence[relax.Expr],
    rows: Sequence[relax.Expr],
    step: Callable[[State, relax.Expr], Stepped],
    *,
    name: str = "scan",
) -> State:
    """What has become of `init` behind `count` (int64 scalar tensor) steps, and `rows` as the steps have written them.

    `step(state, number)` gives the next state, and for each of `rows` the place of a row and the row.
    """
    zero, one = (relax.const(np.int64(value), "int64") for value in (0, 1))

    def turn(current: State) -> list[relax.Expr]:
        number, state, kept = current[0], current[1 : 1 + len(init)], current[1 + len(init) :]
        state, made = step(state, number)
        written = [write_row(builder, all_, at, row) for all_, (at, row) in zip(kept, made, strict=True)]
        return [builder.emit(relax.op.add(number, one)), *state, *written]

    def proceed(current: State) -> relax.Expr:
        return builder.emit(relax.op.less(current[0], count))

    return while_loop(builder, [zero, *init, *rows], proceed, turn, name=name)[1:]


def first_rows(builder: relax.BlockBuilder, rows: relax.Expr, count: relax.Expr) -> relax.Expr:
    """The first `count` (int64 scalar tensor) rows, a new dimension."""
    size = size_of_tensor(builder, count)
    return builder.emit_te(
        lambda x: te.compute((size, *x.shape[1:]), lambda *i: x[i], name="first_rows"),
        rows,
        primfunc_name_hint="first_rows",
    )


def size_of_tensor(builder: relax.BlockBuilder, count: relax.Expr) -> tirx.Var:
    """A new dimension of the size that `count`, an int64 scalar tensor, holds."""
    vector = builder.emit(relax.op.reshape(count, (1,)))
    size = tirx.Var(builder.get_unique_name("loop_count"), "int64")
    builder.match_cast(builder.emit(relax.op.tensor_to_shape(vector)), relax.ShapeType([size]))
    return size


def not_negative(builder: relax.BlockBuilder, sizes: relax.Expr, found: str) -> relax.Expr:
    """`sizes`, an int64 tensor [count]; a run with a number below 0 ends, saying what was `found`."""
    (count,) = sizes.ty.shape.values
    source, target = (tirx.decl_buffer([count], "int64", name) for name in ("sizes", "checked"))
    i = tirx.Var("i", "int64")
    size = tirx.BufferLoad(source, [i])
    check = tirx.AssertStmt(size >= 0, tvm.ir.StringImm("ValueError"), [tvm.ir.StringImm(REFUSED + found)])
    body = tirx.For(i, 0, count, tirx.ForKind.SERIAL, tirx.SeqStmt([check, tirx.BufferStore(target, size, [i])]))
    func = tirx.PrimFunc([source, target], body).with_attrs({**_OPAQUE, CHECKED: True})
    gvar = builder.add_func(func, "not_negative")
    return builder.emit(relax.op.call_tir(gvar, [sizes], relax.TensorType([count], "int64")))


class _Closed:
    """A Relax function of what `body(params)` emits, called with what it captures: variables and dimensions."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        name: str,
        types: Sequence[relax.Type],
        body: Callable[[State], Sequence[relax.Expr]],
        attrs: Mapping[str, str] | None = None,
        *,
        single: bool = False,
    ) -> None:
        self._builder = builder
        params = [relax.Var(f"s{i}", ty) for i, ty in enumerate(types)]
        seq = _block(builder, lambda: body(params))
        result = seq.body
        own = set(params)
        # sizes that an operator takes as numbers are among the free variables, too: they are dimensions
        free = relax.analysis.free_vars(seq)
        self._captured = [v for v in free if v not in own and not isinstance(v.ty, tvm.ir.PrimType)]
        plain = {v: relax.Var(v.name, v.ty) for v in self._captured if isinstance(v, relax.DataflowVar)}
        inner = [plain.get(v, v) for v in self._captured]
        if plain:
            seq = _Renamed(plain).visit_expr(seq)
        func = relax.Function([*params, *inner], seq, result.ty)
        self._dims = list(relax.analysis.free_symbolic_vars(func))
        if self._dims:
            shape = relax.Var("dims", relax.ShapeType(self._dims))
            func = relax.Function([shape, *params, *inner], seq, result.ty)
        func = relax.utils.copy_with_new_vars(func)
        unique = builder.get_unique_name(f"halo_{name}")
        marks = {**(attrs or {}), **({"halo.single": unique} if single else {})}  # the builder keeps one of equals
        if marks:
            func = func.with_attrs(marks)
        self._gvar = builder.add_func(func, unique)

    @property
    def name(self) -> str:
        return str(self._gvar.name_hint)

    def __call__(self, args: Sequence[relax.Expr]) -> State:
        dims = [relax.ShapeExpr(self._dims)] if self._dims else []
        result = self._builder.emit(relax.Call(self._gvar, [*dims, *args, *self._captured]))
        return [self._builder.emit(relax.TupleGetItem(result, i)) for i in range(len(result.ty.fields))]


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):
    """Outer variables of a dataflow block become plain parameters."""

    def __init__(self, names: dict[relax.Var, relax.Var]) -> None:
        super().__init__()
        self._names = names

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self._names.get(var, var)


def _chain(
    builder: relax.BlockBuilder, run: Sequence[_Closed], types: Sequence[relax.Type], alive: relax.Expr | None = None
) -> Callable[[State], list[relax.Expr]]:
    """Each of `run` in turn, as long as the flag that the one before returned holds."""

    def body(params: State) -> list[relax.Expr]:
        found = [alive, *params] if alive is not None else run[0](params)
        for part in run[0 if alive is not None else 1 :]:
            before = found

            def otherwise() -> list[relax.Expr]:
                return before

            chosen = relax.If(found[0], _block(builder, lambda: part(before[1:])), _block(builder, otherwise))
            result = builder.emit(chosen)
            found = [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(types))]
        return found

    return body


def _block(builder: relax.BlockBuilder, body: Callable[[], Sequence[relax.Expr]]) -> relax.SeqExpr:
    builder._begin_binding_block()
    try:
        result = builder.emit(relax.Tuple(list(body())))
    finally:  # a body that raises leaves no open block behind
        block = builder._end_block()
    return relax.SeqExpr([block], result)


def _condition(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """A bool tensor without dimensions, of one with one element."""
    value = builder.emit(value)
    return value if value.ty.ndim == 0 else builder.emit(relax.op.reshape(value, ()))


def _is_open(ty: relax.Type) -> bool:
    return isinstance(ty, relax.TensorType) and not isinstance(ty.shape, relax.ShapeExpr) and ty.ndim >= 0


def _open_type(ty: relax.TensorType) -> relax.TensorType:
    return relax.TensorType(dtype=ty.dtype, ndim=ty.ndim)


def _fresh_type(
    builder: relax.BlockBuilder, ty: relax.TensorType, kept: Sequence[tvm.ir.Expr] = ()
) -> relax.TensorType:
    """`ty` with new names for its sizes, but for the last ones, which are `kept`."""
    names = [builder.get_unique_name("loop_size") for _ in range(ty.ndim - len(kept))]
    return relax.TensorType([*(tirx.Var(name, "int64") for name in names), *kept], ty.dtype)


def _named(
    builder: relax.BlockBuilder, value: relax.Expr, ty: relax.TensorType, kept: Sequence[tvm.ir.Expr] = ()
) -> relax.Expr:
    """`value` with new names for its dimensions, but for those `kept`."""
    return builder.match_cast(value, _fresh_type(builder, ty, kept))


def _fitted(builder: relax.BlockBuilder, value: relax.Expr, ty: relax.Type) -> relax.Expr:
    """`value` of type `ty`, checked at run time where it is not known to be."""
    value = builder.emit(value)
    if isinstance(ty, relax.TensorType) and (value.ty.dtype != ty.dtype or value.ty.ndim != ty.ndim):
        raise ValueError(f"expected a loop body to keep the type {ty} of its state, found {value.ty}")
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr) and value.ty != ty:
        return builder.match_cast(value, ty)
    return value
