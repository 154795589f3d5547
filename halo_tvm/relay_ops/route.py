"""The router of a mixture of experts: which experts a row is sent to, and what their results count.

Shapes
    logits [r, e] float32   correction [e] float32 (optional)   ->   ids [r, top] int32, weights [r, top] float32
Computation
    p = softmax(logits) or sigmoid(logits), as `scores` says
    ids = the `top` experts of the largest logits, or of the largest p + correction; of equal ones the first
    weights = scale * p[ids], of `normalised` ones divided by their sum over the row
    groups: ids are from `top_groups` of so many groups of neighbours alone, those with the largest sums of the `best`
        largest p + correction of a group; of equal ones the first
    "sparsemixer": the weight of the t-th expert, whose logit is m, is one over the sum of exp(l - m) over the experts
        that are not chosen before it and have m - l <= tolerance * max(|l|, m)
Lifts
    none: a model's definition calls it
Rejects
    none
Numerics
    float32. A row with NaN is sent to experts that exist
References
    arXiv:1701.06538 (softmax), arXiv:2401.04088 (normalised), arXiv:2412.19437 (sigmoid and correction),
    arXiv:2409.12136 (sparsemixer)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from .operator import Operator, attrs_of, clamped

SCORES = ("softmax", "sigmoid", "sparsemixer")
_LEAST = 1e-20  # added to the sum that weights are divided by: sigmoids may all be zero


class Route(Operator):
    """Experts of every row and their weights."""

    name = "route"
    fusible = False

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TupleType:  # type: ignore[override]
        attrs: dict[str, Any] = attrs_of(call)
        logits, *correction = (arg.ty for arg in call.args)
        if logits.ndim != 2 or any(str(ty.dtype) != "float32" for ty in (logits, *correction)):
            raise ValueError(f"halo.route: expected float32 logits [rows, experts], got {logits} and {correction}")
        rows, experts = logits.shape.values
        if attrs["scores"] not in SCORES or not 1 <= int(attrs["top"]) <= int(experts):
            raise ValueError(
                f"halo.route: expected scores among {', '.join(SCORES)} and top from 1 to {experts} experts, "
                f"got {attrs['scores']} and {attrs['top']}"
            )
        _check_groups(
            int(experts), **{name: int(attrs.get(name, 1)) for name in ("top", "groups", "top_groups", "best")}
        )
        shape = [rows, int(attrs["top"])]
        return relax.TupleType([relax.TensorType(shape, "int32"), relax.TensorType(shape, "float32")])

    @staticmethod
    def compute(
        logits: te.Tensor,
        *correction: te.Tensor,
        top: int,
        scores: str,
        normalised: bool,
        scale: float,
        tolerance: float = 0.0,
        groups: int = 1,
        top_groups: int = 1,
        best: int = 1,
    ) -> list[te.Tensor]:
        rows, experts = logits.shape
        p = logits if scores == "sparsemixer" else _scores(logits, scores)
        choice = p if groups > 1 else logits  # sums of logits are in another order
        if correction:
            choice = te.compute((rows, experts), lambda i, e: p[i, e] + correction[0][e], name="choice")
        if groups > 1:
            choice = _limited(choice, groups, top_groups, best)
        rank = _rank(choice, "rank")
        expert = te.reduce_axis((0, experts), "expert")
        ids = te.compute(
            (rows, top),
            lambda i, t: te.sum(
                tirx.Select(rank[i, expert] == t.astype("int32"), expert.var.astype("int32"), _int(0)), axis=expert
            ),
            name="route",
            attrs={"halo.op": "route"},
        )
        factor = tirx.const(scale, "float32")
        chosen = te.compute((rows, top), lambda i, t: p[i, clamped(ids[i, t], experts)], name="chosen")
        if scores == "sparsemixer":
            chosen = _mixed(logits, rank, chosen, tolerance)
        if normalised:
            each = te.reduce_axis((0, top), "each")
            total = te.compute((rows,), lambda i: te.sum(chosen[i, each], axis=each), name="total")
            least = tirx.const(_LEAST, "float32")
            weights = te.compute((rows, top), lambda i, t: chosen[i, t] / (total[i] + least) * factor, name="weights")
        else:
            weights = te.compute((rows, top), lambda i, t: chosen[i, t] * factor, name="weights")
        return [ids, weights]

    @staticmethod
    def reference(  # type: ignore[override]
        logits: np.ndarray,
        *correction: np.ndarray,
        top: int,
        scores: str,
        normalised: bool,
        scale: float,
        tolerance: float = 0.0,
        groups: int = 1,
        top_groups: int = 1,
        best: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        if scores == "sparsemixer":
            p = logits
        elif scores == "softmax":
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p = p / p.sum(-1, keepdims=True)
        else:
            p = 1 / (1 + np.exp(-logits))
        choice = p + correction[0] if correction else p if groups > 1 else logits
        if groups > 1:
            members = choice.reshape(len(choice), groups, -1)
            sums = -np.sort(-members, axis=-1)[:, :, :best].sum(-1)
            chosen = np.argsort(np.argsort(-sums, axis=-1, kind="stable"), axis=-1) < top_groups
            choice = np.where(chosen[:, :, None], members, -np.inf).reshape(choice.shape)
        ids = np.argsort(-choice, axis=-1, kind="stable")[:, :top].astype(np.int32)
        weights = np.take_along_axis(p, ids.astype(np.int64), -1)
        if scores == "sparsemixer":
            left = logits.copy()
            for t in range(top):
                peak = weights[:, t : t + 1]
                near = np.isfinite(left) & (peak - logits <= tolerance * np.maximum(np.abs(logits), peak))
                np.put_along_axis(left, ids[:, t : t + 1].astype(np.int64), -np.inf, -1)
                weights[:, t] = 1 / np.where(near, np.exp(logits - peak), 0).sum(-1)
        if normalised:
            weights = weights / (weights.sum(-1, keepdims=True) + _LEAST)
        return ids, weights * scale

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], **_attrs: object) -> int:
        rows, experts = shapes[0]
        return rows * experts * experts

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        equal = np.array([[1.0, 3.0, 3.0, 3.0, 0.0], [0.0] * 5], np.float32)
        plain: dict[str, object] = {"scores": "softmax", "normalised": False, "scale": 1.0}
        return (
            {"args": [(7, 12)], "attrs": {"top": 3, **plain}},
            {"args": [(1, 64)], "attrs": {"top": 8, **plain, "normalised": True}},
            {"args": [equal], "attrs": {"top": 2, **plain}},
            {"args": [(5, 12), (12,)], "attrs": {"top": 4, "scores": "sigmoid", "normalised": True, "scale": 2.5}},
            {
                "args": [(5, 12), (12,)],
                "attrs": {"top": 4, "scores": "sigmoid", "normalised": True, "scale": 2.5}
                | {"groups": 4, "top_groups": 2, "best": 2},
            },
            {"args": [(5, 12)], "attrs": {"top": 3, **plain, "groups": 3, "top_groups": 1}},
            {"args": [(9, 8)], "attrs": {"top": 2, **plain, "scores": "sparsemixer", "tolerance": 0.6}},
        )


def _check_groups(experts: int, *, top: int, groups: int, top_groups: int, best: int) -> None:
    size = experts // groups if groups > 0 and experts % groups == 0 else 0
    if not size or not 1 <= top_groups <= groups or not 1 <= best <= size or top > top_groups * size:
        raise ValueError(
            f"halo.route: expected groups that divide the {experts} experts, top_groups of them with {top} experts or "
            f"more, and best up to the size of a group, got groups {groups}, top_groups {top_groups} and best {best}"
        )


def _rank(values: te.Tensor, name: str, groups: int = 1) -> te.Tensor:
    """How many values of the row, or of its group of neighbours, are before each: larger ones, and equal in front."""
    rows, count = values.shape
    size = count // groups
    other = te.reduce_axis((0, size), "other")

    def is_before(i: ir.Expr, e: ir.Expr) -> ir.Expr:
        first, place = (0, e) if groups == 1 else (e // size * size, e % size)
        a, b = values[i, first + other], values[i, e]
        return tirx.any(a > b, tirx.all(a == b, other < place))

    return te.compute(
        (rows, count), lambda i, e: te.sum(tirx.Select(is_before(i, e), _int(1), _int(0)), axis=other), name=name
    )


def _limited(choice: te.Tensor, groups: int, top_groups: int, best: int) -> te.Tensor:
    """`choice` with the least number in place of experts of other groups than the `top_groups`."""
    rows, experts = choice.shape
    size = experts // groups
    member = te.reduce_axis((0, size), "member")
    place = _rank(choice, "place", groups)

    def among_best(i: ir.Expr, g: ir.Expr) -> ir.Expr:
        e = g * size + member
        return te.sum(tirx.Select(place[i, e] < best, choice[i, e], tirx.const(0.0, "float32")), axis=member)

    order = _rank(te.compute((rows, groups), among_best, name="group"), "group_rank")
    return te.compute(
        (rows, experts),
        lambda i, e: tirx.Select(order[i, e // size] < top_groups, choice[i, e], tirx.min_value("float32")),
        name="limited",
    )


def _scores(logits: te.Tensor, scores: str) -> te.Tensor:
    """p of every expert."""
    rows, experts = logits.shape
    if scores == "sigmoid":
        one = tirx.const(1.0, "float32")
        return te.compute((rows, experts), lambda i, e: one / (one + tirx.exp(-logits[i, e])), name="sigmoid")
    axis, again = te.reduce_axis((0, experts), "e"), te.reduce_axis((0, experts), "e")
    peak = te.compute((rows,), lambda i: te.max(logits[i, axis], axis=axis), name="peak")
    power = te.compute((rows, experts), lambda i, e: tirx.exp(logits[i, e] - peak[i]), name="power")
    total = te.compute((rows,), lambda i: te.sum(power[i, again], axis=again), name="sum")
    return te.compute((rows, experts), lambda i, e: power[i, e] / total[i], name="softmax")


def _mixed(logits: te.Tensor, rank: te.Tensor, peak: te.Tensor, tolerance: float) -> te.Tensor:
    """The weights of "sparsemixer"; `peak` [rows, top] are the logits of the chosen experts."""
    rows, experts = logits.shape
    expert, part = te.reduce_axis((0, experts), "near"), tirx.const(tolerance, "float32")

    def near(i: ir.Expr, t: ir.Expr) -> ir.Expr:
        value, most = logits[i, expert], peak[i, t]
        is_near = most - value <= part * tirx.max(tirx.abs(value), most)
        is_left = rank[i, expert] >= t.astype("int32")
        power = tirx.exp(value - most)
        return te.sum(tirx.Select(tirx.all(is_left, is_near), power, tirx.const(0.0, "float32")), axis=expert)

    sums = te.compute(peak.shape, near, name="near_sum")
    return te.compute(peak.shape, lambda i, t: tirx.const(1.0, "float32") / sums[i, t], name="mixed")


def _int(value: int) -> tirx.IntImm:
    return tirx.const(value, "int32")
