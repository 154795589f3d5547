"""What TVM raises for an expression that it cannot type: there is no common base."""

from __future__ import annotations

TVM_ERRORS = (
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    AssertionError,
    RuntimeError,
    KeyError,
    ArithmeticError,
    MemoryError,
    StopIteration,
)
