"""Software prefetch as a statement; TVM's Schedule has no primitive for it."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

CACHE_LINE_BYTES = 64
_READ, _DATA = 0, 1


def prefetch(load: ir.TensorLoad, locality: int = 2) -> None:
    """Emit `llvm.prefetch` of the cache line that `load` would read; locality 3 is L1, 2 is L2.

    The address may lie beyond the tensor: a prefetch never faults.
    """
    how = [tirx.const(value, "int32") for value in (_READ, locality, _DATA)]
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(load), *how))
