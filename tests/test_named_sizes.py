"""Computed sizes of a function's tensors as variables."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.script import tirx as T

from halo_tvm.named_sizes import with_named_sizes


def test_a_computed_size_is_a_variable_and_what_differs_by_a_number_a_sum() -> None:
    @T.prim_func(private=True, s_tir=True)
    def before(a: T.handle, h: T.int64, b: T.handle):
        x = T.match_buffer(a, ((h - 1) // 2 + 1, 4), "float32")
        y = T.match_buffer(b, ((h - 1) // 2 + 3, h), "float32")
        for i, j in T.grid((h - 1) // 2 + 2, h):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.if_then_else(vi < (h - 1) // 2, x[vi, 0], T.float32(0))

    @T.prim_func(private=True, s_tir=True)
    def after(a: T.handle, h: T.int64, b: T.handle):
        size = T.int64()
        x = T.match_buffer(a, (size, 4), "float32")
        y = T.match_buffer(b, (size + 2, h), "float32")
        for i, j in T.grid(size + 1, h):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.if_then_else(vi < size + (-1), x[vi, 0], T.float32(0))

    tvm.ir.assert_structural_equal(with_named_sizes(before), after)


def test_sizes_that_are_known_or_given_are_left_alone() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n, 4), "float32")
        y = T.match_buffer(b, (n + 3, 4), "float32")
        for i, j in T.grid(n, 4):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi + 3, vj] = x[vi, vj]

    assert isinstance(func, tirx.PrimFunc)
    assert with_named_sizes(func).same_as(func)
