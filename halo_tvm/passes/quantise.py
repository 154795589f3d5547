"""int8: linears multiply rows of 8-bit integers with weights of 8-bit integers.

Before -> after
    y1 = halo.linear(x, w1, b1);  y2 = halo.linear(x, w2)
        ->   q, s = halo.quantize(x)      once for all linears that read x
             y1 = halo.linear_w8a8(q, s, w1', scale1, correction1, b1);  y2 = halo.linear_w8a8(q, s, w2', ...)
    halo.embedding(ids, w, layout="nk")   ->   halo.embedding(ids, w', scale, layout="packed")   where a linear shares w
Granularity
    one scale per row of x, taken when it runs, and one per column of w: whatever the number of rows, a row is
    computed with the same integers. A tied embedding reads the rows of the head's int8 weight times their scales, so
    that the table is stored once, in a quarter of its bytes.
Options (halo.toml, [passes.quantise])
    skip = ["lm_head*", ...]         globs of weight or layer names: linears that stay in float32
    tied_embedding = "fp32"          the embedding keeps the float32 table, beside the head's int8 weight
Leaves alone
    weights that are no float32 parameter, whose k is no multiple of 4 or too deep for a sum in int32, that are read
    in two layouts, or that `skip` names: each with its reason in the report
No data moves here: `ParamRecipe`s say how the integers, scales and corrections are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import tvm
from tvm import relax

from ..errors import Declined, UsageError
from ..relay_ops import OPERATORS
from ..relay_ops._operator import attrs_of, operator_of
from ..relay_ops.linear_w8a8 import DEEPEST, GROUP
from ..relay_ops.quantize import ZERO_POINT
from ..tir_schedules._packing import pack_shape
from ._pass import Context, Pass, Report, bindings
from ._rewrite import BlockMutator
from ._weights import WeightEditor

TABLES = ("int8", "fp32")


@dataclass(frozen=True)
class Weight:
    """An int8 weight: its three parameters, and how the float32 one was laid out."""

    layout: str
    n: int
    integers: relax.Var
    scale: relax.Var
    correction: relax.Var


@dataclass(frozen=True)
class Quantise(Pass):
    """Linears, and embeddings that share their weight, in 8-bit integers."""

    name = "quantise"
    skip: tuple[str, ...] = ()
    tied_embedding: str = TABLES[0]

    def __post_init__(self) -> None:
        if not isinstance(self.skip, tuple) or not all(isinstance(glob, str) for glob in self.skip):
            raise UsageError(
                f"expected a list of name globs as skip, found {self.skip!r}: correct [passes.quantise] in halo.toml"
            )
        if self.tied_embedding not in TABLES:
            raise UsageError(
                f"expected tied_embedding among {', '.join(TABLES)}, found {self.tied_embedding!r}: "
                "correct [passes.quantise] in halo.toml"
            )

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func = mod["main"]
        editor = WeightEditor(func, context.params)
        linears = [b.value for b in bindings(func) if _is(b.value, "linear")]
        self._check_globs(linears, editor)
        formats: dict[str, int] = {}
        computed = [call for call in linears if editor.name(call.args[1]) is None]
        kept = {str(attrs_of(call).get("layer") or call.args[1]): "its weight is computed" for call in computed}
        weights: dict[str, Weight] = {}
        for name, calls in _by_weight(linears, editor).items():
            try:
                weights[name] = self._weight(name, calls, editor, context, formats)
            except Declined as reason:
                kept[name] = str(reason)
        rewriter = _Rewriter(mod, editor, weights, self.tied_embedding == "int8")
        body = rewriter.visit_expr(func).body
        mod = relax.transform.DeadCodeElimination()(editor.finish(rewriter.builder_.get(), body))
        return mod, {
            "linears": rewriter.linears,
            "activations": rewriter.activations,
            "tied_embeddings": rewriter.tables,
            "formats": formats,
            "kept": [{"weight": name, "reason": reason} for name, reason in kept.items()],
        }

    def _weight(
        self, name: str, calls: list[relax.Call], editor: WeightEditor, context: Context, formats: dict[str, int]
    ) -> Weight:
        """The int8 form of a weight, or `Declined` with the reason why it stays as it is."""
        params = editor.params
        layouts = sorted({str(attrs_of(call)["layout"]) for call in calls})
        if len(layouts) != 1 or layouts[0] not in ("kn", "nk"):
            raise Declined(f"its linears read it in the layouts {', '.join(layouts)}")
        dtypes = sorted({params.dtype(name), *(str(call.args[0].ty.dtype) for call in calls)})
        if dtypes != ["float32"]:
            raise Declined(f"only float32 is quantised, its linears have {', '.join(dtypes)}")
        for glob in self.skip:
            if any(_named(glob, call, editor) for call in calls):
                raise Declined(f"skip names it: {glob}")
        (layout,) = layouts
        k, n = params.shape(name) if layout == "kn" else params.shape(name)[::-1]
        if k % GROUP or k > DEEPEST:
            raise Declined(f"k = {k} is no multiple of {GROUP} up to {DEEPEST}")
        _, nr = pack_shape(k, n, context.target)
        label = f"i8/k{GROUP}/n{nr}"
        formats[label] = formats.get(label, 0) + 1
        scale = editor.derive(f"{name}|i8/scale", "w8_scale", [name], (n,), layout=layout)
        shape = (1, -(-n // nr), k // GROUP, nr, GROUP)
        packed = f"{name}|{label}"
        inputs = [name, f"{name}|i8/scale"]
        integers = editor.derive(packed, "w8_pack", inputs, shape, "int8", layout=layout, kc=k, nr=nr)
        correction = editor.derive(
            f"{name}|i8/correction", "w8_correction", [packed], (n,), "int32", n=n, zero_point=ZERO_POINT
        )
        return Weight(layout, n, integers, scale, correction)

    def _check_globs(self, linears: list[relax.Call], editor: WeightEditor) -> None:
        """A glob that names nothing is a typing error, not a wish for nothing."""
        for glob in self.skip:
            if not any(_named(glob, call, editor) for call in linears):
                known = sorted({source for call in linears for source in _names(call, editor)})
                raise UsageError(
                    f"expected a linear's weight or layer for skip = {glob!r}, found none: "
                    f"the names are {', '.join(known[:6]) or 'none'}{', ...' if len(known) > 6 else ''}; "
                    "correct [passes.quantise] in halo.toml"
                )


@relax.expr_functor.mutator
class _Rewriter(BlockMutator):
    """Replaces the calls that read `weights`; what is quantised once in a block serves the whole block."""

    def __init__(self, mod: tvm.IRModule, editor: WeightEditor, weights: Mapping[str, Weight], tables: bool) -> None:
        super().__init__(mod)
        self.linears = 0
        self.activations = 0
        self.tables: list[str] = []
        self._editor = editor
        self._weights = weights
        self._share_tables = tables
        self.made: dict[relax.Expr, tuple[relax.Var, relax.Var]] = {}  # a value -> its integers and their scale

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        weight = self._weights.get(self._editor.name(call.args[1]) or "") if len(call.args) > 1 else None
        if weight is not None and _is(call, "linear"):
            return self._linear(call, weight)
        if weight is not None and _is(call, "embedding") and weight.layout == "nk" and self._share_tables:
            self.tables.append(str(self._editor.name(call.args[1])))
            ids = self.visit_expr(call.args[0])
            return OPERATORS["embedding"].call(ids, weight.integers, weight.scale, **_packed(call))
        return super().visit_call_(call)

    def _linear(self, call: relax.Call, weight: Weight) -> relax.Expr:
        x, *bias = [self.visit_expr(arg) for arg in (call.args[0], *call.args[2:])]
        if x not in self.made:
            both = self.builder_.emit(OPERATORS["quantize"].call(x))
            q, scale = (self.builder_.emit(relax.TupleGetItem(both, i)) for i in range(2))
            self.made[x] = (q, scale)
            self.activations += 1
        self.linears += 1
        args = [*self.made[x], weight.integers, weight.scale, weight.correction, *bias]
        return OPERATORS["linear_w8a8"].call(*args, **_packed(call))


def _packed(call: relax.Call) -> dict[str, object]:
    return {**attrs_of(call), "layout": "packed"}


def _is(expr: relax.Expr, name: str) -> bool:
    operator = operator_of(expr)
    return operator is not None and operator.name == name


def _by_weight(linears: list[relax.Call], editor: WeightEditor) -> dict[str, list[relax.Call]]:
    """The linears by the tensor name of their weight; a weight that is computed has none and is left alone."""
    found: dict[str, list[relax.Call]] = {}
    for call in linears:
        name = editor.name(call.args[1])
        if name is not None:
            found.setdefault(name, []).append(call)
    return found


def _names(call: relax.Call, editor: WeightEditor) -> list[str]:
    """What a glob may name: the weight, the tensors it is made of, the layer."""
    name, layer = editor.name(call.args[1]), attrs_of(call).get("layer")
    names = [] if name is None else [name, *editor.params.origin(name)]
    return list(dict.fromkeys([*names, *([] if layer is None else [str(layer)])]))


def _named(glob: str, call: relax.Call, editor: WeightEditor) -> bool:
    return any(fnmatchcase(name, glob) for name in _names(call, editor))
