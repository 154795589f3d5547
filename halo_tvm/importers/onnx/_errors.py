"""What others raise for what they do not accept: there is no common base."""

from __future__ import annotations

REFERENCE_ERRORS = (  # the reference implementation, for its input
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    AssertionError,
    RuntimeError,
    KeyError,
    ArithmeticError,
    MemoryError,
)
TVM_ERRORS = (*REFERENCE_ERRORS, StopIteration)  # TVM, for an expression that it cannot type
