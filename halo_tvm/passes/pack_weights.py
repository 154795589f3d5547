"""Pack the weights of linears once, at compile time, into the blocks or rows their kernels read.

Before -> after
    halo.linear(x, w [k, n], layout="kn")   ->   halo.linear(x, w' [k/kc, ceil(n/nr), kc, nr], layout="packed")
    halo.embedding(ids, w, layout="nk")     ->   halo.embedding(ids, w', layout="packed")   where a linear shares w
                                                 (in another function of the model, too)
On a GPU
    halo.linear(x, w [k, n], layout="kn")   ->   halo.linear(x, w' [n, k], layout="nk")   in float32, bfloat16, float16
At --precision bf16, fp16 on a CPU
    w' [k/kc, ceil(n/nr), kc/2, nr, 2] in bfloat16, pairs along k; a weight of odd k stays float32 and is reported
    w' [k/kc, ceil(n/nr), kc, nr] in float16; an embedding that shares it widens what it reads, on a GPU, too
No data moves here: a `ParamRecipe` says how w' is made of w. Tied weights are therefore stored once, packed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops.operator import attrs_of, operator_of
from ..tir_schedules.products.packing import GROUPS, pack_shape
from .graph_pass import Context, Pass, Report, bindings, rebuild
from .weights import WeightEditor


@dataclass(frozen=True)
class Format:
    """How a packed weight is stored."""

    label: str
    dtype: str
    recipe: str

    @property
    def group(self) -> int:
        """Rows of k that lie side by side."""
        return GROUPS[self.dtype]

    def panels(
        self, editor: WeightEditor, name: str, layout: str, n: int, blocks: tuple[int, int]
    ) -> tuple[relax.Var, str]:
        """The weight `name` of `n` columns in panels of `blocks`, (kc, nr), and what the report calls that."""
        (kc, nr), label = blocks, f"{self.label}/k{self.group}/n{blocks[1]}"
        k = editor.params.shape(name)[0 if layout == "kn" else 1]
        inner = (kc, nr) if self.group == 1 else (kc // self.group, nr, self.group)
        how = {"layout": layout, "kc": kc, "nr": nr}
        shape = (k // kc, -(-n // nr), *inner)
        return editor.derive(f"{name}|{label}", self.recipe, [name], shape, self.dtype, **how), label


FP32 = Format("f32", "float32", "pack")
FORMATS = {  # by precision; integer weights are made by the pass `quantise`, what it leaves is float32
    "bf16": Format("bf16", "bfloat16", "pack_bf16"),
    "fp16": Format("f16", "float16", "pack_fp16"),
}


@dataclass(frozen=True)
class PackWeights(Pass):
    """Give every linear weight the layout, and the precision, that the target's GEMM rule reads.

    The report counts weights by format; `kept` are not packed, `wide` are packed in a higher precision than asked for.
    """

    name = "pack_weights"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func = mod["main"]
        editor = WeightEditor(func, context.params)
        layouts: dict[str, set[str]] = {}
        for call in _calls(func, ("linear",)):
            name = editor.name(call.args[1])
            if name is not None:
                layouts.setdefault(name, set()).add(attrs_of(call)["layout"])
        for call in _calls(func, ("embedding",)):  # a table that is the head of another function
            name = editor.name(call.args[1])
            if name is not None and name == context.shared.head:
                layouts.setdefault(name, {"nk"})
        formats: dict[str, int] = {}
        kept: list[dict[str, str]] = []
        wide: list[dict[str, str]] = []
        packed: dict[str, relax.Var] = {}
        gpu = context.target.spec.gpu
        for name, found in layouts.items():
            if len(found) != 1 or "packed" in found:
                kept.append(
                    {"weight": name, "reason": f"its linears read it in the layouts {', '.join(sorted(found))}"}
                )
            elif editor.params.dtype(name) != "float32":
                kept.append({"weight": name, "reason": f"only float32 is packed, it is {editor.params.dtype(name)}"})
            else:
                (layout,) = found
                k, n = editor.params.shape(name)[:: 1 if layout == "kn" else -1]
                form = format_of(k, context)
                if form is not FORMATS.get(context.precision, FP32):
                    wide.append({"weight": name, "reason": f"k = {k} is odd: it stays float32"})
                if gpu:
                    packed[name], label = _turn(editor, name, layout, (n, k), form)
                else:
                    blocks = pack_shape(k, n, context.target, form.dtype)
                    packed[name], label = form.panels(editor, name, layout, n, blocks)
                formats[label] = formats.get(label, 0) + 1

        def rewrite(call: relax.Call) -> relax.Expr:
            operator = operator_of(call)
            name = (
                editor.name(call.args[1]) if operator is not None and operator.name in ("linear", "embedding") else None
            )
            # An embedding reads rows of [n, d], so it can share a head of layout "nk" only.
            if name not in packed or (operator.name == "embedding" and layouts[name] != {"nk"}):
                return call
            args = [call.args[0], packed[name], *call.args[2:]]
            value = operator.call(*args, **{**attrs_of(call), "layout": "nk" if gpu else "packed"})
            # Pairs of bfloat16 widen what is read of them by themselves.
            narrow = operator.name == "embedding" and packed[name].ty.dtype != "float32" and packed[name].ty.ndim != 5
            return relax.op.astype(value, "float32") if narrow else value

        mod = editor.finish(mod, rebuild(func, rewrite).body)
        return relax.transform.Normalize()(mod), {"formats": formats, "kept": kept, "wide": wide}


def format_of(depth: int, context: Context) -> Format:
    """How a weight of `depth` rows is packed at the precision that is asked for."""
    form = FORMATS.get(context.precision, FP32)
    return form if context.target.spec.gpu or depth % form.group == 0 else FP32


def _calls(func: relax.Function, operators: Iterable[str]) -> list[relax.Call]:
    found = []
    for binding in bindings(func):
        operator = operator_of(binding.value)
        if operator is not None and operator.name in operators:
            found.append(binding.value)
    return found


def _turn(editor: WeightEditor, name: str, layout: str, shape: tuple[int, int], form: Format) -> tuple[relax.Var, str]:
    """The weight as [n, k] of `shape`, whose rows a GPU reads in pieces of 16 bytes, and its format for the report."""
    label = f"{form.label}/nk"
    if layout == "nk" and form.dtype == "float32":
        return editor.weight(name), label
    how = {"layout": layout, "stored": form.dtype}
    return editor.derive(f"{name}|{label}", "pack_nk", [name], shape, form.dtype, **how), label
