"""Which level of a target a model's file asks for by what it multiplies.

A level may have products of bytes that others lack, and be taken for precisions that use them alone: artifacts of
float32 then run on more hosts. A quantised file is compiled at fp32, and its products are of bytes all the same.
"""

from __future__ import annotations

from tvm import relax

from .imported import ImportedModel
from .relay_ops.operator import operator_of

_OF_BYTES = frozenset({"linear_integer", "convolution_integer"})


def precision_of_products(model: ImportedModel) -> str | None:
    """The precision whose level has the products of the file: "int8" of a quantised one; None of floats."""
    found: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        operator = operator_of(expr) if isinstance(expr, relax.Call) else None
        if operator is not None:
            found.add(operator.name)

    for func in model.mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return "int8" if found & _OF_BYTES else None
