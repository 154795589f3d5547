"""int8 and int4: linears multiply rows of 8-bit integers with weights of 8-bit or 4-bit integers.

Before -> after, by scheme (see `_schemes`)
  w8a8
    y1 = halo.linear(x, w1, b1);  y2 = halo.linear(x, w2)
        ->   q, s = halo.quantize(x)      once for all linears that read x
             y1 = halo.linear_w8a8(q, s, w1', scale1, correction1, b1);  y2 = halo.linear_w8a8(q, s, w2', ...)
  groups
    y = halo.linear(x, w, b)   ->   y = halo.linear_groups(x, w', scale, b)    its kernel rounds x by groups, too
  both
    halo.embedding(ids, w, layout="nk")   ->   halo.embedding(ids, w', scale, layout="packed")   where a linear shares w
Granularity
    one scale per row of x, taken when it runs, and one per column of w, or one of each for every group along k:
    whatever the number of rows, a row is computed with the same integers. A tied embedding reads the rows of the
    head's 8-bit weight times their scales, so that the table is stored once, in a quarter of its bytes.
Options (halo.toml, [passes.quantise])
    scheme = "w4g32m"                of all linears; unless given it is w4g32m at --precision int4 (of a weight that a
                                     file stores as integers the one that has these), and at int8 w8a8, or
                                     w8g32a8g32 in a model that appends to caches: it reads each weight for a few
                                     rows, and one scale a row costs a language model most of what int8 costs it
                                     (k that 32 does not divide takes w8a8 there, too). `compile` goes up the ladder
                                     of the precision (`scheme_ladder`) where a text says that this loses too much
    narrowing = "w8g32a8g32"         of the weights that are deeper than wide, as down projections; else as all
    head = "w8g32a8g32"              of the last linear, or the one that shares its weight with an embedding; this one
                                     at int4 unless given, else as all linears
    mixed = ["*down_proj*=w8g32a8g32", ...]   schemes by globs, the first that fits
    method = "round"                 no search for better scales of four bits (the default is "search"): the squares of
                                     its errors count as much as the mean squares of the linear's inputs, where a text
                                     was read to measure them
    skip = ["lm_head*", ...]         globs of weight or layer names: linears that stay in float32
    tied_embedding = "fp32"          the embedding keeps the float32 table, beside the head's int8 weight
Leaves alone
    weights that are no float32 parameter, whose k is no multiple of 4 (in groups: 32) or too deep for a sum in
    int32, that are read in two layouts, of routers of experts, that `skip` names, and those of products that are no
    linears by one parameter: each with its reason in the report
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
from ..relay_ops.operator import attrs_of, op_name, operator_of
from ..weight_groups import GROUPS
from ._rewrite import BlockMutator
from ._schemes import Scheme, Weight, scheme_of, stored_scheme, weight_of
from ._unserved import unserved
from .graph_pass import Context, Pass, Report, bindings
from .scheme_ladder import Rung, usual
from .weights import WeightEditor

TABLES = ("int8", "fp32")
METHODS = ("search", "round")
_APPENDS = ("kv_append", "append_heads")


@dataclass(frozen=True)
class Quantise(Pass):
    """Linears, and embeddings that share their weight, in 8-bit integers."""

    name = "quantise"
    scheme: str = ""
    head: str = ""
    narrowing: str = ""
    mixed: tuple[str, ...] = ()
    method: str = METHODS[0]
    skip: tuple[str, ...] = ()
    tied_embedding: str = TABLES[0]

    def __post_init__(self) -> None:
        if not isinstance(self.skip, tuple) or not all(isinstance(glob, str) for glob in self.skip):
            raise UsageError(
                f"expected a list of name globs as skip, found {self.skip!r}: correct [passes.quantise] in halo.toml"
            )
        for name in filter(None, (self.scheme, self.head, self.narrowing)):
            scheme_of(name)
        if not isinstance(self.mixed, tuple) or not all(isinstance(m, str) and "=" in m for m in self.mixed):
            raise UsageError(
                f'expected mixed as a list of "glob=scheme", found {self.mixed!r}: correct [passes.quantise]'
            )
        for text in self.mixed:
            scheme_of(text.rpartition("=")[2])
        for option, known in (("tied_embedding", TABLES), ("method", METHODS)):
            if getattr(self, option) not in known:
                raise UsageError(
                    f"expected {option} among {', '.join(known)}, found {getattr(self, option)!r}: "
                    "correct [passes.quantise] in halo.toml"
                )

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func = mod["main"]
        editor = WeightEditor(func, context.params)
        linears = [b.value for b in bindings(func) if _is(b.value, "linear")]
        self._check_globs(linears, editor, context.elsewhere.all)
        formats: dict[str, int] = {}
        methods: dict[str, int] = {}
        kept = unserved(func, editor)
        weights: dict[str, Weight] = {}
        appends = context.shared.appends or any(_is(b.value, name) for b in bindings(func) for name in _APPENDS)
        head = context.shared.head or _head(func, linears, editor)
        routers = _routers(func)
        for name, calls in _by_weight([*linears, *_tables(func, linears, head, editor)], editor).items():
            try:
                if any(call.same_as(router) for call in calls for router in routers):
                    raise Declined("it chooses experts")
                rung = context.rung or usual(context.precision, appends)
                if context.precision == "int8" and not _in_groups(calls):
                    rung = usual("int8", appends=False)
                stored = stored_scheme(context.params.grid(name)) if context.precision == "int4" else None
                rung = Rung(stored, rung.head) if stored else rung
                scheme = self._scheme(calls, editor, context.precision, rung, head=name == head)
                weights[name] = self._weight(name, calls, scheme, editor, context)
                for counts, key in ((formats, weights[name].label), (methods, weights[name].method)):
                    counts[key] = counts.get(key, 0) + 1
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
            "methods": methods,
            "kept": [{"weight": name, "reason": reason} for name, reason in kept.items()],
        }

    def _scheme(
        self, calls: list[relax.Call], editor: WeightEditor, precision: str, rung: Rung, *, head: bool
    ) -> Scheme:
        """The scheme of a weight: that of `rung` where no option says another."""
        for text in self.mixed:
            glob, _, name = text.rpartition("=")
            if any(_named(glob, call, editor) for call in calls):
                return scheme_of(name)
        if head:
            return scheme_of(self.head or (self.scheme if precision == "int8" else "") or rung.head)
        narrowing = self.narrowing or ("" if self.scheme else rung.narrowing)
        if narrowing and all(_narrows(call) for call in calls):
            return scheme_of(narrowing)
        return scheme_of(self.scheme or rung.linears)

    def _weight(
        self, name: str, calls: list[relax.Call], scheme: Scheme, editor: WeightEditor, context: Context
    ) -> Weight:
        """A weight as integers, or `Declined` with the reason why it stays as it is."""
        params = editor.params
        layouts = sorted({str(attrs_of(call)["layout"]) for call in calls})
        if len(layouts) != 1 or layouts[0] not in ("kn", "nk"):
            raise Declined(f"its linears read it in the layouts {', '.join(layouts)}")
        dtypes = sorted({params.dtype(name), *(str(_rows(call).dtype) for call in calls)})
        if dtypes != ["float32"]:
            raise Declined(f"only float32 is quantised, its linears have {', '.join(dtypes)}")
        for glob in self.skip:
            if any(_named(glob, call, editor) for call in calls):
                raise Declined(f"skip names it: {glob}")
        (layout,) = layouts
        k, n = params.shape(name) if layout == "kn" else params.shape(name)[::-1]
        return weight_of(name, layout, k, n, scheme, editor, context.target, search=self.method == "search")

    def _check_globs(self, linears: list[relax.Call], editor: WeightEditor, elsewhere: frozenset[str]) -> None:
        """A glob that names nothing in any function is a typing error, not a wish for nothing."""
        named = [*(("skip", glob) for glob in self.skip), *(("mixed", text.rpartition("=")[0]) for text in self.mixed)]
        for option, glob in named:
            known = sorted({source for call in linears for source in _names(call, editor)} | elsewhere)
            if not any(fnmatchcase(name, glob) for name in known):
                raise UsageError(
                    f"expected a linear's weight or layer for {option} = {glob!r}, found none: "
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
            ids = self.visit_expr(call.args[0])
            shared = weight.embedding(call, ids)
            if shared is not None:
                self.tables.append(str(self._editor.name(call.args[1])))
                return shared
        return super().visit_call_(call)

    def _linear(self, call: relax.Call, weight: Weight) -> relax.Expr:
        x, *bias = [self.visit_expr(arg) for arg in (call.args[0], *call.args[2:])]
        self.linears += 1
        if not weight.shares_rows:
            return weight.linear(call, [x], bias)
        if x not in self.made:
            both = self.builder_.emit(OPERATORS["quantize"].call(x))
            q, scale = (self.builder_.emit(relax.TupleGetItem(both, i)) for i in range(2))
            self.made[x] = (q, scale)
            self.activations += 1
        return weight.linear(call, [*self.made[x]], bias)


def _routers(func: relax.Function) -> list[relax.Call]:
    """The linears whose results `halo.route` reads: a rounded one would send rows to other experts."""
    read = [b.value.args[0] for b in bindings(func) if _is(b.value, "route")]
    made = {b.var: b.value for b in bindings(func)}
    found = []
    for var in read:
        value = made.get(var)
        if value is not None and op_name(value) == "relax.reshape":
            value = made.get(value.args[0])
        if value is not None and _is(value, "linear"):
            found.append(value)
    return found


def _in_groups(calls: list[relax.Call]) -> bool:
    """Whether the smallest group divides the depth of a weight."""
    return all(int(_rows(call).shape.values[-1]) % GROUPS[-1] == 0 for call in calls)


def _narrows(call: relax.Call) -> bool:
    """Whether a weight is deeper than wide."""
    return int(_rows(call).shape.values[-1]) > int(call.ty.shape.values[-1])


def _rows(call: relax.Call) -> relax.TensorType:
    """The rows that a linear multiplies with its weight, or an embedding takes from it."""
    return call.args[0].ty if _is(call, "linear") else call.ty


def _tables(
    func: relax.Function, linears: list[relax.Call], head: str | None, editor: WeightEditor
) -> list[relax.Call]:
    """The embeddings that read the model's head where no linear of this function does: another function's has it."""
    if any(editor.name(call.args[1]) == head for call in linears):
        return []
    return [b.value for b in bindings(func) if _is(b.value, "embedding") and editor.name(b.value.args[1]) == head]


def _head(func: relax.Function, linears: list[relax.Call], editor: WeightEditor) -> str | None:
    """The weight that an embedding reads as well, else that of the last linear."""
    tables = {editor.name(b.value.args[1]) for b in bindings(func) if _is(b.value, "embedding")}
    named = [name for name in (editor.name(call.args[1]) for call in linears) if name is not None]
    return next((name for name in named if name in tables), named[-1] if named else None)


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
