"""A PrimFunc as a loop nest for people: loops with kind and extent, statements without indices, repetitions counted.

    parallel i in 22
      for i_1 in (batch + 7) // 8
        if t_1 == 8
          24 x vectorized 16: t = 0
        elif: 7 more of this shape

Neighbours that differ in indices and in the numbers at the end of names only are written once with their count,
branches that differ in such counts only too, and both results of a choice where they read alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import tvm
from tvm import ir, s_tir, tirx

from ..records.canonical import walk
from ..tir_schedules.blocks import is_choice, loads

_KINDS = {
    tirx.ForKind.SERIAL: "for",
    tirx.ForKind.PARALLEL: "parallel",
    tirx.ForKind.VECTORIZED: "vectorized",
    tirx.ForKind.UNROLLED: "unrolled",
    tirx.ForKind.THREAD_BINDING: "thread",
}
_ITERATORS = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
# Sign and how strongly it binds.
_SIGNS = {
    "Mul": ("*", 5),
    "Div": ("/", 5),
    "FloorDiv": ("//", 5),
    "FloorMod": ("%", 5),
    "Mod": ("%", 5),
    "Add": ("+", 4),
    "Sub": ("-", 4),
    "LT": ("<", 3),
    "LE": ("<=", 3),
    "GT": (">", 3),
    "GE": (">=", 3),
    "EQ": ("==", 3),
    "NE": ("!=", 3),
    "And": ("and", 2),
    "Or": ("or", 1),
}
_BRANCH, _ALIKE, _GROUP = "branch", "alike", "group"
_LONG = 72  # columns of an expression
_INDENT = "  "


@dataclass
class Line:
    """One line of a nest and what is under it; `shape` is what makes two lines the same."""

    text: str
    shape: str
    below: list[Line] = field(default_factory=list)
    times: int = 1

    @property
    def outline(self) -> str:
        """Shape of everything here, without how often anything is repeated."""
        return f"{self.shape}({' '.join(b.outline for b in self.below)})"

    @property
    def full(self) -> str:
        return f"{self.times} {self.full_once}"

    @property
    def full_once(self) -> str:
        return f"{self.shape}({' '.join(b.full for b in self.below)})"


def nest_text(func: tirx.PrimFunc) -> str:
    """The body of `func` as an indented loop nest."""
    return "\n".join(_render(_merged(_Reader().lines(func.body)), 0))


def loops_of(func: tirx.PrimFunc) -> dict[str, int]:
    """How many loops of each kind `func` has, as written: what is vectorised, parallel, unrolled."""
    found: dict[str, int] = {}
    for node in walk(func.body):
        if isinstance(node, tirx.For):
            kind = _KINDS.get(node.kind, "for")
            found[kind] = found.get(kind, 0) + 1
    return found


def _render(lines: list[Line], depth: int) -> Iterator[str]:
    for line in lines:
        head, below = line.text, line.below
        # A loop around one thing is written in its line: "vectorized 16: c = c + a * b".
        while _is_inline(head, below):
            head, below = f"{head}: {below[0].text}", below[0].below
        if line.shape == _GROUP:
            head = f"{line.times} times"
        elif line.times > 1:
            head = f"{line.times} x {head}"
        yield f"{_INDENT * depth}{head}"
        yield from _render(below, depth + 1)


def _is_inline(head: str, below: list[Line]) -> bool:
    """Whether one thing is in a loop without a name, or in a block, and has itself no named loop or branch inside."""
    if len(below) != 1 or below[0].times > 1 or below[0].shape == _GROUP:
        return False
    plain = ("vectorized", "unrolled", "block")
    return head.startswith(plain) and (not below[0].below or below[0].text.startswith(plain))


class _Reader:
    """Statements as lines; one instance per function, so that what has no name gets one."""

    def __init__(self) -> None:
        self._names: dict[ir.Var, str] = {}
        self._unnamed: Counter[str] = Counter()

    def lines(self, node: object) -> Iterator[Line]:
        if isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                yield from self.lines(part)
        elif isinstance(node, tirx.For):
            kind = _KINDS.get(node.kind, "for")
            extent = self._text(node.extent)
            # The variable of a vectorised or unrolled loop says nothing.
            counted = kind in ("vectorized", "unrolled")
            text = f"{kind} {extent}" if counted else f"{kind} {self._name(node.loop_var)} in {extent}"
            yield _line(text, _merged(self.lines(node.body)))
        elif isinstance(node, s_tir.SBlockRealize):
            yield from self._block(node)
        elif isinstance(node, tirx.IfThenElse):
            yield from self._branches(node)
        elif isinstance(node, tirx.While):
            yield _line(f"while {self._text(node.condition)}", _merged(self.lines(node.body)))
        elif isinstance(node, tirx.BufferStore):
            yield _line(f"{self._name(node.buffer)} = {self._text(node.value)}")
        elif isinstance(node, tirx.Evaluate):
            if not isinstance(node.value, tirx.IntImm):
                yield _line(self._text(node.value))
        elif hasattr(node, "body"):  # attributes
            yield from self.lines(node.body)
        # Allocations, declarations and bindings are no work.

    def _block(self, realize: s_tir.SBlockRealize) -> Iterator[Line]:
        block = realize.block
        if not block.iter_vars:
            yield from self.lines(block.body)
            return
        kinds = "".join(_ITERATORS.get(v.iter_type, "O") for v in block.iter_vars)
        first = [_line(f"first: {line.text}", line.below) for line in self.lines(block.init)] if block.init else []
        always = isinstance(realize.predicate, tirx.IntImm)
        where = "" if always else f" where {self._text(realize.predicate)}"
        yield _line(f"block {block.name_hint} [{kinds}]{where}", [*first, *_merged(self.lines(block.body))])

    def _branches(self, node: tirx.IfThenElse) -> Iterator[Line]:
        """if / elif / else, where branches of one outline are written once."""
        cases: list[tuple[str, list[Line]]] = []
        rest: object = node
        while isinstance(rest, tirx.IfThenElse):
            cases.append((self._text(rest.condition), _merged(self.lines(rest.then_case))))
            rest = rest.else_case
        if rest is not None:
            cases.append(("", _merged(self.lines(rest))))
        written: list[Line] = []
        for i, (condition, below) in enumerate(cases):
            word = f"if {condition}" if i == 0 else f"elif {condition}" if condition else "else"
            line = Line(word, _BRANCH, below)
            if written and written[-1].shape == _ALIKE and written[-2].outline == line.outline:
                written[-1].times += 1
            elif written and written[-1].outline == line.outline:
                written.append(Line("", _ALIKE))
            else:
                written.append(line)
        for line in written:
            if line.shape == _ALIKE:
                line.text, line.times = f"elif: {line.times} more of this shape", 1
            yield line

    def _name(self, var: ir.Var) -> str:
        if var not in self._names:
            name = str(var.name)
            if not name or re.fullmatch(r"(v|buffer)(_\d+)?", name):
                kind = "t" if isinstance(var.ty, tirx.BufferType) else "i"
                name = f"{kind}_{self._unnamed[kind]}"
                self._unnamed[kind] += 1
            self._names[var] = name
        return self._names[var]

    def _text(self, expr: object) -> str:
        """An expression without indices and casts, shortened when it is long."""
        text = self._expression(expr)
        return text if len(text) <= _LONG else text[: _LONG - 4].rstrip() + " ..."

    def _expression(self, expr: object) -> str:
        return self._read(expr)[0]

    def _read(self, expr: object) -> tuple[str, object]:
        """The text of `expr`, and what it is the text of: what is cast, or one result of a choice if both read alike.

        These have to load nothing, for no index is written.
        """
        if isinstance(expr, (tirx.Cast, tirx.Broadcast)):
            return self._read(expr.value)
        if isinstance(expr, tirx.Let):
            return self._read(expr.body)
        parts = _choice(expr)
        if parts is None:
            return self._plain(expr), expr
        (condition, _), (first, chosen), (second, _) = map(self._read, parts)
        if first == second and not any(map(loads, parts[1:])):
            return first, chosen
        return f"select({condition}, {first}, {second})", expr

    def _plain(self, expr: object) -> str:
        name = type(expr).__name__
        if isinstance(expr, tirx.FloatImm):
            return f"{float(expr.value):g}"
        if isinstance(expr, tirx.IntImm):
            return str(int(expr.value))
        if isinstance(expr, ir.StringImm):
            return repr(str(expr.value))
        if isinstance(expr, ir.Var):
            return self._name(expr)
        if name == "TensorLoad":
            return self._name(expr.source)
        if name in ("Min", "Max"):
            return f"{name.lower()}({self._expression(expr.a)}, {self._expression(expr.b)})"
        if name in _SIGNS:
            return f" {_SIGNS[name][0]} ".join(self._operand(name, i, side) for i, side in enumerate((expr.a, expr.b)))
        if isinstance(expr, ir.Call):
            return self._call(expr)
        return name.lower()

    def _operand(self, outer: str, position: int, inner: object) -> str:
        """One side of an operator, in brackets where it binds less than the operator."""
        text, inner = self._read(inner)
        name = type(inner).__name__
        if name not in _SIGNS:
            return text
        weaker = _SIGNS[name][1] < _SIGNS[outer][1] or (position == 1 and _SIGNS[name][1] == _SIGNS[outer][1])
        # a + (b + c) and a * (b * c) need no brackets, and products of floors are clearer with them.
        same = name == outer and outer in ("Add", "Mul")
        return f"({text})" if weaker and not same else text

    def _call(self, call: ir.Call) -> str:
        name = call.op.name if isinstance(call.op, ir.Op) else str(getattr(call.op, "name_hint", call.op))
        name = name.rpartition(".")[2]
        if name in ("call_llvm_intrin", "call_llvm_pure_intrin"):
            found = str(tvm.target.codegen.llvm_get_intrinsic_name(int(call.args[0].value)))
            return f"{found.removeprefix('llvm.')}()"
        if name == "address_of":
            return self._expression(call.args[0])
        return f"{name}({', '.join(map(self._expression, call.args))})"


def _line(text: str, below: list[Line] | None = None) -> Line:
    return Line(text, _anonymous(text), below or [])


def _merged(lines: Iterator[Line]) -> list[Line]:
    """Neighbours of one shape, and neighbouring groups of one shape, become one line with a count."""
    found: list[Line] = []
    for line in lines:
        if found and found[-1].full_once == line.full_once and line.shape != _BRANCH:
            found[-1].times += line.times
            _share_names(found[-1], line)
        else:
            found.append(line)
    return _grouped(found)


def _choice(expr: object) -> tuple[ir.Expr, ir.Expr, ir.Expr] | None:
    """Condition and both results of a choice, None of anything else."""
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    return tuple(expr.args) if is_choice(expr) else None


def _grouped(lines: list[Line]) -> list[Line]:
    """a b a b a b c -> 3 times (a b), c: rows of an unrolled tile become one group."""
    shapes = [line.full for line in lines]
    out: list[Line] = []
    at = 0
    while at < len(lines):
        best, times = 0, 1
        for width in range(2, (len(lines) - at) // 2 + 1):
            repeats = 1
            while shapes[at + repeats * width : at + (repeats + 1) * width] == shapes[at : at + width]:
                repeats += 1
            if repeats > 1 and repeats * width > best * times:
                best, times = width, repeats
        if not best:
            out.append(lines[at])
            at += 1
            continue
        part = lines[at : at + best]
        for i, line in enumerate(lines[at + best : at + best * times]):
            _share_names(part[i % best], line)
        out.append(Line("", _GROUP, part, times))
        at += best * times
    return out


def _share_names(line: Line, other: Line) -> None:
    """What stands for several lines has the names that these share."""
    line.text = "".join(
        one if one == two else _anonymous(one)
        for one, two in zip_longest(re.split(r"(\w+)", line.text), re.split(r"(\w+)", other.text), fillvalue="")
    )
    for below, others in zip(line.below, other.below):
        _share_names(below, others)


def _anonymous(text: str) -> str:
    """Names without the numbers at their ends, which tell equal things apart."""
    return re.sub(r"(?<=[A-Za-z])(_?\d+)+\b(?!\()", "", text)
