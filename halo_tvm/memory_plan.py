"""The memory of a run's activations: tensors that are never alive together share an allocation.

Before -> after, in a main whose kernels write to tensors they are given
    alloc = builtin.alloc_tensor([m, 512]);  f(x, alloc)
        ->   storage = memory.alloc_storage([bytes]);  alloc = memory.alloc_tensor(storage, 0, [m, 512]);  f(x, alloc)
Serves
    tensors whose size is bounded, which kernels write and read and reshapes, and tuples of them, view; of main, and of
    functions that compute a part of a batch, which leave none to their caller
Leaves alone
    results, and what anything else than a kernel or a view uses: branches, loops, calls of the runtime
    tensors of unbounded size: TVM's own plan, which goes through the tensors in their order, shares them
The largest tensors choose first: an allocation is as large as the first tensor it gets. Every tensor starts where its
allocation does, as TVM's kernels refuse an offset: places inside of one arena would save nothing more in a
transformer, whose sizes fit into each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, relax, tirx

from .dimensions import itemsize_of
from .passes.graph_pass import is_part
from .relay_ops.operator import op_name

ALIGNMENT = 64  # bytes: a cache line, the widest vector
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_copy")
_FAR = 1 << 50  # bytes: a size beyond is a bound that means none


@dataclass
class Activation:
    """A tensor of a run: its largest size, and the first and last binding that needs it."""

    size: int
    first: int
    last: int
    storage: int = -1  # the number of its allocation


@tvm.transform.module_pass(opt_level=0, name="halo.PlanActivations")
class PlanActivations:
    """The pass, for a module behind CallTIRRewrite; what it leaves alone is TVM's to plan."""

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        out = mod.clone()
        for gvar, func in mod.functions_items():
            if gvar.name_hint != "main" and not (func.attrs and "halo.params" in func.attrs) and not is_part(func):
                continue  # no entry point: a kernel, or what an importer made of a branch or a loop
            found = _activations(func, mod)
            if len(found) >= 2:
                sizes = place(list(found.values()))
                out[gvar] = _placed(func, found, sizes)
        return out


def place(tensors: Sequence[Activation]) -> list[int]:
    """Set the allocation of every tensor; returns their sizes in bytes."""
    storages: list[list[Activation]] = []
    for tensor in sorted(tensors, key=lambda t: (-t.size, t.first)):
        free = (i for i, held in enumerate(storages) if not any(_together(tensor, other) for other in held))
        tensor.storage = max(free, default=len(storages))  # the latest is the smallest that is large enough
        if tensor.storage == len(storages):
            storages.append([])
        storages[tensor.storage].append(tensor)
    return [held[0].size for held in storages]


def _together(a: Activation, b: Activation) -> bool:
    return a.first <= b.last and b.first <= a.last


def _activations(func: relax.Function, mod: tvm.IRModule) -> dict[relax.Var, Activation]:
    """The tensors of `func` that the arena can hold, by the variable they are allocated to."""
    bounds = _bounds(func)
    roots: dict[relax.Var, frozenset[relax.Var]] = {}  # a variable -> the allocations it is a view of
    tuples: dict[relax.Var, relax.Tuple] = {}
    found: dict[relax.Var, Activation] = {}
    others: set[relax.Var] = set()

    def use(expr: relax.Expr, step: int, *, kept: bool) -> None:
        for var in relax.analysis.free_vars(expr):
            for root in roots.get(var, ()):
                found[root].last = step
                if kept:
                    others.add(root)

    def viewed(value: relax.Expr, name: str) -> relax.Expr | None:
        """What `value` is another name of: a tensor, or a tuple of tensors; None for what is no view."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in tuples:
            return tuples[value.tuple_value].fields[value.index]
        if name in _VIEWS:
            return value.args[0]
        return value if isinstance(value, relax.Var | relax.Tuple) else None

    step = 0
    for block in func.body.blocks:
        for binding in block.bindings:
            step += 1
            value = binding.value
            name = op_name(value)
            source = viewed(value, name)
            if name == "relax.builtin.alloc_tensor":
                size = _size(value, bounds)
                if size is not None:
                    roots[binding.var] = frozenset([binding.var])
                    found[binding.var] = Activation(size, step, step)
            elif source is not None:
                use(source, step, kept=False)
                roots[binding.var] = frozenset().union(
                    *(roots.get(var, frozenset()) for var in relax.analysis.free_vars(source))
                )
                whole = tuples.get(source) if isinstance(source, relax.Var) else source
                if isinstance(whole, relax.Tuple):
                    tuples[binding.var] = whole
            else:
                called = mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar) else None
                use(value, step, kept=not isinstance(called, tirx.PrimFunc) and not is_part(called))
    use(func.body.body, step + 1, kept=True)
    return {var: tensor for var, tensor in found.items() if var not in others}


def _bounds(func: relax.Function) -> dict[tirx.Var, int]:
    """The largest values of the sizes that the parameters of `func` declare.

    The attribute names them; a size that the run finds, as a count of matches, may bear the name of one of them.
    """
    named = {str(k): int(v) for k, v in (func.attrs.get("tir_var_upper_bound") or {}).items()}
    declared = [var for param in func.params for var in relax.analysis.tir_vars_in_type(param.ty)]
    return {var: named[var.name] for var in declared if var.name in named}


def _size(alloc: relax.Call, bounds: Mapping[tirx.Var, int]) -> int | None:
    """The most bytes of an allocation, whole cache lines; None where no bound is known."""
    analyzer = tvm.sym.Analyzer()
    total = itemsize_of(alloc.args[1].value)
    for dim in alloc.args[0].values:
        for var in tirx.analysis.undefined_vars(dim) if not isinstance(dim, tirx.IntImm) else ():
            if var not in bounds:
                return None
            analyzer.bind(var, ir.Range(tirx.IntImm("int64", 0), tirx.IntImm("int64", bounds[var] + 1)))
        most = int(analyzer.const_int_bound(dim).max_value)
        if not 0 <= most * total < _FAR:
            return None
        total *= most
    return -(-total // ALIGNMENT) * ALIGNMENT


def _placed(func: relax.Function, found: Mapping[relax.Var, Activation], sizes: Sequence[int]) -> relax.Function:
    """`func` with its allocations in front and the tensors of `found` in them."""
    builder = relax.BlockBuilder()
    storages: list[relax.VarBinding] = []
    for number, size in enumerate(sizes):
        value = builder.normalize(relax.op.memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8"))
        storages.append(relax.VarBinding(relax.Var(f"storage{number}", value.ty), value))
    blocks = []
    for block in func.body.blocks:
        bindings = [] if blocks else list(storages)
        for binding in block.bindings:
            tensor = found.get(binding.var)
            if tensor is not None:
                shape, dtype = binding.value.args[0], str(binding.value.args[1].value)
                value = relax.op.memory.alloc_tensor(storages[tensor.storage].var, 0, shape, dtype)
                binding = relax.VarBinding(binding.var, builder.normalize(value))
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    new = relax.Function(func.params, relax.SeqExpr(blocks, func.body.body), func.ret_ty, func.is_pure)
    return new.with_attrs({key: func.attrs[key] for key in func.attrs.keys()})
