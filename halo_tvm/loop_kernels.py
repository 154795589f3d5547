"""A loop whose steps are small kernels becomes one kernel: the virtual machine takes longer than they do.

Before -> after, in a module whose functions are scheduled for a CPU
    loop(s, w):   alive = c(s);  as long as alive: alive, s = step(s, w)
    step(s, w):   a = f(s, w);  b = g(a);  return b, a
        ->   loop(s, w):  alive = c(s);  s = kernel(alive, s, w)
             kernel(alive, s, w, out):  out = s;  while alive: a = f(out, w); alive = g(a); if alive: out = f(a, w) ..
Serves
    scans and iterations of any importer, also of open sizes; rows that a step writes are written in place as before
Leaves alone
    steps with branches, with loops inside or of sizes that change, and large ones, whose kernels take most of the time
A scan of 1,024 running means of 1,024 numbers takes 0.2 ms, where it took 4.4 by five kernels a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from ._compat import set_type
from .dimensions import itemsize_of
from .errors import Declined
from .passes.graph_pass import bindings
from .phase_reports import LoopsReport
from .relay_ops.operator import op_name
from .relay_ops.parts.in_order import element_count, places_of
from .tir_schedules.blocks import EXACT_BUFFERS, allocated, has_exact_buffers, substitute
from .tir_schedules.code.lanes import simplify

LOOP = "halo.loop"  # of a function that is a whole loop: the function that is one step of it
_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
_MOST_BYTES = 1 << 22  # of a step's own tensors


def with_loop_kernels(mod: tvm.IRModule) -> tuple[tvm.IRModule, LoopsReport | None]:
    """`mod` whose loops are kernels where they can be; no report where there are none."""
    kernels, left, out = [], {}, mod.clone()
    for gvar, func in mod.functions_items():
        if not isinstance(func, relax.Function) or LOOP not in (func.attrs or {}):
            continue
        try:
            kernel = _Kernel(mod, func)
            made = kernel.function()
        except Declined as reason:
            left[gvar.name_hint] = str(reason)
            continue
        name = ir.GlobalVar(f"{gvar.name_hint}_kernel")
        set_type(name, made.ty)
        out[name] = made
        out[gvar] = kernel.caller(func, name)
        kernels.append(gvar.name_hint)
    if kernels:
        mod = relax.transform.Normalize()(_without_unused(mod, out))
    return mod, LoopsReport(tuple(kernels), left) if kernels or left else None


class _Kernel:
    """One loop as one kernel; `Declined` where it cannot be.

    Each part of the state lies in the output for it. What one kernel of a step makes anew is written elsewhere, and
    read there by the next step, which writes it into the output again: the loop's body is two steps. Other parts are
    copied, and rows that the step writes lie where they are.
    """

    def __init__(self, mod: tvm.IRModule, loop: relax.Function) -> None:
        self._mod = mod
        self._choice, call = _first_step(loop)
        self._step = step = mod[call.op]
        # The step's sizes come first where there are any: its kernels find them in its tensors.
        given = [(p, arg) for p, arg in zip(step.params, call.args) if not isinstance(p.ty, relax.ShapeType)]
        params, self._arguments = [p for p, _ in given], [arg for _, arg in given]
        self._flag, *self._results = _results(step)
        self._values = {b.var: b.value for b in bindings(step)}
        self._state = params[: len(self._results)]
        self._rows = [self._written(result, p) for result, p in zip(self._results, self._state)]
        self._params = {p: _buffer(p.ty, f"p{i}") for i, p in enumerate(params)}
        self._outs = [_buffer(p.ty, f"out{i}") for i, p in enumerate(self._state)]
        self._alive = tirx.decl_buffer((), "bool", "alive")
        self._constants: list[tuple[ir.GenericConst, tirx.Buffer]] = []
        self._besides: dict[int, tirx.Buffer] = {}
        self._made: dict[relax.Var, tirx.Buffer] = {}  # what a step makes, by its variable
        for var, value in self._values.items():
            if op_name(value) == "relax.call_tir" or op_name(value) == "relax.reshape":
                self._made[var] = _buffer(var.ty, "made")
        own = simplify(sum(itemsize_of(b.ty.dtype) * element_count(b.ty.shape) for b in self._made.values()))
        if isinstance(own, tirx.IntImm) and int(own) > _MOST_BYTES:
            raise Declined(
                f"steps that make {int(own)} bytes, more than {_MOST_BYTES}: their kernels take most of the time"
            )
        # Places of the state that turn between their output and what the step makes.
        self._turning = {
            i: result
            for i, result in enumerate(self._results)
            if op_name(self._values.get(result)) == "relax.call_tir"
            and sum(result.same_as(other) for other in self._results) == 1
        }

    def _written(self, result: relax.Expr, param: relax.Var) -> bool:
        """Whether `result` is the memory of `param`, written."""
        while op_name(self._values.get(result)) == "relax.call_tir_inplace":
            call = self._values[result]
            result = call.args[1].fields[_place(call)]
            if result.same_as(param):
                return True
        return False

    def _one_step(self, held: dict[relax.Expr, tirx.Buffer], made: Mapping[relax.Var, tirx.Buffer]) -> list[tirx.Stmt]:
        """A step that reads variables where they are `held`, which it adds to, and makes others in `made`."""
        body: list[tirx.Stmt] = []
        for var, value in self._values.items():
            if isinstance(value, relax.Var | ir.GenericConst):
                held[var] = self._of(value, held)
            elif op_name(value) == "relax.reshape":
                held[var] = made[var]
                body.append(_copied(self._of(value.args[0], held), made[var]))
            elif op_name(value) in _CALLS and isinstance(value.ty, relax.TensorType):
                given = [self._of(arg, held) for arg in value.args[1].fields]
                if op_name(value) == "relax.call_tir_inplace":
                    held[var] = given[_place(value)]
                else:
                    held[var] = made[var]
                    given.append(made[var])
                sizes = list(value.args[2].values) if len(value.args) > 2 else []
                body.append(_inside(self._mod[value.args[0]], given, sizes))
            elif not isinstance(value, relax.Tuple):  # which are the results
                what = op_name(value) or "a branch, a loop or a part of several results"
                raise Declined(f"steps that do more than call kernels: {what}")
        return body

    def _kept(self, held: Mapping[relax.Expr, tirx.Buffer]) -> list[tirx.Stmt]:
        """The parts of the next state that do not turn, and whether there is one."""
        still = [i for i, rows in enumerate(self._rows) if not rows and i not in self._turning]
        pairs = [(self._of(self._results[i], held), self._outs[i]) for i in still]
        pairs = [(source, out) for source, out in pairs if not source.same_as(out)]
        flag = tirx.BufferStore(self._alive, tirx.BufferLoad(self._of(self._flag, held), []), [])
        # What changes places is put aside before anything is written.
        aside = [self._aside(i, out) for i, out in enumerate(self._outs) if any(out.same_as(s) for s, _ in pairs)]
        saved = dict(aside)
        moved = [(saved.get(source, source), out) for source, out in pairs]
        return [flag, *(_copied(*pair) for pair in (*aside, *moved))]

    def _aside(self, place: int, out: tirx.Buffer) -> tuple[tirx.Buffer, tirx.Buffer]:
        """The part of the state number `place` and a buffer of its shape."""
        if place not in self._besides:
            self._besides[place] = tirx.decl_buffer(out.ty.shape, out.ty.dtype, "aside")
        return out, self._besides[place]

    def _of(self, value: relax.Expr, held: Mapping[relax.Expr, tirx.Buffer]) -> tirx.Buffer:
        if isinstance(value, ir.GenericConst):
            for constant, buffer in self._constants:
                if constant.same_as(value):
                    return buffer
            self._constants.append((value, _buffer(value.ty, f"constant{len(self._constants)}")))
            return self._constants[-1][1]
        if value not in held:
            raise Declined("a value that is no tensor")
        return held[value]

    def _body(self) -> tirx.Stmt:
        """Two steps, the second of which there may not be."""
        given: dict[relax.Expr, tirx.Buffer] = dict(self._params)
        given |= {p: out for p, out, rows in zip(self._state, self._outs, self._rows) if not rows}
        first = dict(given)
        there = [*self._one_step(first, self._made), *self._kept(first)]
        if not self._turning:
            return tirx.SeqStmt(there)
        second = given | {self._state[i]: self._made[result] for i, result in self._turning.items()}
        made = self._made | {result: self._outs[i] for i, result in self._turning.items()}
        back = [*self._one_step(second, made), *self._kept(second)]
        last = [_copied(self._made[result], self._outs[i]) for i, result in self._turning.items()]
        once_more = tirx.IfThenElse(tirx.BufferLoad(self._alive, []), tirx.SeqStmt(back), _together(last))
        return tirx.SeqStmt([*there, once_more])

    def function(self) -> tirx.PrimFunc:
        """The kernel: alive, parameters of the step, constants, and the parts of the state that are no rows."""
        loop = tirx.While(tirx.BufferLoad(self._alive, []), self._body())
        moved = [(self._params[p], out) for p, out, rows in zip(self._state, self._outs, self._rows) if not rows]
        inputs = [tirx.decl_buffer((), "bool", "first"), *self._params.values(), *(b for _, b in self._constants)]
        own = [self._alive, *self._made.values(), *self._besides.values()]
        known = [dim for buffer in inputs for dim in buffer.ty.shape if isinstance(dim, ir.Var)]
        inside = [dim for b in (*own, *self._outs) for size in b.ty.shape for dim in undefined_vars(size)]
        if any(not any(dim.same_as(other) for other in known) for dim in inside):
            raise Declined("sizes that its tensors do not have")
        starts = [_copied(param, out) for param, out in moved]
        starts.append(tirx.BufferStore(self._alive, tirx.BufferLoad(inputs[0], []), []))
        root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt([*starts, loop]), None, own, [], {})
        body = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
        func = tirx.PrimFunc([*inputs, *(out for _, out in moved)], body)
        attrs = {"tirx.noalias": True, "tirx.is_scheduled": True, "s_tir": True}
        kernels = [self._mod[value.args[0]] for value in self._values.values() if op_name(value) in _CALLS]
        if all(map(has_exact_buffers, kernels)):
            attrs[EXACT_BUFFERS] = True  # which takes long to find out: several writers of sizes that are open
        return tirx.transform.ConvertSSA()(tvm.IRModule({"main": func.with_attrs(attrs)}))["main"]

    def caller(self, loop: relax.Function, kernel: ir.GlobalVar) -> relax.Function:
        """`loop` that calls the kernel."""
        before = _blocks_before(loop, self._choice)
        given = [self._choice.value.cond, *self._arguments, *(c for c, _ in self._constants)]
        rows = [1 + i for i, written in enumerate(self._rows) if written]
        carried = [i for i, written in enumerate(self._rows) if not written]
        types = [self._arguments[i - 1].ty for i in rows] + [self._arguments[i].ty for i in carried]
        inplace = [*rows, *[-1] * len(carried)]
        if rows:
            value = relax.op.call_tir_inplace(kernel, relax.Tuple(given), inplace, types)
        else:
            value = relax.op.call_tir(kernel, relax.Tuple(given), types)
        result = relax.Var("states", types[0] if len(types) == 1 else relax.TupleType(types))
        parts: list[relax.Expr] = [result]
        tail = [relax.VarBinding(result, value)]
        if len(types) > 1:
            parts = [relax.Var(f"state{i}", ty) for i, ty in enumerate(types)]
            tail += [relax.VarBinding(part, relax.TupleGetItem(result, i)) for i, part in enumerate(parts)]
        at = dict(zip([*(i - 1 for i in rows), *carried], parts))
        whole = relax.Var("whole", loop.ret_ty)
        tail.append(relax.VarBinding(whole, relax.Tuple([at[i] for i in range(len(at))])))
        body = relax.SeqExpr([*before, relax.BindingBlock(tail)], whole)
        attrs = {key: loop.attrs[key] for key in loop.attrs.keys() if key != LOOP}
        func = relax.Function(loop.params, body, loop.ret_ty, is_pure=True)
        return func.with_attrs(attrs) if attrs else func


def _first_step(loop: relax.Function) -> tuple[relax.VarBinding, relax.Call]:
    """The binding of the first choice in `loop`, and the call of its step there."""
    for binding in bindings(loop):
        if isinstance(binding.value, relax.If):
            first = binding.value.true_branch.blocks[0].bindings[0].value
            if isinstance(first, relax.Call) and str(loop.attrs[LOOP]) == getattr(first.op, "name_hint", ""):
                return binding, first
            break
    raise Declined("another beginning than a step")


def _results(step: relax.Function) -> list[relax.Expr]:
    """What a step returns, one by one."""
    values = {b.var: b.value for b in bindings(step)}
    result = step.body.body
    while isinstance(result, relax.Var) and result in values:
        result = values[result]
    if not isinstance(result, relax.Tuple):
        raise Declined("steps that return something else than a tuple of tensors")
    fields = []
    for value in result.fields:
        while isinstance(value, relax.Var) and isinstance(values.get(value), relax.Var):
            value = values[value]
        fields.append(value)
    return fields


def _blocks_before(loop: relax.Function, choice: relax.VarBinding) -> list[relax.BindingBlock]:
    blocks = []
    for block in loop.body.blocks:
        if any(b.var.same_as(choice.var) for b in block.bindings):
            break
        blocks.append(block)
    return blocks


def _buffer(ty: relax.Type, name: str) -> tirx.Buffer:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise Declined("a tensor of a shape that is not known")
    return tirx.decl_buffer(list(ty.shape.values), ty.dtype, name)


def _copied(source: tirx.Buffer, target: tirx.Buffer) -> tirx.Stmt:
    """`target` with the elements of `source` in their order."""
    i = tirx.Var("i", "int64")
    shapes = source.ty.shape, target.ty.shape
    if len(shapes[0]) and _alike(*shapes):
        loops = [tirx.Var(f"i{axis}", "int64") for axis in range(len(shapes[0]))]
        body: tirx.Stmt = tirx.BufferStore(target, tirx.BufferLoad(source, loops), loops)
        for var, extent in zip(reversed(loops), reversed(list(shapes[0]))):
            body = tirx.For(var, tirx.IntImm("int64", 0), extent, tirx.ForKind.SERIAL, body)
        return body
    if not len(shapes[0]) and not len(shapes[1]):
        return tirx.BufferStore(target, tirx.BufferLoad(source, []), [])
    places = [places_of(i, shape) for shape in shapes]
    body = tirx.BufferStore(target, tirx.BufferLoad(source, places[0]), places[1])
    return tirx.For(i, tirx.IntImm("int64", 0), element_count(shapes[0]), tirx.ForKind.SERIAL, body)


def _place(call: relax.Call) -> int:
    """Which argument a call in place writes."""
    (place,) = (int(i) for i in call.attrs.inplace_indices)
    return place


def _together(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return tirx.SeqStmt(list(statements)) if len(statements) > 1 else statements[0]


def _alike(shape: Sequence[ir.Expr], other: Sequence[ir.Expr]) -> bool:
    return len(shape) == len(other) and all(map(Analyzer().can_prove_equal, shape, other))


def _inside(func: tirx.PrimFunc, given: Sequence[tirx.Buffer], sizes: Sequence[ir.Expr]) -> tirx.Stmt:
    """The body of `func` on the buffers `given`, and `sizes` for what it takes beside them."""
    known: dict[ir.Var, ir.Expr] = dict(zip(func.params[len(given) :], sizes))
    for param, buffer in zip(func.params, given):
        known |= {dim: size for dim, size in zip(param.ty.shape, buffer.ty.shape) if isinstance(dim, ir.Var)}
    for param, buffer in zip(func.params, given):
        if not _alike([substitute(dim, known, {}) for dim in param.ty.shape], buffer.ty.shape):
            raise Declined("kernels of other sizes")
    known |= dict(zip(func.params, given))

    def replaced(var: ir.Var) -> ir.Expr:
        return known.get(var, var)

    for buffer in allocated(func.body):  # TVM takes one buffer allocated at two places for a mistake
        known[buffer] = ir.Var(buffer.name, tvm_ffi.structural_map(buffer.ty, (ir.Var, replaced), order="post"))
    return tvm_ffi.structural_map(func.body, (ir.Var, replaced), order="post")


def _without_unused(before: tvm.IRModule, after: tvm.IRModule) -> tvm.IRModule:
    """`after` without what only the loops of `before` called."""
    called = _called(before)
    while True:
        still = _called(after)
        dead = [gvar for gvar, _ in after.functions_items() if gvar in called and gvar not in still]
        if not dead:
            return after
        for gvar in dead:
            del after[gvar]


def _called(mod: tvm.IRModule) -> set[ir.GlobalVar]:
    found: set[ir.GlobalVar] = set()
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            tvm_ffi.structural_walk(func.body, (ir.GlobalVar, found.add))
    return found
