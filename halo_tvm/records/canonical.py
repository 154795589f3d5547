"""A canonical text of TIR: the same for equal computations, whatever things are called.

Every node is written as "(tag field ...)". Variables and buffers are numbered by first appearance;
derived fields (read and write regions, spans, alignment, names) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..plain import plain

# Class name -> fields written, in order. What is not listed is written as TVM's structural hash.
_FIELDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("Add Sub Mul Div Mod FloorDiv FloorMod Min Max".split(), ("a", "b")),
    **dict.fromkeys("EQ NE LT LE GT GE And Or".split(), ("a", "b")),
    **dict.fromkeys("BitwiseAnd BitwiseOr BitwiseXor LShift RShift".split(), ("a", "b")),
    "Not": ("a",),
    "BitwiseNot": ("a",),
    "Select": ("condition", "true_value", "false_value"),
    "Let": ("var", "value", "body"),
    "Ramp": ("base", "stride", "lanes"),
    "Broadcast": ("value", "lanes"),
    "Shuffle": ("vectors", "indices"),
    "TensorLoad": ("source", "indices"),
    "BufferStore": ("buffer", "indices", "value"),
    "Range": ("min", "extent"),
    "Bind": ("var", "value"),
    "While": ("condition", "body"),
    "IfThenElse": ("condition", "then_case", "else_case"),
    "AssertStmt": ("condition",),
    "Evaluate": ("value",),
    "AllocBuffer": ("buffer",),
    "DeclBuffer": ("buffer", "data"),
    "AttrStmt": ("attr_key", "node", "value", "body"),
    "SeqStmt": ("seq",),
    "Return": ("value",),
    "Break": (),
    "Continue": (),
    "For": ("kind", "loop_var", "min", "extent", "annotations", "body"),
    "SBlockRealize": ("iter_values", "predicate", "block"),
    "SBlock": ("iter_vars", "annotations", "alloc_buffers", "match_buffers", "init", "body"),
    "MatchBufferRegion": ("buffer", "source"),
    "IterVar": ("iter_type", "var", "dom"),
    "TensorRegion": ("source", "region"),
}


class Canonical:
    """Writes nodes; one instance per function, so that numbers are shared.

    `readable` keeps variable names. `abstract` writes numbers other than 0 as "#" and collects the
    integers among them in `extents`: what is left is the same for the same computation of other sizes.
    """

    def __init__(self, *, readable: bool = False, abstract: bool = False) -> None:
        self._readable = readable
        self._abstract = abstract
        self.extents: list[int] = []
        self._numbers: dict[ir.Var, str] = {}

    def param(self, param: ir.Var) -> str:
        """A parameter of the function with its full type."""
        return self.node(param) if isinstance(param.ty, tirx.BufferType) else f"({self.node(param)} {param.ty.dtype})"

    def attribute(self, value: object) -> str:
        """A plain value in `halo.call`."""
        return self.node(value) if self._abstract else repr(value)

    def node(self, node: object) -> str:
        if isinstance(node, (int, float)) and not isinstance(node, bool):
            return self._number(node, repr(plain(node)))
        if node is None or isinstance(node, (bool, str)):
            return repr(plain(node))
        if isinstance(node, ir.Var):
            return self._variable(node)
        if isinstance(node, tirx.IntImm):
            return self._number(int(node.value), str(int(node.value)))
        if isinstance(node, tirx.FloatImm):
            return f"{self._number(float(node.value), repr(float(node.value)))}:{node.ty.dtype}"
        if isinstance(node, ir.StringImm):
            return repr(str(node.value))
        if isinstance(node, tirx.Cast):
            return f"(cast {node.ty.dtype} {self.node(node.value)})"
        if isinstance(node, ir.Call):
            callee = node.op.name if isinstance(node.op, ir.Op) else self.node(node.op)
            return "(" + " ".join(["call", callee, *(self.node(a) for a in node.args)]) + ")"
        name = type(node).__name__
        if name in _FIELDS:
            return "(" + " ".join([name, *(self.node(getattr(node, field)) for field in _FIELDS[name])]) + ")"
        if isinstance(node, (ir.Array, list, tuple)):
            return "[" + " ".join(self.node(n) for n in node) + "]"
        if isinstance(node, (ir.Map, dict)):
            # Annotations: plain values only matter; an expression in one is written like any other.
            return "{" + " ".join(f"{k}:{self.node(node[k])}" for k in sorted(node, key=str)) + "}"
        return f"(other {name} {tvm_ffi.structural_hash(node, map_free_vars=True)})"

    def _number(self, value: float, text: str) -> str:
        if not self._abstract or value == 0:
            return text
        if isinstance(value, int):
            self.extents.append(value)
        return "#"

    def _variable(self, var: ir.Var) -> str:
        known = self._numbers.get(var)
        if known is not None:
            return known
        if self._readable:
            name = str(var.name)
        else:
            name = f"{'b' if isinstance(var.ty, tirx.BufferType) else 'v'}{len(self._numbers)}"
        self._numbers[var] = name
        if self._readable or not isinstance(var.ty, tirx.BufferType):
            return name
        # The first appearance of a buffer declares it.
        ty = var.ty
        parts = ["buffer", name, str(ty.dtype), str(ty.storage_scope), self.node(ty.shape)]
        return "(" + " ".join([*parts, *([self.node(ty.strides)] if len(ty.strides) else [])]) + ")"


def walk(node: object) -> Iterator[object]:
    """`node` and everything below it that counts for the key, parents first."""
    if isinstance(node, (ir.Array, list, tuple)):
        for child in node:
            yield from walk(child)
        return
    yield node
    if isinstance(node, ir.Call):
        yield from walk(node.args)
    elif isinstance(node, tirx.Cast):
        yield from walk(node.value)
    else:
        for field in _FIELDS.get(type(node).__name__, ()):
            yield from walk(getattr(node, field))


def blocks_of(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """The computing blocks of `func` in program order, without the root."""
    found: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, found.append), order="pre")
    return [block for block in found if len(block.iter_vars)]
