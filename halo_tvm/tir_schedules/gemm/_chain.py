"""Recognise what the rule serves: a packed linear block and the element-wise stages behind it."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx
from tvm.sym import Analyzer

from ...errors import Declined
from .._blocks import Block, blocks, is_const, loads
from .._timed import timed_values


@dataclass(frozen=True)
class Stage:
    """One element-wise step of the epilogue: out[i, j] = value(i, j)."""

    out: ir.Var  # buffer
    value: ir.Expr
    i: ir.Var
    j: ir.Var


@dataclass(frozen=True)
class Chain:
    """x [m, k] times weight [chunks, panels, kc, nr] into acc, then stages, all over [m, n]."""

    x: ir.Var
    weight: ir.Var
    acc: ir.Var
    stages: tuple[Stage, ...]
    outputs: tuple[ir.Var, ...]  # buffers of the stages (or acc) that are function parameters
    m: ir.Expr
    n: int
    chunks: int
    panels: int
    kc: int
    nr: int
    timed: tuple[int, ...] = ()  # the only numbers of rows that matter; empty: all do

    @property
    def k(self) -> int:
        return self.chunks * self.kc

    @property
    def rows(self) -> int | None:
        """The number of rows when it is static."""
        return int(self.m.value) if isinstance(self.m, tirx.IntImm) else None


def match(func: tirx.PrimFunc) -> Chain:
    """The chain `func` consists of; raises Declined with the first reason why it is none."""
    found = blocks(func)
    main = next((at for at, block in enumerate(found) if block.op == "linear"), None)
    if main is None:
        raise Declined("no block is annotated halo.op = linear")
    if main != 0:
        name = found[0].node.name_hint
        raise Declined(f"block {name} runs before the linear block: only stages behind it are served")
    x, weight, acc, m = _linear(found[0])
    chunks, panels, kc, nr = (int(d.value) for d in weight.ty.shape)
    stages: list[Stage] = []
    for block in found[1:]:
        stages.append(_stage(block, acc, [s.out for s in stages], m))
    widths = {int(s.out.ty.shape[1].value) for s in stages} or {int(acc.ty.shape[1].value)}
    if len(widths) > 1:
        raise Declined(f"stages behind the linear block differ in their number of columns: {sorted(widths)}")
    written = [s.out for s in stages] or [acc]
    outputs = tuple(b for b in written if any(b.same_as(p) for p in func.params))
    if not outputs:
        raise Declined("no stage writes a parameter of the function")
    (n,) = widths
    if not (panels - 1) * nr < n <= panels * nr:
        raise Declined(f"{n} columns do not match {panels} panels of {nr}: crop behind the linear block")
    if chunks > 1 and (outputs[-1].ty.dtype != "float32"):
        raise Declined(f"K chunks keep partial sums in the output, which is {outputs[-1].ty.dtype}, not float32")
    return Chain(x, weight, acc, tuple(stages), outputs, m, n, chunks, panels, kc, nr, timed_values(func, m))


def _linear(block: Block) -> tuple[ir.Var, ir.Var, ir.Var, ir.Expr]:
    """(x, weight, acc, rows) of the main block."""
    store = block.store
    if store is None or not block.plain:
        raise Declined("the linear block is not a single store in a plain loop nest (already scheduled?)")
    if block.kinds != "SSR":
        raise Declined(f"x has rank {len(block.kinds) - 1}: rows must be flattened to rank 2 first")
    i, j, k = block.vars
    value = store.value
    operands = [load for load in loads(value) if not load.source.same_as(store.buffer)]
    if len(operands) != 2:
        raise Declined(f"the linear block reads {len(operands)} tensors, expected x and weight")
    x, weight = operands
    dtypes = [str(t.dtype) for t in (x.source.ty, weight.source.ty, store.buffer.ty)]
    if dtypes != ["float32"] * 3:
        raise Declined(f"x, weight and sum are {', '.join(dtypes)}: only float32 is served")
    shape = weight.source.ty.shape
    if len(shape) != 4:
        raise Declined(f"weight has rank {len(shape)}: it is not packed as [k/kc, n/nr, kc, nr]")
    if not all(isinstance(d, tirx.IntImm) for d in shape):
        raise Declined("the packed weight has a symbolic dimension")
    chunks, panels, kc, nr = (int(d.value) for d in shape)
    analyzer = Analyzer()
    for var in block.node.iter_vars:
        analyzer.bind(var.var, var.dom)
    expected = (k // kc, j // nr, k % kc, j % nr)
    same = all(analyzer.can_prove_equal(a, b) for a, b in zip(weight.indices, expected))
    same = same and [len(x.indices), x.indices[0].same_as(i), x.indices[1].same_as(k)] == [2, True, True]
    total = isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul) and value.a.source.same_as(store.buffer)
    if not (same and total):
        meant = "acc[i, j] + x[i, k] * weight[k // kc, j // nr, k % kc, j % nr]"
        raise Declined(f"the linear block does not compute {meant}")
    if not is_const(block.extents[2], chunks * kc):
        raise Declined(f"x has {block.extents[2]} columns, the packed weight {chunks * kc} rows")
    if not is_const(block.extents[1], panels * nr):
        raise Declined(f"the linear block computes {block.extents[1]} columns, the packed weight has {panels * nr}")
    return x.source, weight.source, store.buffer, block.extents[0]


def _stage(block: Block, acc: ir.Var, earlier: list[ir.Var], m: ir.Expr) -> Stage:
    """One stage of the epilogue."""
    name, store = block.node.name_hint, block.store
    if store is None or not block.plain or block.kinds != "SS" or block.node.init is not None:
        raise Declined(f"stage {name} is not one element-wise store over [rows, columns]")
    i, j = block.vars
    if not (len(store.indices) == 2 and store.indices[0].same_as(i) and store.indices[1].same_as(j)):
        raise Declined(f"stage {name} writes at other indices than it runs over: {list(store.indices)}")
    if not Analyzer().can_prove_equal(block.extents[0], m):
        raise Declined(f"stage {name} runs over {block.extents[0]} rows, the linear block over {m}")
    if not isinstance(block.extents[1], tirx.IntImm):
        raise Declined(f"stage {name} has a symbolic number of columns")
    for load in loads(store.value):
        produced = any(load.source.same_as(b) for b in (acc, *earlier))
        if produced and not (load.indices[0].same_as(i) and load.indices[1].same_as(j)):
            raise Declined(f"stage {name} reads {load.source.name} at {list(load.indices)}, not at its own indices")
    return Stage(store.buffer, store.value, i, j)
