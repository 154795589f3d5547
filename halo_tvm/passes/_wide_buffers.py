"""Buffers that a function allocates itself hold float32 instead of bfloat16, and bytes instead of truth values.

Before -> after
    row: bfloat16 buffer;  row[i] = x;  y = row[i]  ->  row: float32 buffer;  row[i] = float32(x);  y = bfloat16(row[i])
    row: bool buffer;      row[i] = x;  y = row[i]  ->  row: uint8 buffer;    row[i] = uint8(x);    y = row[i] != 0
Why
    TVM makes bfloat16 buffers float32 when it lowers them, but forgets reads inside of a `Let` or behind `reinterpret`:
    they are of a buffer that is not there any more. Numbers in between are not rounded, here as there.
    LLVM is given truth values as bits where one is computed or is the same in all lanes, and as bytes where lanes of
    them are read: it refuses a conjunction of the two.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from ..tir_schedules.blocks import allocated

_WIDE = {"bfloat16": "float32", "bool": "uint8"}


def with_wide_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without buffers of bfloat16 or bool that are none of its parameters."""
    wide = {buffer: buffer.with_dtype(_WIDE[buffer.dtype]) for buffer in allocated(func.body) if buffer.dtype in _WIDE}
    if not wide:
        return func
    new = set(wide.values())

    def load(node: ir.TensorLoad) -> ir.Expr:
        if node.source not in new:
            return node
        value, dtype = node.source[tuple(node.indices)], str(node.ty.dtype)
        return value != tirx.const(0, str(value.ty.dtype)) if dtype.startswith("bool") else tirx.Cast(dtype, value)

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in new:
            return node
        narrow, _, lanes = str(node.value.ty.dtype).partition("x")
        dtype = f"{_WIDE[narrow]}x{lanes}" if lanes else _WIDE[narrow]
        return tirx.BufferStore(node.buffer, tirx.Cast(dtype, node.value), node.indices)

    steps = ((ir.Var, lambda var: wide.get(var, var)), (ir.TensorLoad, load), (tirx.BufferStore, store))
    return func.with_body(tvm_ffi.structural_map(func.body, steps, order="post"))
