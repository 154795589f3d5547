"""Functions of TensorIR that are written as TVMScript text: equal texts are parsed once per process.

TVM's parser compiles every part of every expression by itself: 0.8 s for an attention of 600 lines. The texts of this
package are a few kinds of statements, which are carried out here, a statement at a time; whatever is not among them is
left to TVM's parser. Both give the same function.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType

import tvm
from tvm import ir, tirx
from tvm.script import tirx as script_tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.script.ir_builder.base import IRBuilderFrame

_COMPARED: Mapping[type[ast.cmpop], Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    ast.Eq: tirx.EQ,
    ast.NotEq: tirx.NE,
    ast.Lt: tirx.LT,
    ast.LtE: tirx.LE,
    ast.Gt: tirx.GT,
    ast.GtE: tirx.GE,
}
_JOINED: Mapping[type[ast.boolop], Callable[[ir.Expr, ir.Expr], ir.Expr]] = {ast.And: tirx.And, ast.Or: tirx.Or}
# What makes a value that an assignment gives a name; another value would become a buffer of one element.
_NAMED = ("alloc_buffer", "match_buffer", "int64", "int32", "remap")


@functools.lru_cache(maxsize=256)
def prim_func(text: str, imports: str = "") -> tirx.PrimFunc:
    """The function that `text` defines in the words of `T`; `imports` is LLVM text that it may name."""
    names = {"T": script_tirx, "imports": imports}
    try:
        return _Reader(names).function(text)
    except _Unknown:
        return tvm.script.from_source(text, extra_vars=names)


class _Unknown(Exception):
    """A statement that is left to TVM's parser."""


class _Reader:
    """One function: `names` are what its expressions may name, and what its statements define."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names: dict[str, object] = {**names, **{kind.__name__: _comparison(kind) for kind in _COMPARED}}
        self._names |= {kind.__name__: _joined(how) for kind, how in _JOINED.items()}

    def function(self, text: str) -> tirx.PrimFunc:
        match ast.parse(text).body:
            case [ast.FunctionDef(decorator_list=[ast.Call(args=[], keywords=how)]) as function]:
                options = {str(word.arg): ast.literal_eval(word.value) for word in how}
            case _:
                raise _Unknown
        if options.keys() - {"private", "s_tir"}:
            raise _Unknown
        with IRBuilder() as builder:
            with T.prim_func(is_private=options.get("private", False), s_tir=options.get("s_tir", False)):
                T.func_name(function.name)
                for arg in function.args.args:
                    kind = None if arg.annotation is None else self._value(arg.annotation)
                    if kind is not script_tirx.handle:
                        raise _Unknown
                    self._names[arg.arg] = T.arg(arg.arg, kind())
                self._body(function.body)
        return builder.get()

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """What is defined inside ends with it."""
        outside = dict(self._names)
        yield
        self._names = outside

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Subscript(slice=at) as target], value=value):
                indices = at.elts if isinstance(at, ast.Tuple) else [at]
                stored = self._value(value)
                T.buffer_store(self._value(target.value), stored, [self._value(index) for index in indices])
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Attribute(attr=made)) as value):
                if made not in _NAMED:
                    raise _Unknown
                self._bind(target, self._value(value))
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                bound = self._value(value)
                kind = self._value(annotation)
                if not isinstance(kind, type(script_tirx.let)) or not isinstance(bound, ir.Expr):
                    raise _Unknown
                var = kind.as_var() if kind.type_spec is not None else kind.as_var(rhs_dtype=bound.ty)
                IRBuilder.name(name, var)
                self._names[name] = var
                T.Bind(bound, var=var)
            case ast.For(target=target, iter=loop, body=body, orelse=[]):
                with self._scope(), self._frame(loop) as iters:
                    self._bind(target, iters)
                    self._body(body)
            case ast.With(items=[ast.withitem(context_expr=frame, optional_vars=None)], body=body):
                with self._scope(), self._frame(frame):
                    self._body(body)
            case ast.If(test=test, body=body, orelse=other):
                condition = self._value(test)
                if not isinstance(condition, ir.Expr):
                    raise _Unknown
                with T.If(condition):
                    with T.Then(), self._scope():
                        self._body(body)
                    if other:
                        with T.Else(), self._scope():
                            self._body(other)
            case ast.Expr(value=value):
                found = self._value(value)
                if isinstance(found, ir.Call):
                    T.evaluate(found)
                elif found is not None:
                    raise _Unknown
            case ast.Pass():
                pass
            case _:
                raise _Unknown

    def _bind(self, target: ast.expr, value: object) -> None:
        """Give `value`, or each of several values, the name it is assigned to."""
        match target:
            case ast.Name(id=name) if isinstance(value, ir.Var):
                IRBuilder.name(name, value)
                self._names[name] = value
            case ast.Tuple(elts=targets) if not isinstance(value, ir.Var) and len(targets) == len(value):  # type: ignore[arg-type]
                for part, one in zip(targets, value):  # type: ignore[call-overload]
                    self._bind(part, one)
            case _:
                raise _Unknown

    def _frame(self, expression: ast.expr) -> IRBuilderFrame:
        frame = self._value(expression)
        if not isinstance(frame, IRBuilderFrame):
            raise _Unknown
        return frame

    def _value(self, expression: ast.expr) -> object:
        return eval(_code(expression), self._names)


class _Operators(ast.NodeTransformer):
    """Comparisons, `and` and `or` as calls, as Python's own would ask an expression whether it is true."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) != 1 or type(node.ops[0]) not in _COMPARED:
            raise _Unknown
        return _called(type(node.ops[0]).__name__, [self.visit(node.left), self.visit(node.comparators[0])])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        name = type(node.op).__name__
        joined: ast.expr = functools.reduce(lambda a, b: _called(name, [a, b]), map(self.visit, node.values))
        return joined

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if not isinstance(node.op, ast.USub):
            raise _Unknown
        return ast.UnaryOp(node.op, self.visit(node.operand))

    def _left(self, node: ast.expr) -> ast.expr:
        raise _Unknown

    visit_IfExp = visit_Slice = visit_Lambda = visit_ListComp = _left


def _called(name: str, args: list[ast.expr]) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), args, [])


def _code(expression: ast.expr) -> CodeType:
    whole = ast.Expression(_Operators().visit(expression))
    return compile(ast.fix_missing_locations(whole), "<text of a function>", "eval")


def _comparison(kind: type[ast.cmpop]) -> Callable[[object, object], object]:
    def compare(a: object, b: object) -> object:
        if isinstance(a, ir.Expr) and isinstance(b, int) and not isinstance(b, bool):
            b = tirx.const(b, a.ty.dtype)
        if not (isinstance(a, ir.Expr) and isinstance(b, ir.Expr)):
            raise _Unknown
        return _COMPARED[kind](a, b)

    return compare


def _joined(how: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> Callable[[object, object], object]:
    def join(a: object, b: object) -> object:
        if not (isinstance(a, ir.Expr) and isinstance(b, ir.Expr)):
            raise _Unknown
        return how(a, b)

    return join
