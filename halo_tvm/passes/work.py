"""What a function does at least, as formulas over its dimensions: for profiles of an artifact, long after TVM is gone.

A formula is plain JSON: a whole number, the name of a dimension, or a list ["*", a, b] of an operation and two
formulas; the operations are + - * // % min max. `artifact.formula` evaluates them at the sizes of a run.

Counted
    operations     additions, multiplications, comparisons and calls (exp is one) on floating-point values; those on
                   integers where a block accumulates products of bytes, or of words made of them; how many of the
                   first may be done on operands of 16 bits, where the target is faster at that
    bytes          of every parameter each element once, of a table of which rows are gathered those rows only
An operator that stands alone and `counts_symbols` counts by its own `flops`: a causal attention does half of what
its unscheduled body spells out. How many keys of a cache are valid is data: a call over one counts the whole cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from ..dimensions import itemsize_of
from ..plain import plain
from ..relay_ops.operator import OPERATORS
from ..tir_schedules.blocks import blocks

Formula = int | str | list  # lists hold an operation and two formulas
Report = dict[str, object]

_OPERATIONS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "Min": "min", "Max": "max"}
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Select")  # a maximum that keeps NaN is a Select
_FREE_CALLS = ("if_then_else", "reinterpret", "likely", "shift_left", "shift_right", "bitwise_and")
_NARROW = ("int8", "uint8", "int16")
_LONGEST = 4000  # characters of a formula; beyond, the work of a function is unknown


class Unknown(ValueError):
    """An expression that no formula has, for instance a loop whose length is data."""


def work_of(func: tirx.PrimFunc, narrow: Collection[str] = ()) -> Report:
    """Operator, symbolic parameter shapes, operations and bytes of an unscheduled function.

    `shapes` has one list per parameter (a plain number parameter is its own name), `bytes` one formula per
    parameter; `flops`, `integer_ops` and `bytes` are None where they cannot be said. `narrow` are the types that the
    target multiplies faster than float32 (`Isa.narrow_dtypes`); `narrow_flops`, of `flops`, is there where it is not 0.
    """
    names = _Names()
    shapes = [names.shape(param) for param in func.params]
    report: Report = {"operator": operator_name(func), "shapes": shapes}
    counts = _Counts(names, narrow)
    try:
        counts.visit(func.body, 1)
        moved = [counts.bytes_of(param) for param in func.params]
        report |= {"flops": counts.flops.formula, "integer_ops": counts.integer_ops.formula, "bytes": moved}
        narrow_flops = counts.narrow_flops.formula
    except Unknown:
        report |= {"flops": None, "integer_ops": None, "bytes": None}
        narrow_flops = 0
    own = _operator_flops(func, names)
    if own is not None:
        report["flops"] = own
        narrow_flops = own if _attributes(func).get("products") in narrow else 0
    if narrow_flops != 0:
        report["narrow_flops"] = narrow_flops
    if len(str(report)) > _LONGEST:
        report |= {"flops": None, "integer_ops": None, "bytes": None}
    return report


def operator_name(func: tirx.PrimFunc) -> str:
    """The operators a function holds, joined by "+"; "" for one that holds none."""
    attrs = _attributes(func)
    if attrs:
        return str(attrs["op"])
    return "+".join(dict.fromkeys(block.op for block in blocks(func) if block.op))


def _attributes(func: tirx.PrimFunc) -> Mapping[str, object]:
    """The operator ("op") and attributes of the call that a function is; empty for any other function."""
    call = func.attrs.get("halo.call") if func.attrs else None
    return {} if call is None else plain(call)  # type: ignore[return-value]


class _Names:
    """One name per symbolic dimension, also where two dimensions are called the same."""

    def __init__(self) -> None:
        self._names: dict[ir.Var, str] = {}

    def of(self, var: ir.Var) -> str:
        if var not in self._names:
            taken, name = set(self._names.values()), str(var.name)
            while name in taken:
                name += "_"
            self._names[var] = name
        return self._names[var]

    def known(self, var: ir.Var) -> bool:
        return var in self._names

    def shape(self, param: ir.Var) -> list[int | str | None] | str:
        """Sizes and names; None for a dimension that is computed of others."""
        if not isinstance(param.ty, tirx.BufferType):
            return self.of(param)
        return [
            int(d) if isinstance(d, tirx.IntImm) else self.of(d) if isinstance(d, ir.Var) else None
            for d in param.ty.shape
        ]

    def formula(self, expr: ir.Expr | int) -> Formula:
        """`expr` as a formula; `Unknown` for what is neither a dimension nor made of dimensions."""
        if isinstance(expr, int):
            return expr
        if isinstance(expr, tirx.IntImm):
            return int(expr.value)
        if isinstance(expr, ir.Var) and self.known(expr):
            return self.of(expr)
        if isinstance(expr, tirx.Cast):
            return self.formula(expr.value)
        operation = _OPERATIONS.get(type(expr).__name__)
        if operation is None:
            raise Unknown(str(expr))
        return combined(operation, self.formula(expr.a), self.formula(expr.b))


def combined(operation: str, a: Formula, b: Formula) -> Formula:
    """`a operation b`, folded where that is easy."""
    if isinstance(a, int) and isinstance(b, int):
        if operation in "+-*":
            return a + b if operation == "+" else a - b if operation == "-" else a * b
        if operation in ("min", "max"):
            return min(a, b) if operation == "min" else max(a, b)
    if operation == "+" and 0 in (a, b):
        return b if a == 0 else a
    if operation == "*" and (a == 1 or b == 1):
        return b if a == 1 else a
    if operation == "*" and (a == 0 or b == 0):
        return 0
    return [operation, a, b]


class _Sum:
    """A sum with one term for each formula that was added, so that many statements make no deep formula."""

    def __init__(self) -> None:
        self._terms: dict[str, tuple[Formula, int]] = {}

    def add(self, formula: Formula, times: int = 1) -> None:
        if times:
            found, so_far = self._terms.get(str(formula), (formula, 0))
            self._terms[str(formula)] = (found, so_far + times)

    @property
    def formula(self) -> Formula:
        total: Formula = 0
        for formula, times in self._terms.values():
            total = combined("+", total, combined("*", formula, times))
        return total


class _Counts:
    """Operations and element accesses of the statements visited."""

    def __init__(self, names: _Names, narrow: Collection[str]) -> None:
        self._names = names
        self._narrow = narrow
        self.flops = _Sum()
        self.narrow_flops = _Sum()
        self.integer_ops = _Sum()
        self._touched: defaultdict[ir.Var, _Sum] = defaultdict(_Sum)
        self._bounds: dict[ir.Var, ir.Expr] = {}

    def visit(self, node: object, times: Formula) -> None:
        """Count `node`, which runs `times` times; initial values of reductions are left out."""
        if isinstance(node, tirx.While):
            raise Unknown("a loop whose length is data")
        if isinstance(node, tirx.For):
            self.visit(node.body, combined("*", times, self._names.formula(node.extent)))
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                self.visit(part, times)
        elif isinstance(node, s_tir.SBlockRealize):
            self.visit(node.block.body, times)
        elif isinstance(node, tirx.BufferStore):
            self._store(node, times)
        elif isinstance(node, tirx.IfThenElse):
            self.visit(node.then_case, times)
        elif hasattr(node, "body"):
            self.visit(node.body, times)

    def bytes_of(self, param: ir.Var) -> Formula:
        """Bytes of a parameter: each element once, and no more elements than are accessed."""
        if not isinstance(param.ty, tirx.BufferType):
            return 0
        elements: Formula = 1
        for dim in param.ty.shape:
            elements = combined("*", elements, self._names.formula(dim))
        touched = self._touched[param].formula
        if elements != touched:
            elements = combined("min", elements, touched)
        return combined("*", elements, itemsize_of(str(param.ty.dtype)))

    def _store(self, store: tirx.BufferStore, times: Formula) -> None:
        of_narrow = str(store.buffer.ty.dtype) == "int32" and _multiplies_narrow(store.value)
        flops = integers = 0
        for node in _values(store.value):
            kind = str(node.ty.dtype)
            if _is_arithmetic(node):
                flops += "float" in kind
                integers += of_narrow and kind == "int32"
        self.flops.add(times, flops)
        if _multiplies(store.value, self._narrow):
            self.narrow_flops.add(times, flops)
        self.integer_ops.add(times, integers)
        found: list[ir.TensorLoad] = []
        tvm_ffi.structural_walk(store, (ir.TensorLoad, lambda load: found.append(load)), order="post")
        for buffer in (store.buffer, *(load.source for load in found)):
            self._touched[buffer].add(times)


def _values(node: object) -> Iterator[object]:
    """`node` and the values it is made of; the places of loads are no arithmetic."""
    yield node
    if isinstance(node, ir.Call):
        children = list(node.args)
    else:
        fields = ("a", "b", "value", "condition", "true_value", "false_value", "body")
        children = [getattr(node, field) for field in fields if hasattr(node, field)]
    if type(node).__name__ == "TensorLoad":
        return
    for child in children:
        if isinstance(child, ir.Expr):
            yield from _values(child)


def _is_arithmetic(node: object) -> bool:
    if type(node).__name__ in _ARITHMETIC:
        return True
    if isinstance(node, ir.Call) and isinstance(node.op, ir.Op):
        return node.op.name.rpartition(".")[2] not in _FREE_CALLS
    return False


def _multiplies(value: ir.Expr, dtypes: Collection[str]) -> bool:
    """Whether products are formed with an operand of one of these types."""
    return any(
        type(node).__name__ == "Mul"
        and any(str(part.ty.dtype) in dtypes for side in (node.a, node.b) for part in _widened(side))
        for node in _values(value)
    )


def _widened(value: ir.Expr) -> tuple[ir.Expr, ...]:
    """A factor, and what it was cast of."""
    return (value, value.value) if isinstance(value, tirx.Cast) else (value,)


def _multiplies_narrow(value: ir.Expr) -> bool:
    """Whether products of 8-bit or 16-bit operands are formed."""
    return any(
        type(node).__name__ == "Mul"
        and all(isinstance(side, tirx.Cast) and str(side.value.ty.dtype) in _NARROW for side in (node.a, node.b))
        for node in _values(value)
    )


def _operator_flops(func: tirx.PrimFunc, names: _Names) -> Formula | None:
    """The operator's own count, where the function is one operator that counts symbolic sizes."""
    attrs = _attributes(func)
    if not attrs:
        return None
    operator = OPERATORS[str(attrs["op"])]
    if not operator.counts_symbols:
        return None
    inputs = [p for p in func.params if isinstance(p.ty, tirx.BufferType)][:-1]
    shapes = [tuple(int(d) if isinstance(d, tirx.IntImm) else d for d in p.ty.shape) for p in inputs]
    flops = operator.flops(shapes, **{k: v for k, v in attrs.items() if k != "op"})
    try:
        return names.formula(tvm.sym.Analyzer().simplify(flops) if isinstance(flops, ir.Expr) else int(flops))
    except Unknown:
        return None  # a size is computed of others: the body counts
