"""Matrix instructions of a warp: WMMA fragments, ldmatrix, mma, and where each lane keeps its elements.

A WMMA fragment is opaque to a program, so it is kept as a whole matrix per warp, row after row. The registers of
`mma` belong to lanes; `registers` says which element of a matrix each register of each lane is (PTX ISA, chapter on
warp-level matrix instructions). Products are added in float32 or int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from tvm import ir

from halo_tvm.errors import UnsupportedModel

from ._floats import canonical
from ._lanes import WARP
from ._memory import Pointer

if TYPE_CHECKING:
    from ._statements import Program

_ROLE = {"wmma.matrix_a": (0, 2), "wmma.matrix_b": (2, 1), "wmma.accumulator": (0, 1)}  # of (m, n, k)
_LANE = np.arange(WARP)[:, None]
_GROUP, _IN_GROUP = _LANE // 4, _LANE % 4


def registers(matrix: str, shape: str, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each register of each lane, both [32, registers], of matrix "a", "b" or "c" of `mma`."""
    if matrix == "c":
        i = np.arange(4)
        return _GROUP + 8 * (i // 2), 2 * _IN_GROUP + i % 2
    k = int(shape.partition("k")[2])
    run = 32 // bits  # elements in one 32-bit register, neighbours along k
    if k * bits not in (128, 256):
        raise UnsupportedModel(f"an mma of 16 or 32 bytes along k was expected, but found {shape} of {bits} bits")
    halves = k * bits // 128  # of k: each has 4 runs, one per lane of a group
    i = np.arange(halves * run * (2 if matrix == "a" else 1))
    if matrix == "a":
        return _GROUP + 8 * (i // run % 2), run * _IN_GROUP + i % run + 4 * run * (i // (2 * run))
    return run * _IN_GROUP + i % run + 4 * run * (i // run), np.broadcast_to(_GROUP, (WARP, len(i)))


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int32 if values.dtype.kind in "iu" else np.float32)


def _as_multiplied(values: np.ndarray, operand: str) -> np.ndarray:
    """What an `mma` makes of its operands: of tf32 it ignores the bits behind the tenth of the mantissa."""
    if operand != "tf32":
        return _wide(values)
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _number(program: Program, expr: ir.Expr) -> np.ndarray:
    """A number that is the same in a warp: one of each."""
    warps = program.lanes.whole_warps(program.active, "a matrix instruction")
    return program.full(program.value(expr))[warps[:, 0]]


def _fragment(program: Program, data: ir.Expr, index: ir.Expr, shape: tuple[int, int, int]) -> tuple:
    """All elements of the fragment's memory, [warps, elements], the warps that take part, and its element numbers."""
    pointer = program.pointer(data)
    rows, cols = (shape[axis] for axis in _ROLE[pointer.memory.scope])
    warps = program.lanes.warp[program.lanes.whole_warps(program.active, "a matrix instruction")[:, 0]]
    at = _number(program, index)[:, None] * rows * cols + np.arange(rows * cols)
    return pointer.memory.data.view(pointer.dtype), warps[:, None], at, (rows, cols)


def _shape(args: Sequence[ir.Expr]) -> tuple[int, int, int]:
    return tuple(int(a) for a in args[1:4])  # type: ignore[return-value]


def _fill_fragment(program: Program, args: Sequence[ir.Expr]) -> None:
    view, warps, at, _ = _fragment(program, args[0], args[4], _shape(args))
    program.fragments[program.pointer(args[0]).memory] = _shape(args)
    view[warps, at] = _number(program, args[5])[:, None]


def _addresses(program: Program, args: Sequence[ir.Expr], rows: int, cols: int) -> tuple[Pointer, np.ndarray]:
    """Where the elements of a matrix in memory are, spread over the lanes of its warp: [lanes, elements / 32]."""
    pointer, stride = program.pointer(args[5]), program.full(program.value(args[6])).astype(np.int64)
    per_lane = rows * cols // WARP
    element = program.lanes.thread[:, None] % WARP * per_lane + np.arange(per_lane)
    row, col = element // cols, element % cols
    by_row = str(args[7].value) == "row_major"
    offset = program.full(np.asarray(pointer.offset))[:, None]
    at = row * stride[:, None] + col if by_row else col * stride[:, None] + row
    return Pointer(pointer.memory, pointer.dtype, np.zeros((), np.int64), pointer.byte_offset), offset + at


def _load_matrix(program: Program, args: Sequence[ir.Expr]) -> None:
    view, warps, at, (rows, cols) = _fragment(program, args[0], args[4], _shape(args))
    program.fragments[program.pointer(args[0]).memory] = _shape(args)
    pointer, where = _addresses(program, args, rows, cols)
    loaded = pointer.memory.load(pointer.dtype, where, program.active, pointer.byte_offset)
    lanes = program.lanes.whole_warps(program.active, "a matrix instruction")
    view[warps, at] = loaded[lanes].reshape(len(lanes), -1)


def _store_matrix(program: Program, args: Sequence[ir.Expr]) -> None:
    view, warps, at, (rows, cols) = _fragment(program, args[0], args[4], _shape(args))
    pointer, where = _addresses(program, args, rows, cols)
    lanes = program.lanes.whole_warps(program.active, "a matrix instruction")
    value = np.zeros(where.shape, pointer.dtype)
    value[lanes] = view[warps, at].reshape(*lanes.shape, -1)
    pointer.memory.store(pointer.dtype, where, value, program.active, pointer.byte_offset)


def _multiply_fragments(program: Program, args: Sequence[ir.Expr]) -> None:
    shape = program.fragments[program.pointer(args[2]).memory]
    read = []
    for data, index in ((args[2], args[3]), (args[4], args[5]), (args[6], args[7])):
        view, warps, at, (rows, cols) = _fragment(program, data, index, shape)
        read.append(_wide(view[warps, at]).reshape(-1, rows, cols))
    view, warps, at, _ = _fragment(program, args[0], args[1], shape)
    a, b, c = read
    view[warps, at] = canonical(a @ b + c).reshape(len(a), -1)


def _load_rows(program: Program, args: Sequence[ir.Expr]) -> None:
    """ldmatrix: 8 rows of 16 bytes from the addresses of 8 lanes make a matrix; every lane gets two elements of it."""
    transposed, count = bool(int(args[0])), int(args[1])
    local, shared = program.pointer(args[3]), program.pointer(args[5])
    if transposed and local.dtype.itemsize != 2:
        raise UnsupportedModel(f"ldmatrix transposes elements of 2 bytes, but found {local.dtype}")
    lanes = program.lanes.whole_warps(program.active, "ldmatrix")
    before = program.active
    addressing = program.lanes.thread % WARP < 8 * count
    program.active = addressing if before is None else before & addressing
    begin = program.as_bytes(shared, np.asarray(program.value(args[6])))
    program.check_aligned(begin, 0, 16, "a row of 16 bytes for ldmatrix")
    rows = program.load(begin, 0, 16)
    program.active = before
    matrices = np.ascontiguousarray(rows[lanes]).view(np.uint16)[:, : 8 * count].reshape(-1, count, 8, 8)
    row, col = _GROUP, 2 * _IN_GROUP + np.arange(2)
    picked = matrices[:, :, col, row] if transposed else matrices[:, :, row, col]  # [warps, count, 32, 2]
    value = np.zeros((program.lanes.count, 4 * count), np.uint8)
    in_order = np.ascontiguousarray(picked.transpose(0, 2, 1, 3))
    value[lanes] = in_order.view(np.uint8).reshape(len(lanes), WARP, 4 * count)
    program.store(program.as_bytes(local, np.asarray(program.value(args[4]))), 0, value)


def _multiply(program: Program, args: Sequence[ir.Expr]) -> None:
    """mma: c += a @ b, all three in the registers of a warp's lanes."""
    shape = str(args[0].value)
    lanes = program.lanes.whole_warps(program.active, "mma")
    pointers = [program.pointer(args[i]) for i in (6, 8, 10)]
    offsets = [np.asarray(program.value(args[i])) for i in (7, 9, 11)]
    m, n, k = (int(v) for v in shape.removeprefix("m").replace("n", " ").replace("k", " ").split())
    found, where = {}, {}
    for name, pointer, offset in zip("abc", pointers, offsets):
        row, col = where[name] = registers(name, shape, 8 * pointer.dtype.itemsize)
        values = program.load(pointer, offset, row.shape[1])
        values = np.broadcast_to(values, (program.lanes.count, values.shape[1]))[lanes]
        size = {"a": (m, k), "b": (k, n), "c": (m, n)}[name]
        found[name] = np.zeros((len(lanes), *size), _wide(values[:0]).dtype)
        found[name][:, row, col] = _wide(values) if name == "c" else _as_multiplied(values, str(args[3].value))
    product = canonical(found["a"] @ found["b"] + found["c"])
    value = np.zeros((program.lanes.count, 4), pointers[2].dtype)
    value[lanes] = product[:, where["c"][0], where["c"][1]]
    program.store(pointers[2], offsets[2], value)


def _fill(program: Program, args: Sequence[ir.Expr]) -> None:
    pointer = program.pointer(args[1])
    program.store(pointer, program.value(args[2]), np.zeros((1, int(args[0])), pointer.dtype))


def _store(program: Program, args: Sequence[ir.Expr]) -> None:
    """The 8 registers of each lane to the 16 x 16 elements of memory that they are."""
    to, source = program.pointer(args[2]), program.pointer(args[3])
    i, lane = np.arange(8), program.lanes.thread[:, None] % WARP
    row, col = 8 * (i % 4 // 2) + lane // 4, 8 * (i // 4) + lane % 4 * 2 + i % 2
    stride = program.full(program.value(args[5])).astype(np.int64)[:, None]
    value = program.load(source, program.value(args[4]), 8)
    offset = program.full(np.asarray(to.offset))[:, None]
    to.memory.store(to.dtype, offset + row * stride + col, value, program.active, to.byte_offset)


MATRIX_CALLS: dict[str, Callable[[Program, Sequence[ir.Expr]], None]] = {
    "tirx.tvm_fill_fragment": _fill_fragment,
    "tirx.tvm_load_matrix_sync": _load_matrix,
    "tirx.tvm_store_matrix_sync": _store_matrix,
    "tirx.tvm_mma_sync": _multiply_fragments,
    "tirx.ptx_legacy.ldmatrix": _load_rows,
    "tirx.ptx_legacy.mma": _multiply,
    "tirx.mma_fill_legacy": _fill,
    "tirx.mma_store_legacy": _store,
}
