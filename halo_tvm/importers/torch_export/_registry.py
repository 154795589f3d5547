"""Which function converts which ATen operator. Each family of operators is one file beside this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ._call import Call

CONVERTERS: dict[str, Callable[[Call], object]] = {}
COMPLEX: dict[str, Callable[[Call], object]] = {}  # of operators that take or give complex numbers

HIGHER_ORDER = "higher_order."  # in front of the names of operators that hold graphs

# Statements about values that the exporter has already relied on: they compute nothing.
IGNORED = frozenset(
    (
        "aten._assert_tensor_metadata.default aten._assert_scalar.default aten._assert_async.msg "
        "aten._assert_async.default aten._linalg_check_errors.default aten.sym_constrain_range.default "
        "aten.sym_constrain_range_for_size.default"
    ).split()
)


def converter(
    *operators: str, of_complex: bool = False
) -> Callable[[Callable[[Call], object]], Callable[[Call], object]]:
    """Register a function for operators, named with overload and without `aten.`: `@converter("add.Tensor")`.

    Operators that hold graphs are named as `@converter("higher_order.cond")`.

    `of_complex`: for calls of them that take or give complex numbers, see `_complex`.
    """
    table = COMPLEX if of_complex else CONVERTERS

    def register(function: Callable[[Call], object]) -> Callable[[Call], object]:
        for operator in operators:
            whole = operator.count(".") > 1 or operator.startswith(HIGHER_ORDER)
            name = operator if whole else f"aten.{operator}"
            assert name not in table, f"two converters for {name}"
            table[name] = function
        return function

    return register


def target_name(target: object) -> str:
    """`aten.add.Tensor`, `higher_order.cond`, or the plain name of a Python function."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{HIGHER_ORDER}{target.name()}"
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._schema.name.split('::')[-1]}.{target._overloadname}"
    return getattr(target, "__name__", str(target))


def is_random(target: object) -> bool:
    """Whether an ATen operator draws numbers."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
