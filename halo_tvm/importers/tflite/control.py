"""IF and WHILE: graphs of the file inside of ONNX nodes. A loop that counts up to a limit says how often it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ValueInfoProto, helper

from ._file import Graph as File
from ._file import Operator
from ._node import Node, Refused, Result
from ._registry import writes
from .elementwise import onnx_type

_SCALAR = np.zeros(0, np.int64)


@writes("IF")
def if_(node: Node) -> tuple[Result, ...]:
    """Inputs: a condition, then what both branches take."""
    inputs = [node.stored(i) for i in range(1, node.count)]
    known = {i - 1: data for i in range(1, node.count) if (data := node.known(i)) is not None}
    branches = []
    for name in ("then", "else"):
        graph, outputs = node.graph.inner(node.option(f"{name}_subgraph_index"), inputs, known)
        branches.append((len(outputs), graph.proto(name, [], outputs)))
    if branches[0][0] != branches[1][0]:
        raise Refused(f"expected branches of as many results, found {branches[0][0]} and {branches[1][0]}")
    attributes = {"then_branch": branches[0][1], "else_branch": branches[1][1]}
    return tuple(Result(o, stored=True) for o in node.emit_all("If", [node.stored(0)], branches[0][0], **attributes))


@writes("WHILE")
def while_(node: Node) -> tuple[Result, ...]:
    """Inputs are what the loop carries; values that its body only passes on are known around it instead."""
    graphs = node.graph.writer.model.graphs
    condition, body = (node.option(f"{name}_subgraph_index") for name in ("cond", "body"))
    count = node.count
    if any(len(graphs[g].inputs) != count for g in (condition, body)) or len(graphs[body].outputs) != count:
        raise Refused(f"expected graphs that take and give the {count} values of the loop, found others")
    fixed = [graphs[body].inputs[i] == graphs[body].outputs[i] for i in range(count)]
    carried = [i for i in range(count) if not fixed[i]]
    before = [node.stored(i) for i in range(count)]
    known = {i: data for i in range(count) if fixed[i] and (data := node.known(i)) is not None}
    counters = _counters(node, graphs[condition], graphs[body], fixed)

    names = {i: node.graph.writer.name(f"carried_{i}") for i in carried}
    inside = [before[i] if fixed[i] else names[i] for i in range(count)]
    graph, after = node.graph.inner(body, inside, known)
    if counters:
        trips, first = _trips(node, counters), ""
        going = graph.emit("Identity", [graph.constant(np.asarray(True))], {})
    else:
        trips = ""
        (begins,) = node.graph.inline(condition, before, known)
        (goes_on,) = graph.inline(condition, [before[i] if fixed[i] else after[i] for i in range(count)], known)
        first, going = (
            g.emit("Reshape", [v, g.constant(_SCALAR)], {}) for g, v in ((node.graph, begins), (graph, goes_on))
        )
    infos = [
        helper.make_tensor_value_info(node.graph.writer.name("trip"), onnx_type("int64"), []),
        helper.make_tensor_value_info(node.graph.writer.name("going"), onnx_type("bool"), []),
        *(_info(node, i, names[i]) for i in carried),
    ]
    proto = graph.proto("body", infos, [going, *(after[i] for i in carried)])
    if not carried:
        return tuple(Result(b, stored=True) for b in before)
    results = node.emit_all("Loop", [trips, first, *(before[i] for i in carried)], len(carried), body=proto)
    by_place = dict(zip(carried, results))
    return tuple(Result(by_place.get(i, before[i]), stored=True) for i in range(count))


def _info(node: Node, i: int, name: str) -> ValueInfoProto:
    info: ValueInfoProto = helper.make_tensor_value_info(name, onnx_type(node.tensor(i).dtype), None)
    return info


@dataclass(frozen=True)
class _Counter:
    """The loop goes on while value `place`, which grows by 1, is below value `limit` or `bound`."""

    place: int
    limit: int | None
    bound: int


def _counters(node: Node, condition: File, body: File, fixed: list[bool]) -> list[_Counter]:
    """What the condition compares, if it is nothing but such counters and all must be below their limits."""
    made = {o.outputs[0]: o for o in condition.operators if o.outputs}
    grown = {o.outputs[0]: o for o in body.operators if o.outputs}
    found: list[_Counter] = []
    todo = list(condition.outputs)
    while todo:
        operator = made.get(todo.pop())
        if operator is None or len(operator.inputs) != 2:
            return []
        if operator.name == "LOGICAL_AND":
            todo += operator.inputs
            continue
        counter = _counter(operator, condition, body, grown, fixed) if operator.name == "LESS" else None
        if counter is None or len(found) > 8:
            return []
        found.append(counter)
    return found


def _counter(
    less: Operator, condition: File, body: File, grown: dict[int, Operator], fixed: list[bool]
) -> _Counter | None:
    left, right = less.inputs
    if left not in condition.inputs:
        return None
    place = condition.inputs.index(left)
    step = grown.get(body.outputs[place])
    if step is None or step.name != "ADD" or body.inputs[place] not in step.inputs:
        return None
    others = [body.tensors[i].data for i in step.inputs if i != body.inputs[place]]
    if len(others) != 1 or others[0] is None or others[0].dtype.kind != "i" or others[0].tolist() not in (1, [1]):
        return None
    bound = condition.tensors[right].data if right >= 0 else None
    if bound is not None:
        return _Counter(place, None, int(bound.reshape(-1)[0])) if bound.size == 1 else None
    limit = condition.inputs.index(right) if right in condition.inputs else -1
    return _Counter(place, limit, 0) if limit >= 0 and fixed[limit] else None


def _trips(node: Node, counters: list[_Counter]) -> str:
    """How often the loop runs: the least distance of a counter from its limit, as one int64."""
    known: list[int] = []
    computed: list[str] = []
    for counter in counters:
        start = node.known(counter.place)
        limit = node.known(counter.limit) if counter.limit is not None else np.asarray(counter.bound)
        if start is not None and limit is not None and start.size == limit.size == 1:
            known.append(max(0, int(limit.reshape(-1)[0]) - int(start.reshape(-1)[0])))
        else:
            end = node.int64(counter.limit) if counter.limit is not None else node.const(counter.bound, np.int64)
            computed.append(node.emit("Sub", end, node.int64(counter.place)))
    if not computed:
        return node.const(min(known), np.int64)
    distances = [node.emit("Reshape", c, node.sizes([])) for c in computed]
    least = node.emit("Min", *distances, *([node.const(min(known), np.int64)] if known else []))
    return node.emit("Max", least, node.const(0, np.int64))
