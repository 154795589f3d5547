"""Boxes of object detection: non-maximum suppression, and the end of SSD nets as one custom operator.

Results have as many rows as the file allows; those behind the number of boxes that were found are zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import islice

import numpy as np

from ._file import Graph, Operator, Signature
from ._node import Node, Refused, Result
from ._registry import writes

_POST_PROCESS = "custom operator TFLite_Detection_PostProcess"
_MOST_BOXES = 1 << 16
_MOST_OPTIONS = 64
_FIRST_REGULAR = 100  # boxes of a class, where the options leave it out


@writes("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(node: Node) -> tuple[Result, ...]:
    """Inputs: boxes [n, 4], scores [n], how many at most, overlap, least score, and of V5 a sigma, which must be 0.

    -> indices [limit], of V5 their scores [limit], how many there are. Another sigma lowers the scores of neighbours.
    """
    limit = node.integers(2, "the number of boxes")[0]
    overlap, least = (float(node.constant(i, "limits").reshape(())) for i in (3, 4))
    _check_limits(limit)
    soft = node.operator.name.endswith("V5")
    if soft and float(node.constant(5, "sigma").reshape(())) != 0:
        raise Refused("expected a sigma of 0, which drops neighbours, found one that lowers their scores")
    scores = node.x(1)
    boxes = node.emit("Unsqueeze", node.x(0), node.sizes([0]))
    chosen = _suppressed(node, boxes, node.emit("Unsqueeze", scores, node.sizes([0, 1])), limit, overlap, least)
    found, places = _padded(node, chosen, limit)
    index = _boxes_of(node, places, limit)
    there = _there(node, found, limit)
    indices = node.emit("Cast", node.emit("Where", there, index, node.sizes([0])), to=6)
    count = Result(node.emit("Cast", node.emit("Squeeze", found), to=6), stored=True)
    if not soft:
        return Result(indices, stored=True), count
    kept = node.emit("Where", there, node.emit("Gather", scores, index), node.const(np.zeros(1, np.float32)))
    return Result(indices, stored=True), Result(kept), count


@writes(_POST_PROCESS)
def detection_post_process(node: Node) -> tuple[Result, ...]:
    """Inputs: boxes as steps from anchors [1, n, 4], scores [1, n, classes, maybe one in front], anchors [n, 4].

    -> boxes [1, rows, 4] by (top, left, bottom, right), classes [1, rows], scores [1, rows], how many boxes [1]
    """
    options = _options(node.operator)
    classes, limit, each = (
        _whole(options, key) for key in ("num_classes", "max_detections", "max_classes_per_detection")
    )
    _check_limits(limit, classes, each)
    if each > classes:
        raise Refused(f"expected at most {classes} classes of a box, as many as there are, found {each}")
    if node.rank(1) != 3 or node.shape(1)[0] != 1 or node.shape(1)[2] not in (classes, classes + 1):
        raise Refused(f"expected scores of one image and {classes} classes, found {list(node.shape(1))}")
    boxes, scores = _decoded(node, options), node.x(1)
    if node.shape(1)[2] == classes + 1:  # the first is the background
        scores = node.sliced(scores, 2, 1, classes + 1)
    # LiteRT keeps scores equal to the least.
    least = float(np.nextafter(np.float32(_real(options, "nms_score_threshold")), np.float32(-np.inf)))
    overlap = _real(options, "nms_iou_threshold")
    if options.get("use_regular_nms"):
        per_class = _whole(options, "detections_per_class", _FIRST_REGULAR)
        _check_limits(per_class)
        chosen = _suppressed(node, boxes, node.emit("Transpose", scores, perm=[0, 2, 1]), per_class, overlap, least)
        return _best_of_classes(node, boxes, scores, chosen, limit, limit * each)
    return _classes_of_best(node, boxes, scores, (overlap, least), limit, each)


def _classes_of_best(
    node: Node, boxes: str, scores: str, limits: tuple[float, float], limit: int, each: int
) -> tuple[Result, ...]:
    """Boxes by the best score of each, whatever its class; every box with its `each` best classes."""
    best, classes = node.emit_all("TopK", [scores, node.sizes([each])], 2, axis=-1)
    first = node.sliced(best, 2, 0, 1)
    chosen = _suppressed(node, boxes, node.emit("Transpose", first, perm=[0, 2, 1]), limit, *limits)
    found, places = _padded(node, chosen, limit)
    index = _boxes_of(node, places, limit)
    there = node.emit("Unsqueeze", _there(node, found, limit), node.sizes([0, 2]))

    def rows(of: str, width: int) -> str:
        """[1, limit * each, width] of the chosen boxes' `of` [1, n, ...]."""
        picked = node.emit("Where", there, node.emit("Gather", of, index, axis=1), node.const(np.zeros(1, np.float32)))
        if width == 4:
            picked = node.emit("Tile", picked, node.sizes([1, 1, each]))
        return node.emit("Reshape", picked, node.sizes([1, limit * each, *([4] if width == 4 else [])]))

    classes = node.emit("Cast", classes, to=1)
    count = node.emit("Cast", found, to=1)
    return Result(rows(boxes, 4)), Result(rows(classes, 1)), Result(rows(best, 1)), Result(count)


def _best_of_classes(node: Node, boxes: str, scores: str, chosen: str, limit: int, rows: int) -> tuple[Result, ...]:
    """Boxes suppressed within each class; of all of them the best `limit`, a box for each class that it is in."""
    found, places = _padded(node, chosen, limit)
    # [m, 3] of (0, class, box) -> (0, box, class), where the score is.
    at = node.emit("Gather", chosen, node.sizes([0, 2, 1]), axis=1)
    valued = node.emit(
        "Concat", node.emit("GatherND", scores, at), node.const(np.full(limit, -np.inf, np.float32)), axis=0
    )
    best, order = node.emit_all("TopK", [valued, node.sizes([limit])], 2, axis=0)
    count = node.emit("Min", found, node.sizes([limit]))
    kept = _there(node, count, limit)
    zero = node.const(np.zeros(1, np.float32))
    picked = node.emit("Gather", places, order, axis=0)
    columns = node.emit_all("Split", [picked], 3, axis=1, num_outputs=3)
    of_class, index = (node.emit("Squeeze", columns[i], node.sizes([1])) for i in (1, 2))
    framed = node.emit(
        "Where", node.emit("Unsqueeze", kept, node.sizes([0, 2])), node.emit("Gather", boxes, index, axis=1), zero
    )
    lines = [node.emit("Where", kept, values, zero) for values in (node.emit("Cast", of_class, to=1), best)]
    lines = [node.emit("Unsqueeze", line, node.sizes([0])) for line in lines]
    if rows > limit:
        framed = node.emit("Pad", framed, node.sizes([0, 0, 0, 0, rows - limit, 0]))
        lines = [node.emit("Pad", line, node.sizes([0, 0, 0, rows - limit])) for line in lines]
    return Result(framed), *map(Result, lines), Result(node.emit("Cast", count, to=1))


def _suppressed(node: Node, boxes: str, scores: str, limit: int, overlap: float, least: float) -> str:
    """[m, 3] of (image, class, box)."""
    limits = [node.const([value], np.float32) for value in (overlap, least)]
    return node.emit("NonMaxSuppression", boxes, scores, node.sizes([limit]), *limits)


def _padded(node: Node, chosen: str, limit: int) -> tuple[str, str]:
    """The number of rows of `chosen` [m, 3] as int64 [1], and the rows with `limit` zero rows behind them."""
    zeros = node.const(np.zeros((limit, 3), np.int64))
    return node.emit("Shape", chosen, start=0, end=1), node.emit("Concat", chosen, zeros, axis=0)


def _boxes_of(node: Node, places: str, limit: int) -> str:
    """The box of each of the first `limit` rows of `places`."""
    first = node.emit("Gather", places, node.const(np.arange(limit), np.int64), axis=0)
    return node.emit("Gather", first, node.const(2, np.int64), axis=1)


def _there(node: Node, count: str, limit: int) -> str:
    """bool [limit]: the first `count`."""
    return node.emit("Less", node.const(np.arange(limit), np.int64), count)


def _decoded(node: Node, options: Mapping[str, float]) -> str:
    """Corners [1, n, 4] of boxes that the net gives as steps from anchors, both by (y, x, height, width)."""
    if node.rank(0) != 3 or node.shape(0)[0] != 1 or node.shape(0)[2] != 4 or node.rank(2) != 2:
        raise Refused(
            f"expected boxes [1, n, 4] and anchors [n, 4], found {list(node.shape(0))}, {list(node.shape(2))}"
        )
    scales = [_real(options, f"{key}_scale") for key in "yxhw"]
    if not all(np.isfinite(s) and s > 0 for s in scales):
        raise Refused(f"expected scales above 0, found {scales}")
    steps = node.emit("Div", node.x(0), node.const(scales, np.float32))
    moved, grown = (node.sliced(steps, 2, i, i + 2) for i in (0, 2))
    centres, sizes = (node.sliced(node.x(2), 1, i, i + 2) for i in (0, 2))
    centre = node.emit("Add", node.emit("Mul", moved, sizes), centres)
    half = node.emit("Mul", node.emit("Mul", node.emit("Exp", grown), sizes), node.const(0.5, np.float32))
    return node.emit("Concat", node.emit("Sub", centre, half), node.emit("Add", centre, half), axis=2)


def rows_behind(graph: Graph, signature: Signature) -> dict[str, tuple[str, int]]:
    """Outputs whose rows LiteRT leaves as memory was -> the output that counts boxes, and rows for each of them."""
    names = {index: name for name, index in signature.outputs.items()}
    found: dict[str, tuple[str, int]] = {}
    for operator in graph.operators:
        if operator.name == _POST_PROCESS and len(operator.outputs) == 4 and operator.outputs[3] in names:
            options = _options(operator)
            each = 1 if options.get("use_regular_nms") else _whole(options, "max_classes_per_detection")
            rows = (names[index] for index in operator.outputs[:3] if index in names)
            found.update(dict.fromkeys(rows, (names[operator.outputs[3]], each)))
    return found


def _options(operator: Operator) -> dict[str, float]:
    """The numbers of a map in FlexBuffers' form, in bytes that nobody vouches for."""
    from flatbuffers import flexbuffers

    try:
        found = flexbuffers.GetRoot(operator.custom).AsMap
        pairs = islice(zip(found.Keys, found.Values), _MOST_OPTIONS)
        return {key.AsKey[:64]: value.AsFloat for key, value in pairs if value.IsNumeric or value.IsBool}
    except (ValueError, LookupError, TypeError, OverflowError, struct.error, AssertionError) as reason:
        raise Refused("expected options as a map of FlexBuffers, found other bytes") from reason


def _real(options: Mapping[str, float], key: str) -> float:
    if key not in options:
        raise Refused(f"expected the option {key}, found {', '.join(sorted(options)) or 'none'}")
    return options[key]


def _whole(options: Mapping[str, float], key: str, default: int | None = None) -> int:
    value = float(default) if default is not None and key not in options else _real(options, key)
    if not (np.isfinite(value) and value == int(value)):
        raise Refused(f"expected a whole number for {key}, found {value}")
    return int(value)


def _check_limits(*limits: int) -> None:
    if not all(0 < limit <= _MOST_BOXES for limit in limits):
        raise Refused(f"expected numbers of boxes and classes from 1 to {_MOST_BOXES}, found {list(limits)}")
