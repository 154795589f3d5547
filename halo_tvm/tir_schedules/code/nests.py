"""What nests share that are written with TVM's builder: their root block, loops over vectors, runs of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .lanes import index


@contextmanager
def root_block() -> Iterator[IRBuilder]:
    """The block that all of a nest is in; `get()` of the builder gives it, behind."""
    with IRBuilder() as builder, T.sblock("root"):
        T.reads()
        T.writes()
        yield builder


@contextmanager
def vectors(length: int, lanes: int) -> Iterator[ir.Expr]:
    """Loops over `length` elements, whole vectors of `lanes`, which are unrolled: the number of an element."""
    with T.unroll(index(length // lanes)) as v, T.vectorized(index(lanes)) as lane:
        yield v * lanes + lane


def run_at(
    address: ir.Expr,
    shape: Sequence[ir.Expr | int],
    dtype: str,
    name: str,
    strides: Sequence[ir.Expr | int] | None = None,
) -> ir.Var:
    """A buffer over what is in memory from `address` on."""
    pointer = T.Bind(address, var=tirx.Var(name, ir.PointerType(ir.PrimType(dtype))))
    return T.decl_buffer(shape, dtype, data=pointer, strides=strides)
