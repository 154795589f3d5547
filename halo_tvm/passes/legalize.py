"""Lower every operator call to a PrimFunc.

Overrides of halo.toml for an operator or a layer are written into the call before, so that they reach
the function's main block and keep it apart from equal functions of other layers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from ..errors import UsageError
from ..relay_ops.operator import OVERRIDE, attrs_of, operator_of
from ..relay_ops.parts.activation import ACTIVATIONS, Activation
from . import _casts, _division, _extremes, _sums, _zeros
from ._data_dependent import lower_data_dependent
from ._in_order import lower_in_order
from .graph_pass import Context, Pass, Report, rebuild, replace_main
from .name_rows import name_rows


@dataclass(frozen=True)
class Legalize(Pass):
    """Relax operators -> call_tir."""

    name = "legalize"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        overridden: list[str] = []
        layers: set[str] = set()

        def rewrite(call: relax.Call) -> relax.Expr:
            operator = operator_of(call)
            attrs = attrs_of(call) if operator else {}
            layers.update([attrs["layer"]] if "layer" in attrs else [])
            asked = context.overrides.of(operator.name, attrs.get("layer")) if operator else {}
            if not asked:
                return call
            overridden.append(f"{operator.name} of {attrs.get('layer')}")
            return operator.call(*call.args, **attrs, **{OVERRIDE: json.dumps(asked, sort_keys=True)})

        rewritten = rebuild(mod["main"], rewrite)
        _check_layers(context, layers)
        mod = name_rows(relax.transform.Normalize()(replace_main(mod, rewritten)))
        # A reshape of contiguous rows is a view: it stays an operator, so that no fusion turns it into a copy.
        own = {
            "relax.reshape": lambda _bb, call: call,
            **_casts.lowerings(),
            **_extremes.lowerings(),
            **_sums.lowerings(),
            **_division.lowerings(),
            **_zeros.lowerings(_division.lowerings()),
            **{a.op: _activation(name, a) for name, a in ACTIVATIONS.items() if a.op},
        }
        gpu = context.target.spec.gpu
        mod = lower_data_dependent(lower_in_order(mod), gpu=gpu)
        with context.target.tvm:
            mod = relax.backend.DispatchSortScan()(mod)
        mod = _without_scopes(relax.transform.LegalizeOps(own)(mod))
        functions = sum(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values())
        return mod, {"functions": functions, "overridden": overridden}


def _without_scopes(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's lowerings of scatters call their parts scopes, which mean nothing and of which its code generator warns."""
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, _inside), order="post")
            if not body.same_as(func.body):
                mod[gvar] = func.with_body(body)
    return mod


def _inside(statement: tirx.AttrStmt) -> tirx.Stmt:
    return statement.body if statement.attr_key == "pragma_scope" else statement


def _check_layers(context: Context, layers: set[str]) -> None:
    """A pattern that names no layer of the model is a typing error, not a wish for nothing."""
    layers = layers | context.elsewhere.layers
    used = {pattern for layer in layers for pattern in context.overrides.matching(layer)}
    for pattern in context.overrides.layers:
        if pattern not in used:
            known = ", ".join(sorted(layers)[:6])
            what = f"the layers are {known}; correct halo.toml" if known else "use [operators.NAME] for this model"
            raise UsageError(f"expected a layer for [layers.{pattern!r}], found none: {what}")


def _activation(name: str, activation: Activation) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    """One block named after the activation, where TVM's own lowering makes a chain of ten."""

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        def compute(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *i: activation.te(x[i]), name=name)

        return bb.call_te(compute, call.args[0], primfunc_name_hint=name)

    return lower
