"""Comparisons of two tensors, by the names that torch and jax share."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

COMPARISONS: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "eq": relax.op.equal,
    "ne": relax.op.not_equal,
    "lt": relax.op.less,
    "le": relax.op.less_equal,
    "gt": relax.op.greater,
    "ge": relax.op.greater_equal,
}
