"""Sorting and selecting without the C library of TVM's extras: kernels that any deployed runtime has.

`argsort_kernel` is a stable merge sort of rows, for GPUs and for elements of several numbers (of one, CPUs have
`_radix_sort`); NaN counts as the largest number. `nonzero`, `unique` and what else has a length that depends on values
run in two steps: count, then fill a tensor of that size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.script import tirx as T

from ..heaps import comes_before, comparable


@functools.cache
def argsort_kernel(dtype: str, *, descending: bool = False) -> tirx.PrimFunc:
    """x [rows, n, width] -> order [rows, n] int64: each row's elements (compared by their first of `width` numbers
    that differ) in ascending or descending order, equal ones in the order they come."""
    before = comes_before(dtype, descending=descending)

    @T.prim_func(private=True, s_tir=True)
    def argsort(x: T.handle, order: T.handle):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8})
        rows, n, width = T.int64(), T.int64(), T.int64()
        X = T.match_buffer(x, (rows, n, width), dtype)
        Y = T.match_buffer(order, (rows, n), "int64")
        with T.sblock("root"):
            spare = T.sblock_alloc_buffer((rows, n), "int64")
            state = T.sblock_alloc_buffer((rows, T.int64(6)), "int64")
            for r in T.serial(rows):
                with T.sblock("sort"):
                    vr = T.axis.spatial(rows, r)
                    T.reads(X[vr, 0:n, 0:width])
                    T.writes(Y[vr, 0:n], spare[vr, 0:n], state[vr, 0:6])
                    for i in T.serial(n):
                        Y[vr, i] = i
                    state[vr, 0] = T.int64(1)
                    while state[vr, 0] < n:
                        for i in T.serial(n):
                            spare[vr, i] = Y[vr, i]
                        state[vr, 1] = T.int64(0)
                        while state[vr, 1] < n:
                            # merge [lo, mid) and [mid, hi) of spare into Y
                            state[vr, 2] = state[vr, 1]
                            state[vr, 3] = T.min(state[vr, 1] + state[vr, 0], n)
                            for k in T.serial(T.min(state[vr, 1] + state[vr, 0] * T.int64(2), n) - state[vr, 1]):
                                # 4: the right one is taken
                                state[vr, 4] = T.int64(0)
                                if state[vr, 3] < T.min(state[vr, 1] + state[vr, 0] * T.int64(2), n):
                                    if state[vr, 2] >= T.min(state[vr, 1] + state[vr, 0], n):
                                        state[vr, 4] = T.int64(1)
                                    else:
                                        state[vr, 5] = T.int64(0)
                                        for w in T.serial(width):
                                            if state[vr, 5] == T.int64(0):
                                                if before(
                                                    X[vr, spare[vr, state[vr, 3]], w], X[vr, spare[vr, state[vr, 2]], w]
                                                ):
                                                    state[vr, 4] = T.int64(1)
                                                    state[vr, 5] = T.int64(1)
                                                else:
                                                    if before(
                                                        X[vr, spare[vr, state[vr, 2]], w],
                                                        X[vr, spare[vr, state[vr, 3]], w],
                                                    ):
                                                        state[vr, 5] = T.int64(1)
                                if state[vr, 4] == T.int64(1):
                                    Y[vr, state[vr, 1] + k] = spare[vr, state[vr, 3]]
                                    state[vr, 3] = state[vr, 3] + T.int64(1)
                                else:
                                    Y[vr, state[vr, 1] + k] = spare[vr, state[vr, 2]]
                                    state[vr, 2] = state[vr, 2] + T.int64(1)
                            state[vr, 1] = state[vr, 1] + state[vr, 0] * T.int64(2)
                        state[vr, 0] = state[vr, 0] * T.int64(2)

    return argsort


def _not_zero(dtype: str) -> Callable[[tvm.ir.Expr], tvm.ir.Expr]:
    """Whether a value is not zero, as NaN is not; LLVM's comparison of it with a number would say no to both."""
    number, is_float = comparable(dtype), dtype.startswith(("float", "bfloat"))
    zero = number(tirx.const(0, dtype))
    return lambda x: T.Or(number(x) != zero, T.isnan(number(x))) if is_float else number(x) != zero


@functools.cache
def nonzero_count_kernel(dtype: str) -> tirx.PrimFunc:
    """x [n] -> count [1] int64 of elements that are not zero."""
    counts = _not_zero(dtype)

    @T.prim_func(private=True, s_tir=True)
    def nonzero_count(x: T.handle, count: T.handle):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8})
        n = T.int64()
        X = T.match_buffer(x, (n,), dtype)
        C = T.match_buffer(count, (1,), "int64")
        with T.sblock("root"):
            with T.sblock("count"):
                T.reads(X[0:n])
                T.writes(C[0:1])
                C[0] = T.int64(0)
                for i in T.serial(n):
                    if counts(X[i]):
                        C[0] = C[0] + T.int64(1)

    return nonzero_count


@functools.cache
def nonzero_fill_kernel(dtype: str) -> tirx.PrimFunc:
    """x [n] -> places [k] int64 of its k elements that are not zero, ascending."""
    counts = _not_zero(dtype)

    @T.prim_func(private=True, s_tir=True)
    def nonzero_fill(x: T.handle, places: T.handle):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8})
        n, k = T.int64(), T.int64()
        X = T.match_buffer(x, (n,), dtype)
        Y = T.match_buffer(places, (k,), "int64")
        with T.sblock("root"):
            at = T.sblock_alloc_buffer((1,), "int64")
            with T.sblock("fill"):
                T.reads(X[0:n])
                T.writes(Y[0:k], at[0:1])
                at[0] = T.int64(0)
                for i in T.serial(n):
                    if counts(X[i]):
                        Y[at[0]] = i
                        at[0] = at[0] + T.int64(1)

    return nonzero_fill


@functools.cache
def groups_kernel(dtype: str, in_order_of_values: bool) -> tirx.PrimFunc:
    """x [1, n, width], order [1, n] -> group [n] of each element among equal ones, count [1] of groups.

    Groups are numbered by value, or else by where they first occur. NaN is one group, as in NumPy.
    """
    before = comes_before(dtype, descending=False)

    @T.prim_func(private=True, s_tir=True)
    def groups(x: T.handle, order: T.handle, group: T.handle, count: T.handle):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8})
        n, width = T.int64(), T.int64()
        X = T.match_buffer(x, (1, n, width), dtype)
        O = T.match_buffer(order, (1, n), "int64")
        G = T.match_buffer(group, (n,), "int64")
        C = T.match_buffer(count, (1,), "int64")
        with T.sblock("root"):
            first = T.sblock_alloc_buffer((n,), "int64")
            new = T.sblock_alloc_buffer((1,), "bool")
            with T.sblock("groups"):
                T.reads(X[0, 0:n, 0:width], O[0, 0:n])
                T.writes(G[0:n], C[0:1], first[0:n], new[0:1])
                C[0] = T.int64(0)
                for j in T.serial(n):
                    new[0] = j == T.int64(0)
                    if j > T.int64(0):
                        for w in T.serial(width):
                            if T.Or(
                                before(X[0, O[0, j - T.int64(1)], w], X[0, O[0, j], w]),
                                before(X[0, O[0, j], w], X[0, O[0, j - T.int64(1)], w]),
                            ):
                                new[0] = True
                    if new[0]:
                        C[0] = C[0] + T.int64(1)
                        first[O[0, j]] = O[0, j]
                    else:
                        first[O[0, j]] = first[O[0, j - T.int64(1)]]
                    G[O[0, j]] = C[0] - T.int64(1)
                if not in_order_of_values:
                    C[0] = T.int64(0)
                    for i in T.serial(n):
                        if first[i] == i:
                            G[i] = C[0]
                            C[0] = C[0] + T.int64(1)
                        else:
                            G[i] = G[first[i]]

    return groups


@functools.cache
def members_kernel() -> tirx.PrimFunc:
    """group [n] -> first [k] place and counts [k] of each of k groups."""

    @T.prim_func(private=True, s_tir=True)
    def members(group: T.handle, first: T.handle, counts: T.handle):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8})
        n, k = T.int64(), T.int64()
        G = T.match_buffer(group, (n,), "int64")
        F = T.match_buffer(first, (k,), "int64")
        C = T.match_buffer(counts, (k,), "int64")
        with T.sblock("root"):
            with T.sblock("members"):
                T.reads(G[0:n])
                T.writes(F[0:k], C[0:k])
                for j in T.serial(k):
                    F[j] = T.int64(0)
                    C[j] = T.int64(0)
                for i in T.serial(n):
                    if C[G[i]] == T.int64(0):
                        F[G[i]] = i
                    C[G[i]] = C[G[i]] + T.int64(1)

    return members
