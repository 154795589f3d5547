"""Remove attention heads: named ones, or those whose weights say that they contribute little. Off by default.

Before -> after (head 1 of 3 pruned)
    attention(linear(x, wqkv [k, 9 d]), num_heads=3) -> reshape -> linear(_, wo [3 d, n])
        ->   attention(linear(x, wqkv' [k, 6 d]), num_heads=2) -> reshape -> linear(_, wo' [2 d, n])
The result is that of the model whose pruned heads give zeros.
Options (halo.toml, [passes.prune_heads])
    heads = ["h.0.attn: 1 5", ...]   layer glob, colon, head numbers; entries for one layer add up
    threshold = 0.1                  also heads whose |wv| * |wo| is below this share of their layer's mean
Declines
    grouped heads; a bias per head; projections, heads or joined heads that something else reads or that are an
    output; projections not made by halo.linear of parameters; pruning all heads of a layer
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
import tvm
from tvm import relax

from ..errors import Declined, UsageError
from ..relay_ops import OPERATORS
from ..relay_ops.operator import attrs_of, operator_of, same_dimension
from ._rewrite import put
from .graph_pass import Context, Pass, Report, bindings, op_name, users_of
from .weights import WeightEditor


@dataclass(frozen=True)
class PruneHeads(Pass):
    """Slice the heads' columns and rows out of the projections around an attention."""

    name = "prune_heads"
    heads: tuple[str, ...] = ()
    threshold: float = 0.0

    def __post_init__(self) -> None:
        numeric = isinstance(self.threshold, (int, float)) and not isinstance(self.threshold, bool)
        if not numeric or not 0 <= self.threshold < math.inf:
            raise UsageError(
                f"expected a threshold of 0 or more, found {self.threshold!r}: "
                "correct [passes.prune_heads] in halo.toml"
            )

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func = mod["main"]
        editor = WeightEditor(func, context.params)
        graph = _Graph({b.var: b.value for b in bindings(func)}, users_of(func))
        wanted = [_parse(text) for text in self.heads]
        _check_layers([pattern for pattern, _ in wanted], graph)
        pruned: dict[str, list[int]] = {}
        declined: list[dict[str, str]] = []
        plan = _Plan()
        for var, call in graph.values.items():
            operator = operator_of(call)
            if operator is None or operator.name != "attention":
                continue
            layer = attrs_of(call).get("layer")
            named = {h for pattern, heads in wanted if _names(pattern, layer) for h in heads}
            if not named and not self.threshold:
                continue
            try:
                site = _Site.of(var, call, graph, editor)
                gone = sorted(named | site.weak(editor, self.threshold))
                if gone:
                    site.prune(gone, editor, plan)
                    pruned[str(layer)] = gone
            except Declined as reason:
                declined.append({"layer": str(layer), "reason": str(reason)})
        if not pruned:
            return mod, {"pruned": {}, "declined": declined}
        pruner = _Pruner(mod, plan)
        body = pruner.visit_expr(func).body
        return editor.finish(pruner.builder_.get(), body), {"pruned": pruned, "declined": declined}


@dataclass(frozen=True)
class _Graph:
    values: Mapping[relax.Var, relax.Expr]
    users: Mapping[relax.Var, frozenset[relax.Var | None]]  # None: main's result

    def only_user(self, var: relax.Var, what: str) -> relax.Var:
        users = self.users.get(var, frozenset())
        if None in users:
            raise Declined(f"{what} is an output of the model")
        if len(users) != 1:
            raise Declined(f"{what} has {len(users)} users, not one")
        (user,) = users
        return user


@dataclass
class _Plan:
    """What becomes of the variables of main: new calls, made when their new arguments are known."""

    linears: dict[relax.Var, tuple[list[relax.Var], int]] = field(default_factory=dict)  # -> weight, bias; columns
    attentions: dict[relax.Var, int] = field(default_factory=dict)  # -> heads left
    reshapes: dict[relax.Var, list[tvm.ir.Expr]] = field(default_factory=dict)  # -> new shape


@dataclass(frozen=True)
class _Site:
    """One attention with the linears around it."""

    attention: relax.Var
    attrs: Mapping[str, object]
    projections: tuple[tuple[relax.Var, relax.Var | None], ...]  # linear, and the reshape behind it
    joined: relax.Var  # reshape of the heads to columns
    output: relax.Var  # the output projection
    graph: _Graph

    @classmethod
    def of(cls, var: relax.Var, call: relax.Call, graph: _Graph, editor: WeightEditor) -> _Site:
        attrs = attrs_of(call)
        if attrs["num_heads"] != attrs["num_kv_heads"]:
            raise Declined("its query heads share key and value heads")
        if attrs.get("has_sinks"):
            raise Declined("every head has a sink")
        operands = 1 if attrs.get("packed") else 3
        sources, extras = call.args[:operands], call.args[operands:]
        if attrs.get("has_bias"):
            bias = extras[1 if attrs.get("has_key_mask") else 0]
            if not same_dimension(bias.ty.shape.values[1], 1):
                raise Declined("its bias has a plane per head")
        projections = tuple(_projection(arg, graph, editor) for arg in sources)
        joined = graph.only_user(var, "the attention's result")
        if op_name(graph.values[joined]) != "relax.reshape":
            raise Declined("its heads are not joined by a reshape")
        output = graph.only_user(joined, "the joined heads")
        _check_linear(output, graph, editor)
        heads, d = attrs["num_heads"], attrs["head_dim"]
        if not same_dimension(joined.ty.shape.values[-1], heads * d):
            raise Declined(f"its heads are joined to {joined.ty}, not to {heads * d} columns")
        return cls(var, attrs, projections, joined, output, graph)

    def weak(self, editor: WeightEditor, threshold: float) -> set[int]:
        """Heads whose norm of value columns times norm of output rows is below `threshold` of the mean."""
        if not threshold:
            return set()
        heads, d = self.attrs["num_heads"], self.attrs["head_dim"]
        values = _columns(editor, self.graph.values[self.projections[-1][0]])[:, -heads * d :]
        rows = _columns(editor, self.graph.values[self.output])
        importance = np.array(
            [
                np.linalg.norm(values[:, h * d : (h + 1) * d]) * np.linalg.norm(rows[h * d : (h + 1) * d])
                for h in range(heads)
            ]
        )
        return {int(h) for h in np.flatnonzero(importance < threshold * importance.mean())}

    def prune(self, gone: list[int], editor: WeightEditor, plan: _Plan) -> None:
        heads, d = self.attrs["num_heads"], self.attrs["head_dim"]
        if any(h not in range(heads) for h in gone):
            raise UsageError(
                f"expected heads among 0..{heads - 1}, found {gone}: correct [passes.prune_heads] in halo.toml"
            )
        left = [h for h in range(heads) if h not in gone]
        if not left:
            raise Declined("no head would be left")
        columns = [h * d + i for h in left for i in range(d)]
        label = "heads" + "_".join(map(str, left))
        parts = 3 if self.attrs.get("packed") else 1
        wide = [part * heads * d + c for part in range(parts) for c in columns]
        for linear, reshape in self.projections:
            plan.linears[linear] = (_taken(editor, self.graph.values[linear], wide, label, output=True), len(wide))
            if reshape is not None:
                batch, sequence, *_ = reshape.ty.shape.values
                plan.reshapes[reshape] = [batch, sequence, len(left), d]
        plan.attentions[self.attention] = len(left)
        *lead, _ = self.joined.ty.shape.values
        plan.reshapes[self.joined] = [*lead, len(columns)]
        out = self.graph.values[self.output]
        plan.linears[self.output] = (_taken(editor, out, columns, label, output=False), attrs_of(out)["n"])


def _names(pattern: str, layer: str | None) -> bool:
    return layer is not None and fnmatchcase(layer, pattern)


def _check_layers(patterns: Sequence[str], graph: _Graph) -> None:
    """A pattern that names no attention is a typing error, not a wish for nothing."""
    attentions = (v for v in graph.values.values() if (o := operator_of(v)) is not None and o.name == "attention")
    layers = {layer for call in attentions if (layer := attrs_of(call).get("layer")) is not None}
    for pattern in patterns:
        if not any(_names(pattern, layer) for layer in layers):
            known = ", ".join(sorted(layers)) or "none (this model's importer names no layers)"
            raise UsageError(
                f"expected a layer with attention for {pattern!r}, found none: the layers are {known}; "
                "correct [passes.prune_heads] in halo.toml"
            )


def _parse(text: str) -> tuple[str, set[int]]:
    pattern, _, numbers = str(text).rpartition(":")
    if not pattern or not numbers.split() or not all(n.isdecimal() for n in numbers.split()):
        raise UsageError(
            f'expected heads like "h.0.attn: 1 5", found {text!r}: correct [passes.prune_heads] in halo.toml'
        )
    return pattern.strip(), {int(n) for n in numbers.split()}


def _projection(arg: relax.Expr, graph: _Graph, editor: WeightEditor) -> tuple[relax.Var, relax.Var | None]:
    reshape = None
    if op_name(graph.values.get(arg)) == "relax.reshape":
        graph.only_user(arg, "a projection")
        reshape, arg = arg, graph.values[arg].args[0]
    _check_linear(arg, graph, editor)
    graph.only_user(arg, "a projection")
    return arg, reshape


def _check_linear(var: relax.Expr, graph: _Graph, editor: WeightEditor) -> None:
    value = graph.values.get(var)
    operator = operator_of(value)
    if operator is None or operator.name != "linear" or any(editor.name(arg) is None for arg in value.args[1:]):
        raise Declined("a projection is no halo.linear of parameters")


def _columns(editor: WeightEditor, linear: relax.Call) -> np.ndarray:
    """The weight of a linear as [k, n]; only the threshold looks at weights."""
    weight = editor.params.materialise(editor.name(linear.args[1]))
    return weight if attrs_of(linear)["layout"] == "kn" else weight.T


def _taken(
    editor: WeightEditor, linear: relax.Call, indices: list[int], label: str, *, output: bool
) -> list[relax.Var]:
    """Weight (and bias) of `linear` with some output columns, or some input rows, only."""
    name = editor.name(linear.args[1])
    axis = int(output) if attrs_of(linear)["layout"] == "kn" else int(not output)
    shape = list(editor.params.shape(name))
    shape[axis] = len(indices)
    taken = [editor.derive(f"{name}|{label}", "take", [name], shape, indices=tuple(indices), axis=axis)]
    for bias in linear.args[2:]:
        name = editor.name(bias)
        how = {"indices": tuple(indices), "axis": 0}
        taken.append(editor.derive(f"{name}|{label}", "take", [name], [len(indices)], **how) if output else bias)
    return taken


@relax.expr_functor.mutator
class _Pruner(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, plan: _Plan) -> None:
        super().__init__(mod)
        self._plan = plan

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, plan = binding.var, self._plan
        if var not in plan.linears and var not in plan.attentions and var not in plan.reshapes:
            super().visit_var_binding_(binding)
            return
        args = [self.visit_expr(arg) for arg in binding.value.args]
        if var in plan.linears:
            weights, n = plan.linears[var]
            new = OPERATORS["linear"].call(args[0], *weights, **{**attrs_of(binding.value), "n": n})
        elif var in plan.attentions:
            left = plan.attentions[var]
            new = OPERATORS["attention"].call(
                *args, **{**attrs_of(binding.value), "num_heads": left, "num_kv_heads": left}
            )
        else:
            new = relax.op.reshape(args[0], plan.reshapes[var])
        put(self, var, new)
