"""What torch took for granted of sizes while it traced a program -> conditions that a run checks.

torch writes them as Python text over the arguments, as `L['y'].size()[1] <= L['x'].size()[1]`. The text may come from
a file: it is parsed, never run, and what is no comparison of sizes says nothing. Many only tell torch that a tensor has
neither no element nor one, by which it lays out memory and broadcasts; kernels of ours do not: such sizes are served.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import sympy
import torch
from torch import fx
from torch.export.graph_signature import InputKind
from tvm import ir, tirx

from ...artifact import Condition
from ...errors import UnsupportedModel
from ._dimensions import Dimensions

_LONGEST, _LARGEST, _DEEPEST = 2000, 1 << 40, 12
_RELATIONS = {ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.Eq: "==", ast.NotEq: "!="}
_OPERATIONS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "Min": "min", "Max": "max"}


def _largest(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """In strides torch writes a size as max(1, size)."""
    return b if a == 1 else a if b == 1 else sympy.Max(a, b)


_FUNCTIONS = {"Min": sympy.Min, "Max": _largest, "min": sympy.Min, "max": _largest}
_VIEWS = re.compile(r"slice|view|reshape|expand|squeeze|narrow|select")


_Must = Literal["at least 0", "0", "not 0"]


class _Silent(Exception):
    """Text that is no comparison of sizes of inputs."""


def texts_of(program: torch.export.ExportedProgram) -> list[str]:
    return list(getattr(program, "_guards_code", ()))


def conditions_of(
    texts: Iterable[str], program: torch.export.ExportedProgram, inputs: Mapping[str, fx.Node], dims: Dimensions
) -> tuple[Condition, ...]:
    """Of `texts` what sizes of the `inputs` of `program` can break and what changes what it computes."""
    shapes = _by_path(program, inputs)
    sizes, counts = _sizes(program)
    differences = {sympy.expand(a - b) for pair in _views(program) for a in pair[0] for b in pair[1]}
    found: dict[tuple[str, object], Condition] = {}
    for text in texts:
        try:
            difference, relation = _parsed(text, shapes)
            if not difference.free_symbols or _only_layout(difference, relation, sizes | counts, differences):
                continue
            difference, must = _as_condition(difference, relation, sizes, counts)
            expr = dims.of_sympy(difference)
            if must == "at least 0" and dims.sizes.decided(expr >= 0):
                continue
            found.setdefault((must, difference), Condition(_formula(expr), must, _text(difference, must, dims)))
        except (_Silent, UnsupportedModel):
            continue
    return tuple(found.values())


def _by_path(program: torch.export.ExportedProgram, inputs: Mapping[str, fx.Node]) -> dict[str, torch.Size]:
    """The shape of each input tensor by the name that torch makes of its path, and by its place among all."""
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    found = {f"flat_args_{i}": inputs[name] for i, name in enumerate(names) if name in inputs}
    return {path: node.meta["val"].shape for path, node in {**found, **inputs}.items()}


def _path(node: ast.expr) -> str:
    """`x_0_key` for `L['x'][0]['key']`, as torch names inputs."""
    keys: list[str] = []
    while isinstance(node, ast.Subscript):
        if not isinstance(node.slice, ast.Constant):
            raise _Silent
        keys.insert(0, str(node.slice.value))
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "L":
        raise _Silent
    return re.sub(r"[^a-z0-9]", "_", "_".join(keys).lower())


def _parsed(text: str, shapes: Mapping[str, torch.Size]) -> tuple[sympy.Expr, str]:
    """Left minus right side, and the relation."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise _Silent
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Silent from None
    if not isinstance(body, ast.Compare) or len(body.ops) != 1 or type(body.ops[0]) not in _RELATIONS:
        raise _Silent
    left, right = (_expression(side, shapes, 0) for side in (body.left, body.comparators[0]))
    return sympy.expand(left - right), _RELATIONS[type(body.ops[0])]


def _expression(node: ast.expr, shapes: Mapping[str, torch.Size], depth: int) -> sympy.Expr:
    if depth > 32:
        raise _Silent
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _LARGEST:
        return sympy.Integer(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_expression(node.operand, shapes, depth + 1)
    if isinstance(node, ast.BinOp):
        from torch.utils._sympy.functions import FloorDiv, PythonMod

        make = {
            ast.Add: sympy.Add,
            ast.Sub: lambda a, b: a - b,
            ast.Mult: sympy.Mul,
            ast.FloorDiv: FloorDiv,
            ast.Mod: PythonMod,
        }.get(type(node.op))
        if make is not None:
            return make(_expression(node.left, shapes, depth + 1), _expression(node.right, shapes, depth + 1))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

        named = {**_FUNCTIONS, "FloorDiv": FloorDiv, "Mod": Mod, "PythonMod": PythonMod}.get(node.func.id)
        if named is not None and len(node.args) == 2:
            return named(*(_expression(a, shapes, depth + 1) for a in node.args))
    return _size(node, shapes)


def _size(node: ast.expr, shapes: Mapping[str, torch.Size]) -> sympy.Expr:
    """`L['x'].size()[1]`"""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        raise _Silent
    call, axis = node.value, node.slice.value
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr != "size"
        or call.args
        or call.keywords
    ):
        raise _Silent
    shape = shapes.get(_path(call.func.value))
    if shape is None or type(axis) is not int or not 0 <= axis < len(shape):
        raise _Silent
    return _sympy(shape[axis])


def _sympy(size: Any) -> sympy.Expr:
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def _tensors(value: object) -> Iterator[torch.Tensor]:
    for item in value if isinstance(value, tuple | list) else [value]:
        if isinstance(item, torch.Tensor):
            yield item


def _sizes(program: torch.export.ExportedProgram) -> tuple[set[sympy.Expr], set[sympy.Expr]]:
    """Every symbolic size of a tensor, and how many elements several last axes have together."""
    sizes, counts = set(), set()
    for node in program.graph.nodes:
        for tensor in _tensors(node.meta.get("val")):
            count = sympy.Integer(1)
            for size in reversed(tensor.shape):
                count = sympy.expand(count * _sympy(size))
                sizes.add(sympy.expand(_sympy(size)))
                counts.add(count)
    return sizes, counts - sizes


def _views(program: torch.export.ExportedProgram) -> Iterator[tuple[list[sympy.Expr], list[sympy.Expr]]]:
    """Sizes in front of and behind operators that leave a tensor as it is where these are equal."""
    for node in program.graph.nodes:
        if node.op == "call_function" and _VIEWS.search(str(node.target)) and node.all_input_nodes:
            before = [_sympy(s) for t in _tensors(node.all_input_nodes[0].meta.get("val")) for s in t.shape]
            after = [_sympy(s) for t in _tensors(node.meta.get("val")) for s in t.shape]
            yield before, after


def _only_layout(difference: sympy.Expr, relation: str, sizes: set[sympy.Expr], differences: set[sympy.Expr]) -> bool:
    """Whether only sizes of 0 and 1, or a view of all there is, break `difference relation 0`."""
    if relation != "!=":
        return False
    return any(sign * difference + n in sizes for sign in (1, -1) for n in (0, 1)) or any(
        sign * difference in differences for sign in (1, -1)
    )


def _as_condition(
    difference: sympy.Expr, relation: str, sizes: set[sympy.Expr], counts: set[sympy.Expr]
) -> tuple[sympy.Expr, _Must]:
    if relation in ("==", "!="):
        return difference, "0" if relation == "==" else "not 0"
    if relation in ("<=", "<"):
        difference = -difference
    if relation in ("<", ">"):
        difference = difference - 1
    for n in (1, 2):  # "a size of at least n": torch's own; that there is no fewer than none is what matters
        if sympy.expand(difference + n) in sizes:
            return sympy.expand(difference + n), "at least 0"
        if sympy.expand(difference + n) in counts:
            raise _Silent
    return sympy.expand(difference), "at least 0"


def _formula(expr: ir.Expr | int, depth: int = 0) -> object:
    """A formula of a manifest of a TIR expression over dimensions."""
    if isinstance(expr, int | tirx.IntImm):
        return int(expr)
    if isinstance(expr, ir.Var):
        return str(expr.name)
    operation = _OPERATIONS.get(type(expr).__name__)
    if operation is None or depth > _DEEPEST:
        raise _Silent
    return [operation, _formula(expr.a, depth + 1), _formula(expr.b, depth + 1)]


def _text(difference: sympy.Expr, must: str, dims: Dimensions) -> str:
    """`sequence_1 <= sequence`: what is added on one side, what is taken off on the other."""
    named = dims.in_names(difference)
    terms = sympy.Add.make_args(named)
    taken = [-t for t in terms if t.could_extract_minus_sign()]
    added = [t for t in terms if not t.could_extract_minus_sign()]
    relation = {"at least 0": "<=", "0": "==", "not 0": "!="}[must]
    return f"{sympy.Add(*taken)} {relation} {sympy.Add(*added)}"
