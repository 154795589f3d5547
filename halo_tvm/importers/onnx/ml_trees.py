"""ai.onnx.ml: ensembles of decision trees, one kernel (`_tree_walk.py`)."""

from __future__ import annotations

import numpy as np
from tvm import relax, te

from ..meaning.builder import expr_dtype, expr_shape
from ._forest import Forest, by_node_ids, by_positions
from ._ml import ML, TRANSFORMS, class_labels, column, columns, labelled, rows, transformed, weight
from ._node import Node
from ._registry import converter
from ._tree_walk import Walk, always_voted

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@converter("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(node: Node) -> relax.Expr:
    """float32 [rows, targets]. Every target gets its base value: onnxruntime leaves out those that got no vote."""
    x = _features(node)
    targets = int(node.attr("n_targets", 1))
    forest = by_node_ids(node, "target", expr_dtype(x), targets)
    aggregate = node.attr("aggregate_function", "SUM")
    node.refuse_unless(aggregate in _AGGREGATES, f"expected one of {', '.join(_AGGREGATES)}, found {aggregate}")
    scores, _ = _voted(node, x, forest, targets, aggregate)
    base = _base_values(node, expr_dtype(x))
    if base.size:
        node.refuse_unless(base.size in (1, targets), f"expected {targets} base values, found {base.size}")
        scores = node.emit(relax.op.add(scores, relax.const(base, str(base.dtype))))
    return node.cast(transformed(node, scores, node.attr("post_transform", "NONE")), "float32")


@converter("TreeEnsemble", domain=ML, since=5)
def tree_ensemble(node: Node) -> relax.Expr:
    """[rows, targets] in the type of x; sums in float32 at least."""
    x = _features(node)
    targets = int(node.attr("n_targets", 1))
    forest = by_positions(node, expr_dtype(x), targets)
    aggregate, kind = int(node.attr("aggregate_function", 1)), int(node.attr("post_transform", 0))
    node.refuse_unless(0 <= aggregate < len(_AGGREGATES), f"expected 0 to 3 as aggregate_function, found {aggregate}")
    node.refuse_unless(0 <= kind < len(TRANSFORMS), f"expected 0 to 4 as post_transform, found {kind}")
    scores, _ = _voted(node, x, forest, targets, _AGGREGATES[aggregate])
    return node.cast(transformed(node, scores, TRANSFORMS[kind]), node.dtype(0))


@converter("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """(labels [rows], float32 scores [rows, classes])."""
    x = _features(node)
    labels = class_labels(node, "classlabels_int64s", "classlabels_strings")
    kind = node.attr("post_transform", "NONE")
    forest = by_node_ids(node, "class", expr_dtype(x), max(labels.size, 1))
    base = _base_values(node, expr_dtype(x))
    one_for_two = labels.size == 2 and np.unique(forest.targets).size == 1
    marks = not one_for_two and not base.size
    scores, seen = _voted(node, x, forest, labels.size, "SUM", marks=marks)
    if one_for_two:
        index, scores = _two_from_one(node, scores, forest, base, kind)
    else:
        index, scores = _most_votes(node, scores, seen, base, kind)
    return labelled(node, index, labels), node.cast(scores, "float32")


def _most_votes(
    node: Node, scores: relax.Expr, seen: relax.Expr | None, base: np.ndarray, kind: str
) -> tuple[relax.Expr, relax.Expr]:
    """The class of the largest score among those that got a vote, the first of several."""
    classes = expr_shape(scores)[1]
    if base.size:
        node.refuse_unless(base.size == classes, f"expected {classes} base values, found {base.size}")
        scores = node.emit(relax.op.add(scores, relax.const(base, str(base.dtype))))
    candidates = scores
    if seen is not None:
        lowest = relax.const(np.finfo(expr_dtype(scores)).min, expr_dtype(scores))
        candidates = node.emit(relax.op.where(node.cast(seen, "bool"), scores, lowest))
    index = node.emit(relax.op.argmax(candidates, -1))
    return index, transformed(node, scores, kind)


def _two_from_one(
    node: Node, scores: relax.Expr, forest: Forest, base: np.ndarray, kind: str
) -> tuple[relax.Expr, relax.Expr]:
    """Two classes, all votes for one of them: a probability where no vote is negative, else a margin."""
    dtype = expr_dtype(scores)
    node.refuse_unless(kind != "PROBIT", "post_transform PROBIT of one score for two classes has no agreed meaning")
    second = int(forest.targets[0]) == 1
    node.refuse_unless(
        base.size < 2 - second, "base values for two classes of which one gets votes have no agreed meaning"
    )
    score = column(node, scores, int(second))
    if base.size:
        score = node.emit(relax.op.add(score, relax.const(base, dtype)))
    is_probability = bool((forest.weights >= 0).all())
    above = node.emit(relax.op.greater(score, relax.const(0.5 if is_probability else 0.0, dtype)))
    index = node.emit(relax.op.reshape(node.cast(above, "int64"), (expr_shape(scores)[0],)))
    if second:  # the first class keeps the score 0, as its engine has it
        return index, transformed(node, scores, kind)
    if is_probability and kind != "LOGISTIC":
        other = node.emit(relax.op.subtract(relax.const(1.0, dtype), score))
    else:
        other = node.emit(relax.op.negative(score))
    both = columns(node, other, score)
    return index, transformed(node, both, kind) if kind == "LOGISTIC" else both


def _features(node: Node) -> relax.Expr:
    """x in the type in which it is compared: float64 stays, everything else is float32."""
    x = rows(node)
    return x if expr_dtype(x) == "float64" else node.cast(x, "float32")


def _base_values(node: Node, dtype: str) -> np.ndarray:
    name = "base_values_as_tensor" if node.has_attr("base_values_as_tensor") else "base_values"
    return np.asarray(node.attr(name, []), dtype).reshape(-1)


def _voted(
    node: Node, x: relax.Expr, forest: Forest, targets: int, aggregate: str, *, marks: bool = False
) -> tuple[relax.Expr, relax.Expr | None]:
    """(scores [rows, targets], whether a leaf voted for the target: int8 [rows, targets]).

    None for the second where nobody asks (`marks`), or every target always gets a vote.
    """
    node.refuse_unless(0 < targets <= 1 << 16, f"expected 1 to {1 << 16} targets, found {targets}")
    counts = aggregate in ("MIN", "MAX") or marks and not always_voted(forest, targets)
    walk = Walk.of(forest, targets, aggregate, counts)

    def results(x: te.Tensor, *tables: te.Tensor) -> te.Tensor | list[te.Tensor]:
        shape = (x.shape[0], targets)
        kinds = [x.dtype, "int8"] if counts else [x.dtype]
        return te.extern([shape] * len(kinds), [x, *tables], walk.nest, dtype=kinds, name="trees")

    found = node.te(results, x, *(weight(node, table) for table in walk.tables.values()), name="onnx_trees")
    if not counts:
        return found, None
    return node.emit(relax.TupleGetItem(found, 0)), node.emit(relax.TupleGetItem(found, 1))
