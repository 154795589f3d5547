"""What CUDA refuses or leaves undefined is a fault of the emulator: launches, places in memory, shuffles, copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from emulation import KernelFault, emulate
from reversing import reverse
from tvm import ir, tirx
from tvm.script import tirx as T

from halo_tvm.targets import resolve

ALL = 0xFFFFFFFF


def run(func: tirx.PrimFunc, x: np.ndarray, y: np.ndarray, level: str = "sm_80") -> np.ndarray:
    emulate(func, resolve(f"cuda:{level}"), [x, y])
    return y


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def by_rows(tag: str) -> tirx.PrimFunc:
    """y = x, a block of one thread to a row, the rows along `tag`."""
    n = tirx.Var("n", "int64")

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n, 1), "float32"), y: T.Buffer((n, 1), "float32")):
        for b in T.thread_binding(n, thread=tag):
            for t in T.thread_binding(1, thread="threadIdx.x"):
                y[b, t] = x[b, t]

    return main


def test_launches() -> None:
    x = numbers(5, 1)
    np.testing.assert_array_equal(run(by_rows("blockIdx.y"), x, zeros(5, 1)), x)
    with pytest.raises(KernelFault, match="launched with a blockIdx.x of 0, and CUDA takes 1 to 2147483647"):
        run(by_rows("blockIdx.x"), zeros(0, 1), zeros(0, 1))
    for tag in ("blockIdx.y", "blockIdx.z"):
        with pytest.raises(KernelFault, match=f"launched with a {tag} of 65536, and CUDA takes 1 to 65535"):
            run(by_rows(tag), zeros(65536, 1), zeros(65536, 1))
    with pytest.raises(KernelFault, match="a threadIdx.x of 2048, and CUDA takes 1 to 1024"):
        run(reverse(1, 2048, "shared"), numbers(1, 2048), zeros(1, 2048))


def test_threads_of_several_axes_are_counted_together() -> None:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((2, 1024), "float32"), y: T.Buffer((2, 1024), "float32")):
        for i in T.thread_binding(2, thread="threadIdx.y"):
            for t in T.thread_binding(1024, thread="threadIdx.x"):
                y[i, t] = x[i, t]

    with pytest.raises(KernelFault, match="with 2048 threads in a block, and CUDA takes 1024"):
        run(main, numbers(2, 1024), zeros(2, 1024))


def test_shared_memory() -> None:
    x, y = numbers(1, 64), zeros(1, 64)
    np.testing.assert_array_equal(run(reverse(1, 64, "shared", 190), x, y), x[:, ::-1])
    with pytest.raises(KernelFault, match=r"bytes of static shared memory in a block, and CUDA takes 49152"):
        run(reverse(1, 64, "shared", 200), x, y)
    np.testing.assert_array_equal(run(reverse(1, 64, "shared.dyn", 470), x, zeros(1, 64), "sm_90"), x[:, ::-1])
    for level in ("sm_80", "sm_86"):
        with pytest.raises(KernelFault, match=f"bytes of shared memory in a block, and {level} has 101376"):
            run(reverse(1, 64, "shared.dyn", 470), x, y, level)


def test_shared_memory_is_of_a_kernel() -> None:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        with T.sblock("root"):
            kept = T.alloc_buffer((64,), "float32", scope="shared")
            for t in T.thread_binding(64, thread="threadIdx.x"):
                kept[t] = x[t]
                T.evaluate(T.tvm_storage_sync("shared"))
                y[t] = kept[63 - t]

    with pytest.raises(KernelFault, match="kept .shared. is allocated outside the kernel that uses it"):
        run(main, numbers(64), zeros(64))


def vectors(x_width: int, y_width: int) -> tirx.PrimFunc:
    """y[t, :4] = x[t, :4] through registers."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8, x_width), "float32"), y: T.Buffer((8, y_width), "float32")):
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("thread"):
                kept = T.sblock_alloc_buffer((4,), "float32", scope="local")
                for lane in T.vectorized(4):
                    kept[lane] = x[t, lane]
                for lane in T.vectorized(4):
                    y[t, lane] = kept[lane]

    return main


def test_vectors() -> None:
    """Of a store TVM makes one of all lanes wherever it begins; of a load only where it begins at a multiple."""
    for width in (4, 7, 8):
        x = numbers(8, width)
        np.testing.assert_array_equal(run(vectors(width, 4), x, zeros(8, 4)), x[:, :4])
    with pytest.raises(KernelFault, match="a vector store of 16 bytes begins at byte 28 of y.* a multiple of 16"):
        run(vectors(4, 7), numbers(8, 4), zeros(8, 7))


def copied(stride: int, to_stride: int, size: int) -> tirx.PrimFunc:
    """y[t] = kept[to_stride * t], where `size` bytes come to from x[stride * t]."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64 * stride,), "float32"), y: T.Buffer((64,), "float32")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("block"):
                T.reads(x[0 : 64 * stride])
                T.writes(y[0:64])
                kept = T.sblock_alloc_buffer((64 * to_stride + 4,), "float32", scope="shared")
                T.evaluate(T.s_tir.cp_async_raw("float32", kept.data, t * to_stride, x.data, t * stride, size))
                T.evaluate(T.ptx["cp.async.commit_group"]())
                T.evaluate(T.ptx["cp.async.wait_group"](0))
                y[t] = kept[t * to_stride]

    return main


@pytest.mark.parametrize(("stride", "to_stride", "size"), [(4, 4, 16), (4, 6, 8), (5, 3, 4)])
def test_copies_begin_at_multiples_of_their_size(stride: int, to_stride: int, size: int) -> None:
    x = numbers(64 * stride)
    np.testing.assert_array_equal(run(copied(stride, to_stride, size), x, zeros(64)), x[::stride])
    if size > 4:
        for wrong, memory in (((stride + 1, to_stride), "x"), ((stride, to_stride + 1), "kept")):
            with pytest.raises(KernelFault, match=f"copy of {size} bytes begins at byte .* of {memory}.* {size}$"):
                run(copied(*wrong, size), numbers(64 * wrong[0]), zeros(64))


def rows_of_a_matrix(stride: int) -> tirx.PrimFunc:
    """y[t] = the element of 8 x 8 halves in rows of `stride` that ldmatrix gives thread t first."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8, 8), "float16"), y: T.Buffer((32,), "float16")):
        for t in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("warp"):
                T.reads(x[0:8, 0:8])
                T.writes(y[0:32])
                kept = T.sblock_alloc_buffer((8 * stride,), "float16", scope="shared")
                mine = T.sblock_alloc_buffer((2,), "float16", scope="local")
                for i in range(2):
                    kept[t // 4 * stride + t % 4 * 2 + i] = x[t // 4, t % 4 * 2 + i]
                T.evaluate(T.tvm_storage_sync("shared"))
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        False, 1, ".b16", mine.data, 0, kept.access_ptr("r"), t % 8 * stride, dtype="float16"
                    )
                )
                y[t] = mine[0]

    return main


def test_rows_of_ldmatrix_begin_at_multiples_of_16_bytes() -> None:
    x, y = np.arange(64, dtype=np.float16).reshape(8, 8), np.zeros(32, np.float16)
    for stride in (8, 16, 24):
        np.testing.assert_array_equal(run(rows_of_a_matrix(stride), x, y), x.reshape(-1)[::2])
    with pytest.raises(KernelFault, match="a row of 16 bytes for ldmatrix begins at byte 24 of kept"):
        run(rows_of_a_matrix(12), x, y)


def exchanged(reach: int, mask: Callable[[tirx.Var], ir.Expr]) -> tirx.PrimFunc:
    """The first `reach` of 32 threads add up pairs by a shuffle for the lanes of `mask`."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            if t % 32 < reach:
                y[t] = x[t] + T.tvm_warp_shuffle_xor(mask(t), x[t], 1, 32, 32)

    return main


def lanes(mask: int) -> Callable[[tirx.Var], ir.Expr]:
    return lambda _: tirx.const(mask, "uint32")


def by_eights(t: tirx.Var) -> ir.Expr:
    return T.shift_left(T.uint32(255), T.Cast("uint32", t % 32 // 8 * 8))


@pytest.mark.parametrize(
    "func",
    [
        exchanged(32, lanes(ALL)),
        exchanged(16, lanes(0xFFFF)),
        exchanged(2, lanes(3)),
        exchanged(16, lambda _: T.tvm_warp_activemask()),
        exchanged(32, by_eights),
    ],
    ids=["all", "half", "pair", "active", "by_eights"],
)
def test_shuffles(func: tirx.PrimFunc) -> None:
    x = numbers(64)
    pairs = x + x.reshape(-1, 2)[:, ::-1].reshape(-1)
    y = run(func, x, zeros(64))
    np.testing.assert_array_equal(y[y > 0], pairs[y > 0])
    assert (y > 0).sum() in (4, 32, 64)


@pytest.mark.parametrize(("reach", "mask"), [(16, ALL), (31, ALL), (32, 0xFFFF), (16, 0xFF)])
def test_a_shuffle_that_not_all_lanes_of_its_mask_reach(reach: int, mask: int) -> None:
    with pytest.raises(KernelFault, match="tvm_warp_shuffle_xor is for the lanes 0x.* of a warp, and 0x.* reach it"):
        run(exchanged(reach, lanes(mask)), numbers(64), zeros(64))


def prefetched(all_commit: bool) -> tirx.PrimFunc:
    """y[t] = x[63 - t]; the first warp copies more behind it, and everyone waits for all groups but the last."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("block"):
                T.reads(x[0:64])
                T.writes(y[0:64])
                kept = T.sblock_alloc_buffer((128,), "float32", scope="shared")
                T.evaluate(T.s_tir.cp_async_raw("float32", kept.data, t, x.data, t, 4))
                T.evaluate(T.ptx["cp.async.commit_group"]())
                if t < 32:
                    T.evaluate(T.s_tir.cp_async_raw("float32", kept.data, t + 64, x.data, t, 4))
                    if not all_commit:
                        T.evaluate(T.ptx["cp.async.commit_group"]())
                if all_commit:
                    T.evaluate(T.ptx["cp.async.commit_group"]())
                T.evaluate(T.ptx["cp.async.wait_group"](1))
                T.evaluate(T.tvm_storage_sync("shared"))
                y[t] = kept[63 - t]
                T.evaluate(T.ptx["cp.async.wait_group"](0))

    return main


def test_each_thread_waits_for_its_own_groups() -> None:
    """A thread that commits once has no group before its last: what it copied need not have come."""
    x = numbers(64)
    np.testing.assert_array_equal(run(prefetched(True), x, zeros(64)), x[::-1])
    with pytest.raises(KernelFault, match="reads from kept .* what a copy may not have brought yet"):
        run(prefetched(False), x, zeros(64))


def test_blocks_do_not_wait_for_each_other() -> None:
    """Blocks that take other numbers of steps: what one commits does not bring what another copied."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((2, 32), "float32"), y: T.Buffer((2, 32), "float32")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("block"):
                    T.reads(x[0:2, 0:32])
                    T.writes(y[0:2, 0:32])
                    kept = T.sblock_alloc_buffer((32,), "float32", scope="shared")
                    T.evaluate(T.s_tir.cp_async_raw("float32", kept.data, t, x.data, b * 32 + t, 4))
                    T.evaluate(T.ptx["cp.async.commit_group"]())
                    for _ in range(b):
                        T.evaluate(T.ptx["cp.async.commit_group"]())
                    T.evaluate(T.ptx["cp.async.wait_group"](1))
                    y[b, t] = kept[t]

    with pytest.raises(KernelFault, match="what a copy may not have brought yet"):
        run(main, numbers(2, 32), zeros(2, 32))
