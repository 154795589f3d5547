"""What a match_cast reads stays a value of its own.

TVM's fusion does not see that a match_cast reads. Where half feeds a concat, and through a cast and a product that
concat again, half and concat become one function, which takes the product that is made of its own result. An output of
its block is not fused with what reads it.
"""

from __future__ import annotations

import tvm
from tvm import relax

from .graph_pass import replace_main


def keep_for_casts(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose match_casts in main read no variable that fusion may take away."""
    read: set[relax.Var] = set()

    def note(expr: relax.Expr) -> None:
        for block in expr.blocks if isinstance(expr, relax.SeqExpr) else ():
            casts = [b.value for b in block.bindings if isinstance(b, relax.MatchCast)]
            read.update(value for value in casts if isinstance(value, relax.DataflowVar))

    relax.analysis.post_order_visit(mod["main"], note)
    return kept_apart(mod, read)


def kept_apart(mod: tvm.IRModule, kept: set[relax.Var]) -> tvm.IRModule:
    """`mod` in whose main fusion takes none of `kept` away: they are outputs of their blocks."""
    return replace_main(mod, _Keeper(mod, kept).visit_expr(mod["main"])) if kept else mod


@relax.expr_functor.mutator
class _Keeper(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, kept: set[relax.Var]) -> None:
        super().__init__(mod)
        self._kept = kept

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self._kept or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        kept = relax.Var(binding.var.name, binding.var.ty)
        self.set_var_remap(binding.var, kept)
        self.builder_.emit_normalized(relax.VarBinding(kept, self.visit_expr(binding.value)))
