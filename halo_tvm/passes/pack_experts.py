"""Pack the weights of experts once, at compile time, as panels of the GEMM's kernels, expert by expert.

Before -> after
    halo.experts(x, ids, w [e, n, k], layout="nk")   ->   halo.experts(x, ids, w', layout="packed")
    w' is what `pack_weights` makes of the columns of all experts side by side, [e * panels * nr, k], those of each one
    filled up with zeros to panels = ceil(n/nr) whole panels; at --precision bf16 and fp16 in these types
At --precision int8, int4
    w' in groups along k, by the rung of the precision's schemes as `quantise` has it: w8g32a8g32, w4g32m. `narrowing`
    is that of experts whose rows are their own, which are the second product of a feed-forward, and of those deeper
    than wide. Where 32 does not divide k, bfloat16 and the reason
Leaves alone
    GPUs, whose kernels read [e, n, k]; weights that are no float32 parameter
No data moves here: `ParamRecipe`s say how w' is made of w.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..errors import Declined
from ..relay_ops import OPERATORS
from ..relay_ops.operator import attrs_of, operator_of
from ..tir_schedules.products.packing import pack_shape
from ._schemes import Grouped, scheme_of, weight_of
from .graph_pass import Context, Pass, Report, bindings, rebuild
from .pack_weights import FORMATS, FP32, Format, format_of
from .scheme_ladder import usual
from .weights import WeightEditor

_INTEGERS = ("int8", "int4")


@dataclass(frozen=True)
class _Packed:
    """The weight of experts as a kernel reads it: its tensors, and what the call says of them."""

    tensors: tuple[relax.Var, ...]
    attrs: dict[str, object]


@dataclass(frozen=True)
class PackExperts(Pass):
    """Give the weights of experts the layout, and the precision, that the target's rule reads.

    The report counts weights by format; `kept` are not packed, `wide` are packed in a higher precision than asked for.
    `read` is the share of every packed tensor that one row reads.
    """

    name = "pack_experts"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func, operator = mod["main"], OPERATORS["experts"]
        formats: dict[str, int] = {}
        kept: list[dict[str, str]] = []
        wide: list[dict[str, str]] = []
        shares: dict[str, float] = {}
        report: Report = {"formats": formats, "kept": kept, "wide": wide, "read": shares}
        calls = [b.value for b in bindings(func) if operator_of(b.value) is operator]
        if not calls:
            return mod, report
        editor = WeightEditor(func, context.params)
        packed: dict[str, _Packed] = {}
        for call in calls:
            name = editor.name(call.args[2])
            if name is None or attrs_of(call)["layout"] != "nk" or name in packed:
                continue
            if context.target.spec.gpu:
                kept.append({"weight": name, "reason": "kernels of GPUs read experts as they are stored"})
            elif editor.params.dtype(name) != "float32":
                kept.append({"weight": name, "reason": f"only float32 is packed, it is {editor.params.dtype(name)}"})
            else:
                packed[name], label, reason = _pack(editor, name, context, own_rows=call.args[0].ty.ndim == 3)
                formats[label] = formats.get(label, 0) + 1
                wide.extend([{"weight": name, "reason": reason}] if reason else [])
                share = int(call.args[1].ty.shape.values[1]) / int(attrs_of(call)["experts"])  # type: ignore[call-overload]
                shares |= {made: share for made in map(editor.name, packed[name].tensors) if made}

        def rewrite(call: relax.Call) -> relax.Expr:
            made = packed.get(editor.name(call.args[2]) or "") if operator_of(call) is operator else None
            if made is None:
                return call
            x, ids, _, *bias = call.args
            return operator.call(x, ids, *made.tensors, *bias, **{**attrs_of(call), **made.attrs, "layout": "packed"})

        mod = editor.finish(mod, rebuild(func, rewrite).body)
        return relax.transform.Normalize()(mod), report


def _scheme(context: Context, deep: bool) -> str | None:
    """The scheme in groups that the rung of the precision has, None for a precision without integers.

    `w8a8` has no panels of experts: groups of bytes stand in for it.
    """
    if context.precision not in _INTEGERS:
        return None
    rung = context.rung or usual(context.precision, appends=True)
    scheme = (rung.narrowing if deep else "") or rung.linears
    return usual("int8", appends=True).linears if scheme == "w8a8" else scheme


def _pack(editor: WeightEditor, name: str, context: Context, *, own_rows: bool) -> tuple[_Packed, str, str]:
    """(the packed weight, its format for the report, why that is wider than what was asked for or "")."""
    _, n, k = editor.params.shape(name)
    scheme, reason = _scheme(context, own_rows or k > n), ""
    if scheme is not None:
        _, nr = pack_shape(k, n, context.target)
        columns = _columns(editor, name, nr)
        try:
            made = weight_of(
                columns, "nk", k, editor.params.shape(columns)[0], scheme_of(scheme), editor, context.target, nr=nr
            )
            assert isinstance(made, Grouped), f"{scheme} has groups"
            least = [] if made.least is None else [made.least]
            tensors = (made.integers, made.scale, *least)
            return _Packed(tensors, {"bits": made.bits, "least": made.least is not None}), made.label, reason
        except Declined as declined:
            reason = str(declined)
    form = format_of(k, context) if scheme is None else _brief(k)
    if scheme is None and form is not FORMATS.get(context.precision, FP32):
        reason = f"k = {k} is odd: it stays float32"
    kc, nr = pack_shape(k, n, context.target, form.dtype)
    columns = _columns(editor, name, nr)
    weight, label = form.panels(editor, columns, "nk", editor.params.shape(columns)[0], (kc, nr))
    return _Packed((weight,), {}), label, reason


def _brief(k: int) -> Format:
    """What stands in for integers."""
    form = FORMATS["bf16"]
    return form if k % form.group == 0 else FP32


def _columns(editor: WeightEditor, name: str, nr: int) -> str:
    """The name of the columns of all experts side by side, [e * ceil(n/nr) * nr, k]."""
    e, n, k = editor.params.shape(name)
    whole = -(-n // nr) * nr
    made = f"{name}|columns{nr}"
    editor.derive(made, "expert_columns", [name], (e * whole, k), whole=whole)
    return made
