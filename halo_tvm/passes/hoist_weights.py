"""Work on weights alone is done once, at compile time.

Before -> after
    w' = permute_dims(reshape(w));  halo.linear(x, w')   ->   halo.linear(x, w''),  w'' a weight made by recipes
Serves
    reshape, permute_dims, concat, strided_slice, nn.pad with zeros, sum, expand_dims, squeeze, astype between
    float types and rows of constant numbers (halo.embedding), of weights or of what is hoisted already, at sizes
    that are known
Leaves alone
    everything else; a weight that is also used as it is stays beside what is made of it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from ..dimensions import integers_of
from ..plain import plain
from ..relay_ops.operator import attrs_of, order_of, shaped
from .graph_pass import Context, Pass, Report, bindings, op_name
from .weights import WeightEditor


@dataclass(frozen=True)
class HoistWeights(Pass):
    """Turn chains of data movement on weights into recipes."""

    name = "hoist_weights"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return hoisted(mod, context, lambda _binding: True)


def hoisted(
    mod: tvm.IRModule, context: Context, chosen: Callable[[relax.Binding], bool]
) -> tuple[tvm.IRModule, Report]:
    """`mod` with recipes for those of the `chosen` bindings that move weights alone."""
    func = mod["main"]
    editor = WeightEditor(func, context.params)
    made: dict[relax.Var, relax.Var] = {}
    counts: dict[str, int] = {}
    for binding in bindings(func):
        name = op_name(binding.value)
        step = _STEPS.get(name)
        if step is None or not isinstance(binding.var, relax.DataflowVar) or not chosen(binding):
            continue
        weights = [editor.name(made.get(operand, operand)) for operand in _operands(binding.value)]
        attrs = step(binding.value) if None not in weights and _static(binding.var.ty) else None
        if attrs is None:
            continue
        made[binding.var] = _derive(editor, _RECIPES.get(name, name.rpartition(".")[2]), weights, binding.var.ty, attrs)
        counts[name.removeprefix("relax.")] = counts.get(name.removeprefix("relax."), 0) + 1
    if not made:
        return mod, {"hoisted": counts}
    body = _replaced(func, made)
    return relax.transform.Normalize()(editor.finish(mod, body)), {"hoisted": counts}


def _operands(call: relax.Call) -> list[relax.Expr]:
    """The tensors a call reads; of an embedding only the table."""
    if op_name(call) == _EMBEDDING:
        return [call.args[1]]
    first = call.args[0]
    return list(first.fields) if isinstance(first, relax.Tuple) else [first]


def _static(ty: relax.Type) -> bool:
    return shaped(ty) and all(isinstance(dim, tirx.IntImm) for dim in ty.shape.values)


def _derive(
    editor: WeightEditor, op: str, inputs: list[str], ty: relax.TensorType, attrs: dict[str, object]
) -> relax.Var:
    # The name follows from what is done, so that compiling the same model twice records it once.
    digest = hashlib.sha256(json.dumps([op, inputs, attrs], sort_keys=True).encode()).hexdigest()[:12]
    output = f"{inputs[0].split('|')[0]}|{op}:{digest}"
    return editor.derive(output, op, inputs, ty.shape.values, str(ty.dtype), **attrs)


def _replaced(func: relax.Function, made: dict[relax.Var, relax.Var]) -> relax.Expr:
    """The body without the hoisted bindings, which nothing reads any more."""

    @relax.expr_functor.mutator
    class Replace(relax.PyExprMutator):
        def visit_var_binding_(self, binding: relax.VarBinding) -> None:
            if binding.var in made:
                self.set_var_remap(binding.var, made[binding.var])
            else:
                super().visit_var_binding_(binding)

    return Replace().visit_expr(func.body)


def _reshape(call: relax.Call) -> dict[str, object]:
    return {"shape": [int(dim) for dim in call.ty.shape.values]}


def _permute(call: relax.Call) -> dict[str, object]:
    return {"axes": order_of(call)}


def _slice(call: relax.Call) -> dict[str, object] | None:
    parts = [integers_of(arg) for arg in call.args[1:]]
    if any(part is None for part in parts) or len(parts) < 3:
        return None
    axes, begin, end, *strides = parts
    return {"axes": axes, "begin": begin, "end": end, "strides": strides[0] if strides else [1] * len(axes)}


def _pad(call: relax.Call) -> dict[str, object] | None:
    if str(call.attrs.pad_mode) != "constant" or float(plain(call.attrs.pad_value)) != 0.0:
        return None
    widths = [int(width) for width in call.attrs.pad_width]
    return {"widths": [widths[i : i + 2] for i in range(0, len(widths), 2)]}


def _sum(call: relax.Call) -> dict[str, object]:
    axes = call.attrs.axis
    every = range(call.args[0].ty.ndim)
    return {"axes": list(every) if axes is None else [int(a) for a in axes], "keepdims": bool(call.attrs.keepdims)}


def _astype(call: relax.Call) -> dict[str, object] | None:
    """To a floating-point type, of another or of bytes, which it holds exactly."""
    source, target = str(call.args[0].ty.dtype), str(call.attrs.dtype)
    exact = source in ("int8", "uint8") and target in ("float16", "float32", "float64")
    return {"dtype": target} if target.startswith("float") and (exact or source.startswith("float")) else None


def _rows(call: relax.Call) -> dict[str, object] | None:
    attrs, ids = attrs_of(call), call.args[0]
    if attrs["layout"] != "nk" or not isinstance(ids, tvm.ir.GenericConst) or ids.ty.ndim != 1:
        return None
    return {"indices": [min(max(int(i), 0), attrs["n"] - 1) for i in ids.value.numpy()], "axis": 0}


_EMBEDDING = "relax.halo.embedding"
_RECIPES = {_EMBEDDING: "take"}  # recipes of another name than the operator's
# Relax operator -> attributes of the recipe of the operator's last name; None: not this call.
_STEPS: dict[str, Callable[[relax.Call], dict[str, object] | None]] = {
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.permute_dims": _permute,
    "relax.concat": lambda call: {"axis": int(call.attrs.axis or 0)},
    "relax.strided_slice": _slice,
    "relax.nn.pad": _pad,
    "relax.sum": _sum,
    "relax.astype": _astype,
    _EMBEDDING: _rows,
}
