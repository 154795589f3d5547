"""What stands in front of one nest is written into it while it stays short."""

from __future__ import annotations

import tvm
from tvm import te

from halo_tvm.passes._inline_small import inline_small
from halo_tvm.tir_schedules.blocks import blocks


def chain(steps: int) -> tvm.IRModule:
    """A row of 9 numbers, `steps` times x -> x * x + x, times every row of a matrix."""
    row, x = te.placeholder((9,), name="row"), te.placeholder((5, 9), name="x")
    value = row
    for _ in range(steps):
        value = te.compute((9,), lambda i: value[i] * value[i] + value[i])
    y = te.compute((5, 9), lambda i, j: x[i, j] * value[j])
    return tvm.IRModule({"main": te.create_prim_func([row, x, y])})


def test_short_values_are_written_where_they_are_read() -> None:
    assert len(blocks(inline_small(chain(2))["main"])) == 1


def test_a_polynomial_of_a_polynomial_stays_a_block() -> None:
    """Each step triples the one before: 3 ** 14 products, and compiling did not end."""
    text = inline_small(chain(14))["main"].script()
    assert len(text) < 100_000
