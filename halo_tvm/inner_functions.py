"""Functions that importers make of branches and of bodies of loops: each goes through the phases alone, then they meet.

Passes look at `main`. So a branch with work in it becomes a function, every function becomes `main` of a module of its
own, and a call of another function is there a call of a stand-in, whose body no pass knows.

    main(x, W):  if c: y = f(x, W) else: y = x
        ->   {main: main(x) = ... f(x), f: main(x, W) with "halo.params" = ["W"]}   ->   each by the passes
        ->   main(x, W_packed):  if c: y = f(x, W_packed) else: y = x
A parameter that is the same weight of the model at every call is a weight there, too: passes may pack it, by recipes
that are the same for all functions of a model. Calls pass on what the functions below them need.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

import tvm
from tvm import ir, relax, tirx

from ._compat import set_type
from .params import ParamTable
from .passes.check_caches import refuse_inside
from .passes.fuse import with_equal_functions_once
from .passes.weights import num_inputs, param_names, weight_variable
from .relay_ops.operator import op_name

MAIN = "main"
_ABSENT = "halo.stands_elsewhere"  # what a stand-in calls; it is never run


@dataclass(frozen=True)
class Part:
    """A function as `main` of a module of its own, and whether it computes anything that a pass could better."""

    mod: tvm.IRModule
    works: bool


def apart(mod: tvm.IRModule) -> dict[str, Part]:
    """The functions of `mod` by name, main first; one part where there is no other."""
    if not _inner(mod):
        return {MAIN: Part(mod, True)}
    for func in _inner(mod).values():
        refuse_inside(mod, func)
    mod = _outlined(mod)
    functions = {MAIN: mod[MAIN], **{gvar.name_hint: func for gvar, func in _inner(mod).items()}}
    order = _callers_first(functions)
    weights = _weights_of(functions, order)
    kept = {name: [p not in weights[name] for p in func.params] for name, func in functions.items()}
    return {
        name: Part(_alone(mod, name, functions, weights, kept), name == MAIN or _works(functions[name]))
        for name in order
    }


def together(parts: Mapping[str, tvm.IRModule], params: ParamTable) -> tvm.IRModule:
    """One module of the functions that passes were through; main has the weights of all."""
    if list(parts) == [MAIN]:
        return parts[MAIN]
    calls = {name: set(_calls(mod[MAIN], parts)) for name, mod in parts.items()}
    whole: dict[ir.GlobalVar, ir.BaseFunc] = {}
    needs: dict[str, dict[str, None]] = {}
    entries: dict[str, ir.GlobalVar] = {}
    taken = set(parts)
    for name in reversed(list(parts)):  # those called stand behind their callers
        mod = parts[name]
        func = mod[MAIN]
        needs[name] = dict.fromkeys([*param_names(func), *(n for c in sorted(calls[name]) for n in needs[c])])
        renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
        for gvar, kernel in mod.functions_items():
            if isinstance(kernel, tirx.PrimFunc):
                renamed[gvar] = new = ir.GlobalVar(_free(gvar.name_hint, taken))
                set_type(new, gvar.ty)
                whole[new] = kernel
        func = _joined(func, needs, entries, renamed, params, list(needs[name]))
        entries[name] = gvar = ir.GlobalVar(name)
        if name != MAIN:
            func = func.without_attr("halo.params").without_attr("num_input").without_attr("global_symbol")
        set_type(gvar, func.ty)
        whole[gvar] = func
    first = parts[MAIN]
    mod = tvm.IRModule(whole, attrs=first.attrs, global_infos=first.global_infos)
    return with_equal_functions_once(relax.transform.Normalize()(mod))


def _inner(mod: tvm.IRModule) -> dict[ir.GlobalVar, relax.Function]:
    """The functions of Relax beside main."""
    return {g: f for g, f in mod.functions_items() if isinstance(f, relax.Function) and g.name_hint != MAIN}


def _values(body: relax.SeqExpr) -> Iterator[relax.Expr]:
    """What is bound in `body`, branches included."""
    for block in body.blocks:
        for binding in block.bindings:
            yield binding.value
            if isinstance(binding.value, relax.If):
                yield from _values(binding.value.true_branch)
                yield from _values(binding.value.false_branch)


def _calls(func: relax.Function, functions: Mapping[str, object]) -> list[str]:
    """The names of `functions` that `func` calls."""
    called = (v.op for v in _values(func.body) if isinstance(v, relax.Call))
    return [op.name_hint for op in called if isinstance(op, ir.GlobalVar) and op.name_hint in functions]


def _computes(value: relax.Expr) -> bool:
    """Whether `value` is an operator's call on a tensor of any rank but 0: conditions and counts are numbers."""
    if op_name(value) in ("", "relax.reshape") or op_name(value).startswith("relax.call_"):
        return False
    return isinstance(value.ty, relax.TensorType) and value.ty.ndim != 0


def _works(func: relax.Function) -> bool:
    return any(map(_computes, _values(func.body)))


def _outlined(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose branches with work in them are calls of functions."""
    builder = relax.BlockBuilder(mod)
    todo = [*_inner(mod), mod.get_global_var(MAIN)]
    while todo:
        gvar = todo.pop()
        before = builder.get()[gvar]
        found: list[ir.GlobalVar] = []
        after = _Outliner(builder, gvar.name_hint, found).visit_expr(before)
        if found:
            builder.update_func(gvar, after)
            todo += found  # a branch may hold another
    return builder.get()


@relax.expr_functor.mutator
class _Outliner(relax.PyExprMutator):
    """Makes a function of each branch that works; those inside it are left to the next turn."""

    def __init__(self, builder: relax.BlockBuilder, name: str, found: list[ir.GlobalVar]) -> None:
        super().__init__()
        self._functions, self._name, self._found = builder, name, found

    def visit_if_(self, node: relax.If) -> relax.Expr:
        branches = [self._outline(branch) for branch in (node.true_branch, node.false_branch)]
        return relax.If(node.cond, *branches)

    def _outline(self, branch: relax.SeqExpr) -> relax.SeqExpr:
        if not any(map(_computes, _values(branch))):
            return branch
        captured = [v for v in relax.analysis.free_vars(branch) if not isinstance(v.ty, ir.PrimType)]
        func = relax.Function(captured, branch, branch.body.ty)
        dims = list(relax.analysis.free_symbolic_vars(func))
        sizes = [relax.Var("dims", relax.ShapeType(dims))] if dims else []
        func = relax.utils.copy_with_new_vars(relax.Function([*sizes, *captured], branch, branch.body.ty))
        unique = self._functions.get_unique_name(f"{self._name}_branch")
        # The builder keeps one of equals, whose weights would then be another's at each call.
        gvar = self._functions.add_func(func.with_attr("halo.single", unique), unique)
        self._found.append(gvar)
        call = relax.Call(gvar, [*([relax.ShapeExpr(dims)] if dims else []), *captured])
        builder = relax.BlockBuilder(self._functions.get())
        builder._begin_binding_block()
        result = builder.emit(call)
        return relax.SeqExpr([builder._end_block()], result)


def _callers_first(functions: Mapping[str, relax.Function]) -> list[str]:
    """Names so that every function stands behind those that call it, main first."""
    done: list[str] = []

    def visit(name: str) -> None:
        if name not in done:
            for called in _calls(functions[name], functions):
                visit(called)
            done.append(name)

    visit(MAIN)
    return done[::-1]


def _weights_of(functions: Mapping[str, relax.Function], order: list[str]) -> dict[str, dict[relax.Var, str]]:
    """Of each function, its parameters that are a weight, the same one at all calls."""
    main = functions[MAIN]
    behind = list(main.params)[num_inputs(main) :]
    found = {MAIN: dict(zip(behind, param_names(main))) if behind else {}}
    given: dict[str, list[tuple[str | None, ...]]] = {}
    for name in order:
        if name != MAIN:
            same = [set(names) for names in zip(*given[name])]
            only = [next(iter(names)) if len(names) == 1 else None for names in same]
            params = functions[name].params
            found[name] = {p: n for i, (p, n) in enumerate(zip(params, only)) if n is not None and n not in only[:i]}
        own = found[name]
        for value in _values(functions[name].body):
            if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar) and value.op.name_hint in functions:
                names = tuple(own.get(arg) if isinstance(arg, relax.Var) else None for arg in value.args)
                given.setdefault(value.op.name_hint, []).append(names)
    return found


def _alone(
    mod: tvm.IRModule,
    name: str,
    functions: Mapping[str, relax.Function],
    weights: Mapping[str, Mapping[relax.Var, str]],
    kept: Mapping[str, list[bool]],
) -> tvm.IRModule:
    """The function `name` as main: inputs, then weights; what it calls stands in for itself."""
    func = functions[name]
    kernels = {g: f for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    stand_ins = {n: _stand_in(functions[n], kept[n]) for n in _calls(func, functions)}
    gvars = {n: ir.GlobalVar(n) for n in stand_ins}
    for n, gvar in gvars.items():
        set_type(gvar, stand_ins[n].ty)

    def call(old: relax.Call) -> relax.Expr:
        wanted = [arg for arg, keep in zip(old.args, kept[old.op.name_hint]) if keep]
        return relax.Call(gvars[old.op.name_hint], wanted)

    inputs = [p for p in func.params if p not in weights[name]]
    whole = relax.Function([*inputs, *weights[name]], func.body, func.ret_ty, func.is_pure)
    new = _Recalled(gvars, call).visit_expr(whole)  # the whole of it: sizes are known by its parameters
    read = set(relax.analysis.free_vars(new.body))  # not those that are there to be passed on
    behind = list(new.params)[len(inputs) :]
    tensors = {tensor: var for tensor, var in zip(weights[name].values(), behind) if var in read}
    new = relax.Function([*list(new.params)[: len(inputs)], *tensors.values()], new.body, new.ret_ty, new.is_pure)
    attrs = {"num_input": len(inputs), "halo.params": list(tensors), "global_symbol": MAIN}
    new = new.with_attrs({**({k: func.attrs[k] for k in func.attrs.keys()} if func.attrs else {}), **attrs})
    functions_of_it = {ir.GlobalVar(MAIN): new, **{gvars[n]: f for n, f in stand_ins.items()}, **kernels}
    alone = tvm.IRModule(functions_of_it, attrs=mod.attrs, global_infos=mod.global_infos)
    steps = [relax.transform.Normalize(), relax.transform.ConvertToDataflow(1), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(steps)(alone)


def _stand_in(func: relax.Function, kept: list[bool]) -> relax.Function:
    """A function of the type of `func` without its weights."""
    params = [param for param, keep in zip(func.params, kept) if keep]
    builder = relax.BlockBuilder()
    builder._begin_binding_block()
    result = builder.emit(relax.op.call_pure_packed(relax.ExternFunc(_ABSENT), *params, ty_args=func.ret_ty))
    body = relax.SeqExpr([builder._end_block()], result)
    return relax.utils.copy_with_new_vars(relax.Function(params, body, func.ret_ty))


@relax.expr_functor.mutator
class _Recalled(relax.PyExprMutator):
    """Writes calls of some functions anew, and global variables in place of others."""

    def __init__(
        self,
        functions: Container[str],
        call: Callable[[relax.Call], relax.Expr],
        others: Mapping[ir.GlobalVar, ir.GlobalVar] | None = None,
    ) -> None:
        super().__init__()
        self._called, self._call, self._others = functions, call, others or {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        new = super().visit_call_(call)
        if isinstance(call.op, ir.GlobalVar) and call.op.name_hint in self._called:
            return self._call(new)
        return new

    def visit_global_var_(self, gvar: ir.GlobalVar) -> relax.Expr:
        return self._others.get(gvar, gvar)


def _joined(
    func: relax.Function,
    needs: Mapping[str, Mapping[str, None]],
    entries: Mapping[str, ir.GlobalVar],
    renamed: Mapping[ir.GlobalVar, ir.GlobalVar],
    params: ParamTable,
    wanted: list[str],
) -> relax.Function:
    """`func`, whose stand-ins are the functions again, given the weights that they need."""
    own = dict(zip(param_names(func), list(func.params)[num_inputs(func) :]))
    tensors = {name: own[name] if name in own else weight_variable(name, params) for name in wanted}

    def call(old: relax.Call) -> relax.Expr:
        name = old.op.name_hint
        return relax.Call(entries[name], [*old.args, *(tensors[n] for n in needs[name])])

    inputs = list(func.params)[: num_inputs(func)]
    new = relax.Function([*inputs, *tensors.values()], func.body, func.ret_ty, func.is_pure)
    new = _Recalled(entries, call, renamed).visit_expr(new)
    return new.with_attrs({**{k: func.attrs[k] for k in func.attrs.keys()}, "halo.params": wanted})


def _free(name: str, taken: set[str]) -> str:
    """`name`, or with a number behind it that makes it new; taken from now on."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_i{number}"
    taken.add(found)
    return found
