"""What a module from a confined process may hold: operators on tensors, and arithmetic in loops over buffers.

The process read a file that may do anything in it, and what it hands over is compiled and run outside of it. So the
text of the module is checked against a list before it is parsed: no calls of functions by name, no pointers, no
pragmas, which bring code of their own, no attributes that a pass of TVM acts on.
Not checked: that indices stay inside of buffers, as they may follow from data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import tvm

from ..errors import UnsupportedModel

_Node = Mapping[str, object]

_TYPES = frozenset(
    """
    None bool int float dtype DataType ffi.Array ffi.List ffi.Map ffi.Dict ffi.Shape ffi.String ffi.Tensor
    ir.Call ir.DictAttrs ir.FloatImm ir.GenericConst ir.GlobalVar ir.IRModule ir.IntImm ir.Op ir.PrimType ir.Range
    ir.SequentialSpan ir.SourceMap ir.SourceName ir.Span ir.StringImm ir.StringType ir.TensorLoad ir.TensorRegion
    ir.Tuple ir.TupleGetItem ir.TupleType ir.Type ir.Var ir.FuncType
    relax.AnyType relax.FuncType relax.ShapeType relax.TensorType
    relax.expr.BindingBlock relax.expr.DataflowBlock relax.expr.DataflowVar relax.expr.Function relax.expr.If
    relax.expr.MatchCast relax.expr.SeqExpr relax.expr.ShapeExpr relax.expr.VarBinding
    s_tir.SBlock s_tir.SBlockRealize
    tirx.AllocBuffer tirx.AssertStmt tirx.AttrStmt tirx.Axis tirx.Bind tirx.BufferRegionType tirx.BufferStore
    tirx.BufferType tirx.Evaluate tirx.For tirx.IfThenElse tirx.Iter tirx.IterVar tirx.PrimFunc tirx.SeqStmt
    tirx.TileLayout tirx.While
    """.split()
)
_FAMILIES = ("prim.", "relax.attrs.")  # arithmetic, and what describes an operator's call
_ARITHMETIC = frozenset(
    f"tirx.{name}"
    for name in """
    acos acosh asin asinh atan atan2 atanh copysign cos cosh ctpop erf exp exp10 exp2 fabs floor fma fmod hypot isfinite
    isinf isnan ldexp log log10 log1p nearbyint nextafter popcount pow reinterpret round rsqrt sigmoid sin sinh sqrt tan
    tanh trunc
    """.split()
)
# Operators of Relax without a lowering of their own that importers use; none calls a function by its name.
_GRAPH = frozenset(
    f"relax.{name}"
    for name in """
    argsort call_tir call_tir_inplace cumprod cumsum nonzero null_value shape_of sort tensor_to_shape topk unique
    """.split()
)
_PRAGMAS = frozenset({"pragma_scope"})  # a name for a part of a kernel: the code generator passes over it
_ATTRIBUTES = frozenset(
    {"Primitive", "global_symbol", "num_input", "op_pattern", "s_tir", "tirx.is_scheduled", "tirx.noalias"}
)


def refuse_foreign(text: str) -> None:
    """`UnsupportedModel` for the JSON of a module with anything else in it; `ValueError` for what is no such JSON."""
    nodes = json.loads(text)["nodes"]
    found = next(_foreign(nodes), None)
    if found is not None:
        raise UnsupportedModel(
            f"expected a module of tensor operators and arithmetic from the confined process, found {found}: "
            "the file is not to be trusted; if you wrote it yourself, report it"
        )


def _foreign(nodes: Sequence[_Node]) -> Iterator[str]:
    for node in nodes:
        kind, data = str(node["type"]), node.get("data")
        if kind not in _TYPES and not kind.startswith(_FAMILIES):
            yield kind
        elif kind == "ir.Op" and not _is_harmless(str(data)):
            yield f"a call of {data}"
        elif kind in ("ir.IRModule", "relax.expr.Function", "tirx.PrimFunc"):
            attributes = _field(nodes, data, "attrs")
            keys = _keys(nodes, attributes, "__dict__") if attributes else []
            yield from (f"the attribute {key}" for key in keys if not _is_ours(key))
        elif kind == "tirx.AttrStmt" and str(_field(nodes, data, "attr_key")) not in _PRAGMAS:
            yield f"the statement {_field(nodes, data, 'attr_key')}"
        elif kind in ("tirx.For", "s_tir.SBlock"):
            yield from (
                f"the annotation {key}" for key in _keys(nodes, data, "annotations") if not key.startswith("halo.")
            )


def _is_harmless(name: str) -> bool:
    if name.startswith("relax."):
        return name in _GRAPH or name.startswith("relax.halo.") or _lowers(name)
    return name.startswith("prim.") or name in _ARITHMETIC


def _lowers(name: str) -> bool:
    """Whether TVM knows the operator and makes loops of it."""
    return name in tvm.ir.Op.list_op_names() and tvm.ir.Op.get(name).get_attr("FLegalize") is not None


def _is_ours(key: str) -> bool:
    return key in _ATTRIBUTES or key.startswith("halo.")


def _field(nodes: Sequence[_Node], data: object, name: str) -> object:
    """What the field `name` of a node refers to."""
    if not isinstance(data, Mapping):
        raise ValueError("a node without fields")
    return nodes[int(data[name])].get("data")


def _keys(nodes: Sequence[_Node], data: object, field: str) -> list[str]:
    """The keys of the map that a field of a node refers to."""
    entries = _field(nodes, data, field)
    return [str(nodes[int(entry)].get("data")) for entry in entries[::2]] if isinstance(entries, list) else []
