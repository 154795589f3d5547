"""Functions of TensorIR that are written as TVMScript text: equal texts are parsed once per process.

TVM's parser takes milliseconds a line, and a model asks for the same text once per layer and entry point.
"""

from __future__ import annotations

import functools

import tvm
from tvm import tirx
from tvm.script import tirx as script_tirx


@functools.lru_cache(maxsize=256)
def prim_func(text: str, imports: str = "") -> tirx.PrimFunc:
    """The function that `text` defines in the words of `T`; `imports` is LLVM text that it may name."""
    return tvm.script.from_source(text, extra_vars={"T": script_tirx, "imports": imports})
