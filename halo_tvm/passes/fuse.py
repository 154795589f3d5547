"""Vertical fusion: element-wise neighbours join the function that makes or takes their tensor.

A candidate is a group that FuseOps would form. Its benefit is the traffic it saves, at the model's
typical sizes:
    benefit = sum of traffic(part) - traffic(fused),   traffic = bytes read and written by one function
What reads an operand at several places takes in only what is cheap to compute so often (`_repeated`).
A candidate without benefit is not taken: its functions become opaque to FuseOps and the grouping is redone. Nor is
one that puts parts of a product's columns behind it (`_column_parts`) where no rule of the target serves that,
nor one that FuseTIR makes no kernel of: it takes a size by itself beside sizes that no tensor of it has.
Afterwards a quantise joins the group of its rows, see `_join_quantise`.
The report lists what was refused, and as taken the groups that the second grouping really formed.
Equal functions are merged afterwards, so that a model of twelve equal layers has one set of functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..dimensions import size_of, tensor_bytes
from ..relay_ops.operator import ELEMENTWISE, INJECTIVE, OPAQUE, TAKES_STAGES
from ..targets import Target
from ..tir_schedules.blocks import Block, blocks, loads, uses, without_loads
from ._behind_sums import behind_sums
from ._bytes_between import keep_bytes
from ._cast_operands import keep_for_casts
from ._column_parts import column_parts
from ._inline_small import inline_small
from ._inner_sizes import readers_of_other_spellings
from ._join_quantise import join_quantise
from ._order import in_order
from ._repeated import repeating_functions
from ._served_groups import why_unserved
from ._size_order import with_sizes_in_order
from .caches import with_readers_apart
from .graph_pass import Context, Pass, Report, bindings, op_name, replace_main
from .name_rows import casts, resolve_rows

_SPELLED = "a function in it spells the sizes of what it reads otherwise than the one that makes it"
_SPREAD = "it sums, and no rule computes what runs over the same places behind the sum with it"
_ELEMENTWISE = (0, 1)  # TVM's OpPatternKind.kElemWise and kBroadcast


@dataclass(frozen=True)
class Fuse(Pass):
    """FuseOps and FuseTIR under the benefit formula."""

    name = "fuse"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        mod = keep_for_casts(with_readers_apart(mod))
        mod = keep_bytes(_with_patterns(mod))
        parts = column_parts(mod)
        mod = _with_pattern(mod, parts, ELEMENTWISE)
        sizes = _row_sizes(mod, context.typical)
        mod = _with_pattern(mod, repeating_functions(mod, sizes), TAKES_STAGES)
        refused: list[Report] = []
        while True:
            grouped = in_order(relax.transform.FuseOps()(mod))
            formed = _candidates(grouped, sizes)
            worthless = [{**c, "reason": "it saves no traffic"} for c in formed if c["benefit_bytes"] <= 0]
            loose = [{**c, "reason": "it takes sizes in two ways"} for c in formed if _loose(grouped[c["function"]])]
            if loose and not worthless:
                mod = _with_pattern(mod, _sized(_functions_of(loose), mod), OPAQUE)
                refused += loose
                continue
            others = {} if worthless else _read_otherwise(formed, grouped)
            if others:
                mod = _with_pattern(mod, set().union(*others.values()), OPAQUE)
                refused += [{**c, "reason": _SPELLED} for c in formed if c["function"] in others]
                continue
            groups = {} if worthless else {c["function"]: c["functions"] for c in formed}
            spread = behind_sums(groups, grouped, sizes, context.target)
            if spread:
                mod = _with_pattern(mod, set().union(*spread.values()), INJECTIVE)
                refused += [{**c, "reason": _SPREAD} for c in formed if c["function"] in spread]
                continue
            unserved = [] if worthless else _unserved(formed, parts, grouped, context.target)
            if not worthless and not unserved:
                break
            refused += [*worthless, *unserved]
            apart = parts & _functions_of(unserved)
            mod = _with_pattern(_with_pattern(mod, _functions_of(worthless), OPAQUE), apart, INJECTIVE)
            parts -= apart
        grouped, quantised = join_quantise(grouped, context.target)
        if quantised:
            grouped = in_order(relax.transform.Normalize()(grouped))
            formed = _candidates(grouped, sizes)
        fused = with_sizes_in_order(resolve_rows(_with_own_types(relax.transform.FuseTIR()(grouped))))
        return inline_small(relax.transform.DeadCodeElimination()(fused)), {
            "candidates": [{**c, "taken": True} for c in formed] + [{**c, "taken": False} for c in refused],
            "saved_bytes": sum(c["benefit_bytes"] for c in formed),
            "quantised": quantised,
        }


def _with_own_types(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose calls of kernels in main have the types that the kernels and their arguments say.

    FuseTIR may write the product that a row variable stands for in place of the variable, which is what the kernel has.
    """
    typed = _Typed(mod)
    func = typed.visit_expr(mod["main"])
    return replace_main(typed.builder_.get(), func) if typed.changed else mod


@relax.expr_functor.mutator
class _Typed(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self.changed = False

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if op_name(value) != "relax.call_tir" or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        args, ty = [self.visit_expr(arg) for arg in value.args], value.ty_args[0]
        own = _result_type(self._mod[args[0]], args[1].fields, ty)
        if own is None or tvm_ffi.structural_equal(own, ty):
            super().visit_var_binding_(binding)
            return
        self.changed = True
        self.set_var_remap(binding.var, self.builder_.emit(relax.Call(value.op, args, value.attrs, [own])))


def _result_type(func: tirx.PrimFunc, args: Sequence[relax.Expr], ty: relax.Type) -> relax.Type | None:
    """The type of the one result of `func`, by the sizes of its arguments; None where they do not say it."""
    if not isinstance(ty, relax.TensorType) or len(func.params) != len(args) + 1:
        return None
    sizes: dict[tirx.Var, tvm.ir.Expr] = {}
    for param, arg in zip(func.params, args):
        if isinstance(getattr(arg.ty, "shape", None), relax.ShapeExpr):
            sizes.update({d: n for d, n in zip(param.shape, arg.ty.shape.values) if isinstance(d, tirx.Var)})
        elif isinstance(param, tirx.Var) and isinstance(arg.ty, tvm.ir.PrimType):
            sizes[param] = arg  # a size that no argument has by itself is one of its own
    unknown: list[tirx.Var] = []

    def known(var: tirx.Var) -> tvm.ir.Expr:
        if var not in sizes:
            unknown.append(var)
        return sizes.get(var, var)

    shape = [tvm_ffi.structural_map(dim, (tirx.Var, known)) for dim in func.params[-1].shape]
    return None if unknown else relax.TensorType(shape, ty.dtype)


def _with_patterns(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose functions say how they may be fused.

    What runs over other sizes than what it reads is no stage of a product, though TVM takes it for one where it reads
    at its own place alone: padding behind the end runs over more than the product does, a slice from the beginning
    over less.
    """
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    for gvar, func in list(mod.functions_items()):
        if isinstance(func, tirx.PrimFunc) and func.attrs and func.attrs.get("op_pattern") in _ELEMENTWISE:
            if any(_looks_at_its_place(block) or _reads_a_part(block) for block in blocks(func)):
                mod.update_func(gvar, func.with_attr("op_pattern", INJECTIVE))
    return mod


def _with_pattern(mod: tvm.IRModule, functions: set[str], pattern: int) -> tvm.IRModule:
    """`mod` in which FuseOps takes `functions` for functions of `pattern`."""
    mod = mod.clone()
    for name in functions:
        mod.update_func(mod.get_global_var(name), mod[name].with_attr("op_pattern", pattern))
    return mod


def _functions_of(candidates: Sequence[Report]) -> set[str]:
    return {name for c in candidates for name in c["functions"]}


def _unserved(formed: Sequence[Report], parts: set[str], grouped: tvm.IRModule, target: Target) -> list[Report]:
    """The candidates with a function of `parts` that no rule serves as one kernel; layers alike are asked for once."""
    reasons: dict[tuple[str, ...], str] = {}
    for candidate in formed:
        names = tuple(candidate["functions"])
        if names in reasons or not parts & set(names):
            continue
        reason = why_unserved(grouped[candidate["function"]], grouped, target)
        if reason is not None:
            reasons[names] = reason
    return [{**c, "reason": reasons[tuple(c["functions"])]} for c in formed if tuple(c["functions"]) in reasons]


def _read_otherwise(formed: Sequence[Report], grouped: tvm.IRModule) -> dict[str, set[str]]:
    """Group -> those of its functions that FuseTIR would not join with the makers of what they read."""
    found = {c["function"]: readers_of_other_spellings(grouped[c["function"]], grouped) for c in formed}
    return {group: readers for group, readers in found.items() if readers}


def _loose(group: relax.Function) -> bool:
    """Whether `group` takes a size as a number of its own, and others in a shape because no tensor has them."""
    kinds = [type(param.ty) for param in group.params]
    return tvm.ir.PrimType in kinds and relax.ShapeType in kinds


def _sized(functions: set[str], mod: tvm.IRModule) -> set[str]:
    """Those of `functions` that take a size as a number."""
    return {f for f in functions if any(isinstance(param.ty, tvm.ir.PrimType) for param in mod[f].params)}


def _looks_at_its_place(block: Block) -> bool:
    """Whether the value of `block` depends on its iterators otherwise than by what it reads."""
    if block.store is None:
        return False
    bare = without_loads(block.store.value)
    return any(uses(bare, var) for var in block.vars)


def _reads_a_part(block: Block) -> bool:
    """Whether an iterator of `block` that is a place of what it reads ends before the tensor does."""
    extents = dict(zip(block.vars, block.extents))
    places = [pair for load in loads(block.node.body) for pair in zip(load.indices, load.source.shape, strict=True)]
    return any(at in extents and not tvm_ffi.structural_equal(extents[at], size) for at, size in places)


@dataclass(frozen=True)
class MergeFunctions(Pass):
    """Keep one of equal functions, and put row products back into main."""

    name = "merge_functions"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        before = _count(mod)
        mod = resolve_rows(with_equal_functions_once(mod))
        return mod, {"functions_before": before, "functions_after": _count(mod)}


def with_equal_functions_once(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` in which calls of equal PrimFuncs are calls of the first of them, and only that one is left."""
    kept: dict[int, list[tuple[tvm.ir.GlobalVar, tirx.PrimFunc]]] = {}
    merged: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    for gvar, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        same = kept.setdefault(tvm_ffi.structural_hash(func), [])
        twin = next((g for g, f in same if tvm_ffi.structural_equal(f, func)), None)
        if twin is None:
            same.append((gvar, func))
        else:
            merged[gvar] = twin
    return relax.transform.DeadCodeElimination()(with_calls_of(mod, merged))


def with_calls_of(mod: tvm.IRModule, others: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> tvm.IRModule:
    """`mod` whose Relax functions call `others` in place of their keys."""
    renamer = _Renamer(mod, others)
    for gvar, func in list(mod.functions_items()):
        if isinstance(func, relax.Function):
            renamer.builder_.update_func(gvar, renamer.visit_expr(func))
    return renamer.builder_.get()


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, merged: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> None:
        super().__init__(mod)
        self._merged = merged

    def visit_global_var_(self, gvar: tvm.ir.GlobalVar) -> relax.Expr:
        return self._merged.get(gvar, gvar)


def _count(mod: tvm.IRModule) -> int:
    return sum(isinstance(f, tirx.PrimFunc) for f in mod.functions.values())


def _candidates(grouped: tvm.IRModule, sizes: Mapping[str, int]) -> list[Report]:
    """Every group of more than one function that FuseOps formed in main, with its bytes before and after."""
    found = []
    for binding in bindings(grouped["main"]):
        call = binding.value
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.GlobalVar):
            continue
        group = grouped[call.op]
        if not isinstance(group, relax.Function) or not group.attrs or not group.attrs.get("Primitive"):
            continue  # an importer's own function: a branch, a loop
        parts = [b.value for b in bindings(group) if op_name(b.value) == "relax.call_tir"]
        before = sum(_traffic([*part.args[1], part.ty_args[0]], sizes) for part in parts)
        after = _traffic([*group.params, group.ret_ty], sizes)
        found.append(
            {
                "function": call.op.name_hint,
                "functions": [part.args[0].name_hint for part in parts],
                "bytes_apart": before,
                "bytes_fused": after,
                "benefit_bytes": before - after,
            }
        )
    return found


def _row_sizes(mod: tvm.IRModule, typical: Mapping[str, int]) -> dict[str, int]:
    """Typical sizes of all dimension variables by name, row variables included."""
    sizes = dict(typical)
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                for dim, product in casts(binding):
                    if isinstance(dim, tirx.Var):
                        sizes.setdefault(dim.name, size_of(product, sizes))
    return sizes


def _traffic(values: list[relax.Expr | relax.Type], sizes: Mapping[str, int]) -> int:
    """Bytes of tensors (or tensor types), each counted once."""
    types = (value if isinstance(value, relax.Type) else value.ty for value in values)
    return sum(sum(tensor_bytes(ty, sizes)) for ty in types)
