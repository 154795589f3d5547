"""Local rewrites: one call at a time, with sight of what its arguments are bound to or were made into."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from ..relay_ops.operator import op_name
from .graph_pass import Report, replace_main, with_blocks

# (call, value of an argument) -> (replacement, what it was) or None
Rule = Callable[[relax.Call, Callable[[relax.Expr], relax.Expr]], tuple[relax.Expr, str] | None]


def rewrite_calls(mod: tvm.IRModule, rule: Rule) -> tuple[tvm.IRModule, Report]:
    """Apply `rule` to every call of main, in order, and count what it did by name.

    A replacement of another rank or element type than the call's is dropped: a rule that reads a constant of one
    element as a number does not see the axes that it adds.
    """
    func = mod["main"]  # other functions, branches and loops, are left as they are
    values: dict[relax.Var, relax.Expr] = {}
    counts: dict[str, int] = {}
    # What a rule made: the same difference behind it is that one, as a norm reads its own twice.
    differences: dict[tuple[relax.Expr, ...], relax.Var] = {}

    def value(expr: relax.Expr) -> relax.Expr:
        return values.get(expr, expr) if isinstance(expr, relax.Var) else expr

    builder = relax.BlockBuilder()

    def rewritten(expr: relax.Expr, before: list[relax.Binding], variable: type) -> relax.Expr:
        """`expr` by the rule as often as it applies; calls inside what the rule makes are bound `before` it."""
        while isinstance(expr, relax.Call) and (found := rule(expr, value)) is not None:
            replacement, what = found
            made = _bound(
                builder, replacement, lambda inner: bind(rewritten(inner, before, variable), before, variable)
            )
            if not _takes_the_place(made.ty, expr.ty):
                break
            counts[what] = counts.get(what, 0) + 1
            expr = made
        return expr

    def bind(expr: relax.Expr, before: list[relax.Binding], variable: type) -> relax.Expr:
        if not isinstance(expr, relax.Call):
            return expr
        var = variable("made", expr.ty)
        before.append(relax.VarBinding(var, expr))
        values[var] = expr
        if op_name(expr) == "relax.subtract":
            differences[tuple(map(value, expr.args))] = var
        return var

    blocks = []
    for block in func.body.blocks:
        differences.clear()
        bindings: list[relax.Binding] = []
        variable = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding):
                expr = rewritten(binding.value, bindings, variable)
                if op_name(expr) == "relax.subtract":
                    expr = differences.get(tuple(map(value, expr.args)), expr)
                if not expr.same_as(binding.value):
                    binding = relax.VarBinding(binding.var, expr)
                values[binding.var] = value(binding.value)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    if not counts:
        return mod, {"rewritten": {}}
    clean = [relax.transform.Normalize(), relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(clean)(replace_main(mod, with_blocks(func, blocks))), {"rewritten": counts}


def _takes_the_place(new: relax.Type, old: relax.Type) -> bool:
    """Whether two types are of one rank and element type, where they are tensors."""
    tensors = isinstance(new, relax.TensorType) and isinstance(old, relax.TensorType)
    return not tensors or (new.ndim == old.ndim and new.dtype == old.dtype)


def _bound(builder: relax.BlockBuilder, expr: relax.Expr, bind: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
    """`expr` with its type, and a variable for each call among its arguments: what they are is seen by the rule."""
    if not isinstance(expr, relax.Call) or not any(isinstance(arg, relax.Call) for arg in expr.args):
        return builder.normalize(expr)
    made: dict[relax.Expr, relax.Expr] = {}
    for arg in expr.args:
        if isinstance(arg, relax.Call) and arg not in made:
            made[arg] = bind(_bound(builder, arg, bind))
    args = [made.get(arg, arg) if isinstance(arg, relax.Call) else arg for arg in expr.args]
    return builder.normalize(relax.Call(expr.op, args, expr.attrs, expr.ty_args))


def put(mutator: relax.PyExprMutator, var: relax.Var, value: relax.Expr) -> None:
    """`value` in the place of `var`; an output keeps its variable."""
    if not isinstance(var, relax.DataflowVar):
        mutator.builder_.emit_normalized(relax.VarBinding(var, mutator.builder_.normalize(value)))
    else:
        mutator.set_var_remap(var, value if isinstance(value, relax.Var) else mutator.builder_.emit(value))


class BlockMutator(relax.PyExprMutator):
    """A mutator that remembers in `made` what it made of values, as long as the block that holds it.

    A dataflow variable is unknown outside its block, and what a branch makes outside the branch.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.made: dict = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        return self._alone(super().visit_dataflow_block_, block)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        return self._alone(super().visit_binding_block_, block)

    def _alone(
        self, visit: Callable[[relax.BindingBlock], relax.BindingBlock], block: relax.BindingBlock
    ) -> relax.BindingBlock:
        around, self.made = self.made, {}
        visited = visit(block)
        self.made = around
        return visited
