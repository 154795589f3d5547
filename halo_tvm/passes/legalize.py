"""Lower every operator call to a PrimFunc.

Overrides of halo.toml for an operator or a layer are written into the call before, so that they reach
the function's main block and keep it apart from equal functions of other layers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax, te

from ..relay_ops._activation import ACTIVATIONS, Activation
from ..relay_ops._operator import OVERRIDE, attrs_of, operator_of
from ._pass import Context, Pass, Report, rebuild, replace_main
from .name_rows import name_rows


@dataclass(frozen=True)
class Legalize(Pass):
    """Relax operators -> call_tir."""

    name = "legalize"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        overridden: list[str] = []

        def rewrite(call: relax.Call) -> relax.Expr:
            operator = operator_of(call)
            attrs = attrs_of(call) if operator else {}
            asked = context.overrides.of(operator.name, attrs.get("layer")) if operator else {}
            if not asked:
                return call
            overridden.append(f"{operator.name} of {attrs.get('layer')}")
            return operator.call(*call.args, **attrs, **{OVERRIDE: json.dumps(asked, sort_keys=True)})

        mod = name_rows(relax.transform.Normalize()(replace_main(mod, rebuild(mod["main"], rewrite))))
        # A reshape of contiguous rows is a view: it stays an operator, so that no fusion turns it into a copy.
        own = {
            "relax.reshape": lambda _bb, call: call,
            **{a.op: _activation(name, a) for name, a in ACTIVATIONS.items()},
        }
        mod = relax.transform.LegalizeOps(own)(mod)
        functions = sum(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values())
        return mod, {"functions": functions, "overridden": overridden}


def _activation(name: str, activation: Activation) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    """One block named after the activation, where TVM's own lowering makes a chain of ten."""

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        def compute(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *i: activation.te(x[i]), name=name)

        return bb.call_te(compute, call.args[0], primfunc_name_hint=name)

    return lower
