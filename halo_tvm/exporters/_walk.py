"""The bindings of a function in order, each as nodes; functions that it calls are written where they are called.

if c: y = f(x) else: y = x         If, with the branches as its graphs
y = loop(x)                        Loop: what an importer made a loop of steps of is one again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper
from tvm import ir, relax, tirx
from tvm.tirx.analysis import undefined_vars

from ..errors import UnsupportedModel
from ..imported import KernelOrigin
from ..importers.loops import ALLOCATES, CHECKED, WRITES
from ..loop_kernels import LOOP
from ._cached_attention import Cached, find_cached, grouped_query
from ._graph import Graph, dims_of, dtype_of, value_info
from ._kernels import written_again
from ._relax_ops import Converter, Value
from ._tensor_ir import written_kernel


def converted(
    g: Graph,
    mod: tvm.IRModule,
    env: dict[relax.Var, Value],
    kept: Mapping[str, KernelOrigin],
    converters: Mapping[str, Converter],
) -> Value:
    """The result of `main`, whose parameters have the names in `env`.

    Raises `UnsupportedModel` with all operators that have no converter.
    """
    walk = _Walk(g, mod, env, kept, converters)
    main = mod["main"]
    result: Value = walk.body(main.body, find_cached(main, g))
    if walk.refused:
        lines = [f"  {reason} ({len(places)} times)" for reason, places in sorted(walk.refused.items())]
        raise UnsupportedModel(
            "expected operators with an ONNX spelling, found\n" + "\n".join(lines) + "\n"
            "leave out what needs them, or export with another --opset"
        )
    return result


@dataclass
class _Walk:
    g: Graph
    mod: tvm.IRModule
    env: dict[relax.Var, Value]
    kept: Mapping[str, KernelOrigin]
    converters: Mapping[str, Converter]
    refused: dict[str, list[str]] = field(default_factory=dict)

    def body(self, body: relax.Expr, cached: Cached | None = None) -> Any:
        """The result of a function's body, or of a branch."""
        if not isinstance(body, relax.SeqExpr):
            return self._value(body)
        self._bind(_needed(body), cached)
        return self._value(body.body)

    def _bind(self, bindings: Sequence[relax.Binding], cached: Cached | None = None) -> None:
        for binding in bindings:
            self.g.bound[binding.var] = binding.value
            if cached is not None and binding.var in cached.named:
                self.env[binding.var] = cached.named[binding.var]
            elif cached is not None and binding.value in cached.calls:
                call = binding.value
                self.env[binding.var] = grouped_query(self.g, call, cached.calls[call], self._value)
            else:
                self.env[binding.var] = self._value(binding.value)
            if isinstance(binding, relax.MatchCast):
                self.g.name_sizes(self.env[binding.var], binding.ty)

    def _value(self, expr: relax.Expr) -> Any:  # a `Value`; parts of a tuple may be None, too
        if isinstance(expr, relax.Var):
            return self.env.get(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(each) for each in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]
        if isinstance(expr, ir.GenericConst):
            return self.g.constant(expr.value.numpy())
        if isinstance(expr, relax.If):
            return self._branches(expr)
        if isinstance(expr, relax.Call):
            return self._call(expr)
        return None  # a shape or a number: converters read it from the call

    def _call(self, call: relax.Call) -> Value:
        name = call.op.name if isinstance(call.op, ir.Op) else f"call of {call.op}"
        converter = self.converters.get(name)
        try:
            if isinstance(call.op, ir.GlobalVar):
                return self._function(call, self.mod[call.op])
            args = [self._value(arg) for arg in call.args]
            if name == "relax.call_pure_packed":
                return written_again(self.g, call, args[1:], self.kept)
            if name in ("relax.call_tir", "relax.call_tir_inplace"):
                return self._kernel(call, args[1])
            if converter is None:
                raise UnsupportedModel("no converter")
            return converter(self.g, call, args)
        except UnsupportedModel as reason:
            self.refused.setdefault(f"{name.removeprefix('relax.')}: {reason}", []).append(str(len(self.g.nodes)))
            # Placeholders let the walk go on, so that the error lists every operator at once.
            fields = call.ty.fields if isinstance(call.ty, ir.TupleType) else None
            return "refused" if fields is None else ("refused",) * len(fields)

    def _kernel(self, call: relax.Call, names: Value) -> Value:
        gvar = call.args[0]
        func = self.mod[gvar]
        attrs = func.attrs or {}
        given = names if isinstance(names, tuple) else ()
        if CHECKED in attrs:  # engines check sizes themselves
            return given[0] if given else None
        if ALLOCATES in attrs:
            zero = self.g.constant(np.zeros((), dtype_of(call)))
            return self.g.emit("Expand", zero, self.g.shape(dims_of(call)))
        if WRITES in attrs:
            at, row, rows = given
            place, first = self.g.emit("Reshape", at, self.g.vector([1, 1])), self.g.vector([0])
            return self.g.emit("ScatterND", rows, place, self.g.emit("Unsqueeze", row, first))
        try:
            return written_kernel(self.g, func, call, given)
        except UnsupportedModel as reason:
            raise UnsupportedModel(f"the kernel {gvar.name_hint}, {reason}") from reason

    def _function(self, call: relax.Call, func: relax.Function) -> Value:
        """What `func` computes of the arguments of `call`, in its place."""
        self._enter(call, func)
        if func.attrs and LOOP in func.attrs:
            return self._loop(func)
        result: Value = self.body(func.body)
        return result

    def _enter(self, call: relax.Call, func: relax.Function) -> None:
        """Give the parameters of `func`, and the sizes that they name, the values of the arguments of `call`."""
        g = self.g
        values = [self._value(arg) for arg in call.args]
        sizes = {  # all of them before one is named anew: a function may be entered inside itself
            var: g.dim(dim)
            for param, arg in zip(func.params, call.args, strict=True)
            if isinstance(param.ty, relax.ShapeType)
            for var, dim in zip(param.ty.values or (), arg.values, strict=True)
        }
        for param, arg, value in zip(func.params, call.args, values, strict=True):
            self.env[param] = value
            g.weights.pop(param, None)
            if isinstance(arg, relax.Var) and arg in g.weights:
                g.weights[param] = g.weights[arg]
            g.rename_sizes(value, param.ty)
        g.counted |= sizes

    def _branches(self, expr: relax.If) -> Value:
        condition = self._value(expr.cond)
        types = _tensor_types(expr.ty)

        def graph(name: str, branch: relax.SeqExpr) -> onnx.GraphProto:
            return self.g.subgraph(name, (), lambda: self._results(self.body(branch), types))

        then, otherwise = graph("then", expr.true_branch), graph("else", expr.false_branch)
        made = self.g.emit_many("If", condition, outputs=len(types), then_branch=then, else_branch=otherwise)
        return made if isinstance(expr.ty, ir.TupleType) else made[0]

    def _loop(self, func: relax.Function) -> Value:
        """A whole loop: its condition on the first state, then steps as long as each says that it goes on."""
        bindings = [binding for block in func.body.blocks for binding in block.bindings]
        place = next(i for i, binding in enumerate(bindings) if isinstance(binding.value, relax.If))
        first = bindings[place].value
        self._bind(bindings[:place])
        step = next(call for call in _calls(first.true_branch) if call.op.name_hint == func.attrs[LOOP])
        types = _tensor_types(first.ty)
        carried = [arg for arg in step.args if not isinstance(arg, relax.ShapeExpr)][: len(types) - 1]
        names = ["go_on", *(f"state{i}" for i in range(len(carried)))]
        named = [self.g.name(name) for name in names]
        inputs = [helper.make_tensor_value_info(self.g.name("step"), TensorProto.INT64, [])]
        inputs += [value_info(name, ty) for name, ty in zip(named, types, strict=True)]
        before = [self._value(first.cond), *(self._value(arg) for arg in carried)]

        def build() -> list[tuple[str, relax.Type]]:
            for arg, name in zip(carried, named[1:], strict=True):
                self.env[arg] = name
                self.g.weights.pop(arg, None)
                self.g.rename_sizes(name, arg.ty)
            return self._results(self._value(step), types)

        body = self.g.subgraph("body", inputs, build)
        return self.g.emit_many("Loop", "", *before, outputs=len(carried), body=body)

    def _results(self, value: Value, types: Sequence[relax.TensorType]) -> list[tuple[str, relax.Type]]:
        values = value if isinstance(value, tuple) else (value,)
        return [(str(v), ty) for v, ty in zip(values, types, strict=True)]


def _tensor_types(ty: relax.Type) -> list[relax.TensorType]:
    fields = list(ty.fields) if isinstance(ty, ir.TupleType) else [ty]
    if not all(isinstance(field, relax.TensorType) and field.ndim >= 0 for field in fields):
        raise UnsupportedModel("a branch or a loop whose results are no tensors of known ranks")
    return fields


def _calls(body: relax.SeqExpr) -> Iterator[relax.Call]:
    """The calls of functions in `body`."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, ir.GlobalVar):
                yield binding.value


def _needed(body: relax.SeqExpr) -> list[relax.Binding]:
    """The bindings that the result needs, for its value or for its sizes.

    What a node was made of before it was kept whole may still be there: a check of sizes is not dead to Relax.
    """
    read = set(relax.analysis.free_vars(body.body))
    sizes: set[tirx.Var] = set()
    kept = []
    for binding in reversed([b for block in body.blocks for b in block.bindings]):
        named = set(_symbols(binding.ty)) if isinstance(binding, relax.MatchCast) else set()
        if binding.var in read or named & sizes:
            kept.append(binding)
            read |= set(relax.analysis.free_vars(binding.value))
            sizes |= set(_symbols(binding.var.ty)) | set(_read_sizes(binding.value))
    return kept[::-1]


def _read_sizes(value: relax.Expr) -> Iterator[tirx.Var]:
    """The symbolic sizes of what `value` is computed from."""
    if isinstance(value, relax.Call):
        for arg in value.args:
            yield from _symbols(arg) if isinstance(arg, ir.Expr) else ()
    elif isinstance(value, relax.If):
        for branch in (value.true_branch, value.false_branch):
            for block in branch.blocks:
                for binding in block.bindings:
                    yield from _symbols(binding.var.ty)
                    yield from _read_sizes(binding.value)


def _symbols(x: relax.Type | relax.Expr) -> Iterator[tirx.Var]:
    """The symbolic sizes in a type, or in what an operator takes as a size."""
    if isinstance(x, ir.TupleType | relax.Tuple):
        for field in x.fields:
            yield from _symbols(field)
    elif isinstance(x, relax.TensorType):
        yield from _symbols(x.shape) if isinstance(x.shape, relax.ShapeExpr) else ()
    elif isinstance(x, relax.ShapeExpr | relax.ShapeType):
        yield from (var for dim in x.values or () for var in undefined_vars(dim))
    elif ir.is_prim_expr(x):
        yield from undefined_vars(x)
