"""Regions of `torch.autocast` in a graph: torch.export only notes where torch's own functions begin and end one.

It traces what is between in the types outside, and meets others where it goes on. Context managers do both: they are
noted, and hold while the graph is traced.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import fx
from torch.amp import autocast_mode


def with_contexts(graph: fx.GraphModule) -> fx.GraphModule:
    """`graph`, where context managers begin and end its regions of autocast; the graph itself where it has none."""
    if not any(node.target is autocast_mode._enter_autocast for node in graph.graph.nodes):
        return graph
    nodes = fx.Graph()
    nodes.output(nodes.graph_copy(graph.graph, {}))
    for node in nodes.nodes:
        node.target = _CONTEXTS.get(node.target, node.target)
    return fx.GraphModule(graph, nodes)


def _begun(device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None) -> AbstractContextManager[object]:
    region: AbstractContextManager[object] = torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache)
    region.__enter__()
    return region


def _ended(region: AbstractContextManager[object]) -> None:
    region.__exit__(None, None, None)


_CONTEXTS = {autocast_mode._enter_autocast: _begun, autocast_mode._exit_autocast: _ended}
