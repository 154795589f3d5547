"""Statements of a lowered function, in every lane; a host function is one lane that launches kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tvm import ir, tirx

from ..errors import KernelFault, UnsupportedModel
from ._expressions import Expressions
from ._lanes import Lanes
from ._matrices import MATRIX_CALLS
from ._memory import Clock, Memory, Pointer, numpy_dtype

_SHARED = ("shared", "shared.dyn")
_FRAGMENT = "wmma."
_SAYS_NOTHING = frozenset({"type_annotation", "assume", "tvm_global_barrier_kinit", "prefetch", "undef"})


@dataclass(eq=False)
class Copy:
    """Bytes on their way to shared memory: they land when they are waited for."""

    pointer: Pointer
    value: np.ndarray  # [lanes, bytes]
    lanes: np.ndarray | None


@dataclass(eq=False)
class Program(Expressions):
    """One function at work. `launch` runs a kernel by name: host functions have one."""

    lanes: Lanes
    env: dict[object, np.ndarray]
    buffers: dict[object, Pointer]
    clock: Clock | None = None
    launch: Callable[[str, list[object], dict[str, int]], None] | None = None
    active: np.ndarray | None = None
    issued: list[Copy] = field(default_factory=list)
    groups: list[list[Copy]] = field(default_factory=list)
    fragments: dict[Memory, tuple[int, int, int]] = field(default_factory=dict)  # m, n, k of what they hold

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
            self._land(len(self.groups) - self.number(stmt.value))
        self.run(stmt.body)
        if stmt.attr_key == "async_commit_queue_scope":
            self._commit()

    def _do_allocbuffer(self, stmt: tirx.AllocBuffer) -> None:
        buffer = stmt.buffer
        dtype, vector = numpy_dtype(str(buffer.dtype))
        size = vector * dtype.itemsize * int(np.prod([self.number(dim) for dim in buffer.shape]))
        scope = str(buffer.scope())
        count = self.lanes.count
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
        elif name == "cp_async_raw":
            self._copy(call)
        elif name == "cp_async_commit_group":
            self._commit()
        elif name == "cp_async_wait_group":
            self._land(len(self.groups) - self.number(call.args[0]))
        elif name == "cp_async_wait_all":
            self._commit()
            self._land(len(self.groups))
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

    def _copy(self, call: ir.Call) -> None:
        """An asynchronous copy is read now and lands when it is waited for, which is as late as it may.

        Lanes in which its predicate does not hold write zeros.
        """
        to, to_offset, source, from_offset, size = call.args[:5]
        count, before = self.number(size), self.active
        write = self.as_bytes(self.pointer(to), np.asarray(self.value(to_offset)))
        holds = self.full(np.asarray(self.value(call.args[5]), bool)) if len(call.args) > 5 else None
        if holds is not None:
            self.active = self.masked(holds)
        read = self.as_bytes(self.pointer(source), np.asarray(self.value(from_offset)))
        value = self.load(read, 0, count)
        self.active = before
        value = np.broadcast_to(value, (self.lanes.count, count))
        self.issued.append(Copy(write, value if holds is None else np.where(holds[:, None], value, 0), before))
        self.reserve(write, count)

    def reserve(self, pointer: Pointer, count: int) -> None:
        """From here on until it lands a copy may change these bytes: no other thread may be using them."""
        at = np.asarray(pointer.offset)
        at = (at[:, None] if at.ndim else at.reshape(1, 1)) + np.arange(count)
        pointer.memory.reserve(at, self.active)

    def _commit(self) -> None:
        self.groups.append(self.issued)
        self.issued = []

    def _land(self, count: int) -> None:
        before = self.active
        for copy in [copy for group in self.groups[: max(count, 0)] for copy in group]:
            self.active = copy.lanes
            self.store(copy.pointer, 0, copy.value)
        self.groups = self.groups[max(count, 0) :]
        self.active = before

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
