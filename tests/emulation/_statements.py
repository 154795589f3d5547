"""Statements of a lowered function, in every lane; a host function is one lane that launches kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tvm import ir, tirx

from halo_tvm.cuda.launches import DYNAMIC, STATIC
from halo_tvm.errors import UnsupportedModel

from ._expressions import Expressions, first_lane, vector_lanes
from ._fault import KernelFault
from ._floats import canonical, to_tf32
from ._lanes import Lanes
from ._matrices import MATRIX_CALLS
from ._memory import Clock, Memory, Pointer, numpy_dtype

_SHARED = (STATIC, DYNAMIC)
_FRAGMENT = "wmma."
_SAYS_NOTHING = frozenset({"type_annotation", "assume", "tvm_global_barrier_kinit", "prefetch", "undef"})
_ISSUED, _LANDED = -1, -2  # of a lane's part of a copy: in no group yet; not under way


@dataclass(eq=False)
class Copy:
    """Bytes on their way to shared memory: each lane's land when that lane waits for its group."""

    pointer: Pointer
    value: np.ndarray  # [lanes, bytes]
    group: np.ndarray  # [lanes] number of the lane's group, counted from 0; or _ISSUED, _LANDED


@dataclass(eq=False)
class Program(Expressions):
    """One function at work. `launch` runs a kernel by name: host functions have one."""

    lanes: Lanes
    env: dict[object, np.ndarray]
    buffers: dict[object, Pointer]
    clock: Clock | None = None
    launch: Callable[[str, list[object], dict[str, int]], None] | None = None
    active: np.ndarray | None = None
    copies: list[Copy] = field(default_factory=list)  # under way in some lane, in order
    fragments: dict[Memory, tuple[int, int, int]] = field(default_factory=dict)  # m, n, k of what they hold

    def __post_init__(self) -> None:
        self.groups = np.zeros(self.lanes.count, np.int64)  # of asynchronous copies that each lane has committed

    def run(self, stmt: tirx.Stmt) -> None:
        """Execute `stmt` in the active lanes."""
        visit = getattr(self, f"_do_{type(stmt).__name__.lower()}", None)
        if visit is None:
            raise UnsupportedModel(f"a statement that can be emulated was expected, but found {type(stmt).__name__}")
        visit(stmt)

    def _do_seqstmt(self, stmt: tirx.SeqStmt) -> None:
        for part in stmt.seq:
            self.run(part)

    def _do_bind(self, stmt: tirx.Bind) -> None:
        self.env[stmt.var] = self._value_or_pointer(stmt.value)

    def _do_attrstmt(self, stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            self.env[stmt.node.var] = self.lanes.index(stmt.node.thread_tag).astype(self.dtype(stmt.node.var))
        elif stmt.attr_key == "async_wait_inflight_count":
            self._wait(self.number(stmt.value))
        self.run(stmt.body)
        if stmt.attr_key == "async_commit_queue_scope":
            self._commit()

    def _do_allocbuffer(self, stmt: tirx.AllocBuffer) -> None:
        buffer = stmt.buffer
        dtype, vector = numpy_dtype(str(buffer.dtype))
        size = vector * dtype.itemsize * int(np.prod([self.number(dim) for dim in buffer.shape]))
        scope = str(buffer.scope())
        count = self.lanes.count
        if scope in _SHARED and self.launch is not None:
            raise KernelFault(f"{buffer.name} ({scope}) is allocated outside the kernel that uses it")
        if scope in _SHARED:
            memory = Memory.fresh(buffer.name, scope, size, len(self.lanes.block_ids), self.lanes.block, self.clock)
        elif scope.startswith(_FRAGMENT):
            memory = Memory.fresh(buffer.name, scope, size, self.lanes.warps, self.lanes.warp, None)
        elif self.launch is not None:
            memory = Memory.fresh(buffer.name, "global", size, 1, None, None)
        else:
            memory = Memory.fresh(buffer.name, scope, size, count, np.arange(count), None)
        self.buffers[buffer] = Pointer(memory, dtype, np.zeros((), np.int64))

    def _do_declbuffer(self, stmt: tirx.DeclBuffer) -> None:
        buffer, base = stmt.buffer, self.pointer(stmt.data)
        dtype = numpy_dtype(str(buffer.dtype))[0]
        offset = base.byte_offset
        if np.any(base.offset):
            offset += int(np.asarray(base.offset).flat[0]) * base.dtype.itemsize
        start = np.asarray(self.value(buffer.elem_offset)) if _given(buffer.elem_offset) else np.zeros((), np.int64)
        self.buffers[buffer] = Pointer(base.memory, dtype, start, offset)

    def _do_bufferstore(self, stmt: tirx.BufferStore) -> None:
        value = np.asarray(self.value(stmt.value))
        pointer, at, n = self.element(stmt.buffer, stmt.indices)
        if n and value.ndim < 2:
            value = value[:, None] if value.ndim else value.reshape(1, 1)
        if lanes := n or vector_lanes(stmt.indices):
            self.check_vector(pointer, first_lane(at), lanes, "a vector store")
        self.store(pointer, at, value)

    def _do_for(self, stmt: tirx.For) -> None:
        low, extent = (np.asarray(self.value(e)) for e in (stmt.min, stmt.extent))
        dtype, before = self.dtype(stmt.loop_var), self.active
        step = self.number(stmt.step) if stmt.step is not None else 1
        most = extent if before is None or not extent.ndim else extent[before]
        for i in range(0, int(most.max(initial=0)), step):
            self.env[stmt.loop_var] = (low + i).astype(dtype)
            if extent.ndim:
                self.active = i < extent if before is None else before & (i < extent)
            self.run(stmt.body)
        self.active = before

    def _do_while(self, stmt: tirx.While) -> None:
        before = self.active
        while True:
            holds = self.full(self.value(stmt.condition))
            self.active = holds if self.active is None else holds & self.active
            if not self.active.any():
                break
            self.run(stmt.body)
        self.active = before

    def _do_ifthenelse(self, stmt: tirx.IfThenElse) -> None:
        holds = np.asarray(self.value(stmt.condition))
        if not holds.ndim:
            taken = stmt.then_case if holds else stmt.else_case
            if taken is not None:
                self.run(taken)
            return
        before = self.active
        for lanes, case in ((holds, stmt.then_case), (~holds, stmt.else_case)):
            self.active = lanes if before is None else before & lanes
            if case is not None and self.active.any():
                self.run(case)
        self.active = before

    def _do_assertstmt(self, stmt: tirx.AssertStmt) -> None:
        if not np.all(self.value(stmt.condition)):
            raise KernelFault(f"what the function asserts does not hold: {stmt.condition}")

    def _do_evaluate(self, stmt: tirx.Evaluate) -> None:
        call = stmt.value
        if not isinstance(call, ir.Call):
            return
        name = call.op.name.rpartition(".")[2] if isinstance(call.op, ir.Op) else str(call.op)
        if name == "call_ffi_kernel":
            self._launch(call)
        elif name == "tvm_storage_sync":
            self._sync(str(call.args[0].value))
        elif isinstance(call.op, ir.Op) and call.op.name in MATRIX_CALLS:
            MATRIX_CALLS[call.op.name](self, call.args)
        elif name == "ex2":
            self._exp2(call)
        elif name == "cvt_tf32_f32":
            self._round_to_tf32(call)
        elif name == "cp_async_raw":
            self._copy(call)
        elif name in ("cp_async_cg_src_size", "cp_async_ca_src_size"):
            self._sized_copy(call)
        elif name == "cp_async_commit_group":
            self._commit()
        elif name == "cp_async_wait_group":
            self._wait(self.number(call.args[0]))
        elif name == "cp_async_wait_all":
            self._commit()
            self._wait(0)
        elif name not in _SAYS_NOTHING:
            self.value(call)

    def _launch(self, call: ir.Call) -> None:
        assert self.launch is not None, "a kernel launches no kernel"
        tags = [str(tag) for tag in call.attrs.launch_params]
        given = list(call.args[1:])
        arguments = [self._value_or_pointer(a) for a in given[: len(given) - len(tags)]]
        extents = {tag: self.number(a) for tag, a in zip(tags, given[len(given) - len(tags) :])}
        self.launch(str(call.args[0].value), arguments, extents)

    def _sync(self, scope: str) -> None:
        if scope in _SHARED:
            self.clock.block_barrier(self.active)
        elif scope == "warp":
            self.clock.warp_barrier(self.active)
        else:
            raise UnsupportedModel(f"a barrier of a block or a warp was expected, but found one of {scope!r}")

    def _exp2(self, call: ir.Call) -> None:
        """ex2.approx: what it stores is a power of two of its operand, subnormal results as 0."""
        to, operand = call.args[:2]
        value = np.exp2(np.asarray(self.value(operand), np.float32))
        pointer, at, _ = self.element(to.source, to.indices)
        self.store(pointer, at, canonical(np.where(value < np.finfo(np.float32).tiny, np.float32(0), value)))

    def _round_to_tf32(self, call: ir.Call) -> None:
        """cvt.rna.tf32.f32: what it stores is the bits of its operand, rounded."""
        to, operand = call.args[:2]
        words = [str(word.value) for word in call.args[2:] if str(word.value)]
        if words != ["rna", "tf32", "f32"]:
            raise UnsupportedModel(f"cvt.rna.tf32.f32 was expected, but found cvt.{'.'.join(words)}")
        pointer, at, _ = self.element(to.source, to.indices)
        self.store(pointer, at, to_tf32(np.asarray(self.value(operand))).view(np.uint32))

    def _copy(self, call: ir.Call) -> None:
        """As a pipeline emits it: pointers with offsets; lanes in which its predicate does not hold write zeros."""
        to, to_offset, source, from_offset, size = call.args[:5]
        holds = self.full(np.asarray(self.value(call.args[5]), bool)) if len(call.args) > 5 else None
        write = self.as_bytes(self.pointer(to), np.asarray(self.value(to_offset)))
        self._start_copy(write, self.pointer(source), from_offset, self.number(size), holds)

    def _sized_copy(self, call: ir.Call) -> None:
        """As PTX spells it: of `size` bytes as many are read as its last operand says, all or none."""
        to, source, size, source_size = call.args[:4]
        count, found = self.number(size), self.full(np.asarray(self.value(source_size)))
        if not np.isin(found if self.active is None else found[self.active], (0, count)).all():
            raise UnsupportedModel(f"a copy of 0 or {count} bytes was expected, but found {source_size}")
        write = self.as_bytes(self.pointer(to), np.zeros((), np.int64))
        self._start_copy(write, self.pointer(source), tirx.IntImm("int32", 0), count, found > 0)

    def _start_copy(
        self, write: Pointer, source: Pointer, offset: ir.Expr, count: int, holds: np.ndarray | None
    ) -> None:
        """An asynchronous copy is read now and lands when it is waited for, which is as late as it may."""
        before = self.active
        if holds is not None:
            self.active = self.masked(holds)
        read = self.as_bytes(source, np.asarray(self.value(offset)))
        self.check_aligned(read, 0, count, f"an asynchronous copy of {count} bytes")
        value = self.load(read, 0, count)
        self.active = before
        self.check_aligned(write, 0, count, f"an asynchronous copy of {count} bytes")
        value = np.broadcast_to(value, (self.lanes.count, count))
        group = np.full(self.lanes.count, _ISSUED) if before is None else np.where(before, _ISSUED, _LANDED)
        self.copies.append(Copy(write, value if holds is None else np.where(holds[:, None], value, 0), group))
        self.reserve(write, count)

    def check_copies_landed(self) -> None:
        """A fault when threads end with copies under way: PTX does not say into whose memory those write then."""
        if self.copies:
            raise KernelFault(f"threads end while a copy to {self.copies[0].pointer.memory.name} is under way")

    def reserve(self, pointer: Pointer, count: int) -> None:
        """From here on until it lands a copy may change these bytes: no other thread may be using them."""
        at = np.asarray(pointer.offset)
        at = (at[:, None] if at.ndim else at.reshape(1, 1)) + np.arange(count)
        pointer.memory.reserve(at, self.active)

    def _commit(self) -> None:
        """The active lanes close a group each, of what each of them has issued since its last."""
        lanes = self.full(np.asarray(True) if self.active is None else self.active)
        for copy in self.copies:
            mine = lanes & (copy.group == _ISSUED)
            copy.group[mine] = self.groups[mine]
        self.groups[lanes] += 1

    def _wait(self, pending: int) -> None:
        """The active lanes' own copies land but for those of their last `pending` groups."""
        before, left = self.active, []
        for copy in self.copies:
            lands = (copy.group >= 0) & (copy.group < self.groups - pending)
            lands = lands if before is None else lands & before
            if lands.any():
                self.active = lands
                self.store(copy.pointer, 0, copy.value)
                copy.group[lands] = _LANDED
            if (copy.group != _LANDED).any():
                left.append(copy)
        self.active, self.copies = before, left

    def as_bytes(self, pointer: Pointer, offset: np.ndarray) -> Pointer:
        """The byte at which `offset` elements behind `pointer` begin."""
        at = (pointer.offset + offset) * pointer.dtype.itemsize + pointer.byte_offset
        return Pointer(pointer.memory, np.dtype(np.uint8), np.asarray(at))

    def _value_or_pointer(self, expr: ir.Expr) -> object:
        try:
            return self.pointer(expr)
        except UnsupportedModel:
            return self.value(expr)


def _given(offset: object) -> bool:
    """Whether a buffer says where in its memory it begins."""
    return offset is not None and not (isinstance(offset, tirx.IntImm) and int(offset) == 0)
