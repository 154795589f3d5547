"""Which arguments a graph writes to: caches, counters, running statistics. It is run on tensors without memory to see.

torch.compile hands over graphs as they were written, `cache.index_copy_(1, position, k)` among them. A program changes
no argument: it gives new values, which are copied to where the graph would have written them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

_OPERATORS = frozenset(
    getattr(operator, name)
    for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
)


_OF_LAYOUT = frozenset(
    f"{name}_"
    for name in "t transpose swapaxes swapdims unsqueeze squeeze resize resize_as set as_strided detach".split()
)


def writes_in_place(node: fx.Node) -> bool:
    """Whether a node gives what it was given first, changed: `x.add_(1)`, `x += 1`."""
    if node.op == "call_method":
        return node.target.endswith("_") and not node.target.endswith("__") and node.target not in _OF_LAYOUT
    return node.op == "call_function" and node.target in _OPERATORS and node.target is not operator.setitem


def may_write(node: fx.Node) -> bool:
    """Whether a node may change a tensor that it is given, as far as its name and its arguments say."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__")
    inplace = "inplace" in node.kwargs or "out" in node.kwargs or any(arg is True for arg in node.args)
    custom = isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
    return node.op == "call_module" or node.target in _OPERATORS or named or inplace or custom


def written(graph: fx.GraphModule, args: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the tensors among `args` that `graph` changes; none where that cannot be told without running it."""
    if not any(map(may_write, graph.graph.nodes)):
        return ()
    with torch.inference_mode(False), torch.no_grad(), FakeTensorMode() as mode:
        # Copies, as tensors made in inference mode do not count their versions.
        fakes = [mode.from_tensor(a, static_shapes=True).clone() if isinstance(a, torch.Tensor) else a for a in args]
        before = [_version(fake) for fake in fakes]
        try:
            graph(*fakes)
        except (RuntimeError, ValueError, TypeError, NotImplementedError):  # sizes that depend on values, among others
            return ()
        return tuple(i for i, fake in enumerate(fakes) if _version(fake) != before[i])


def share_memory(args: Sequence[Any], places: Sequence[int]) -> bool:
    """Whether a tensor at one of `places` lies in memory of another argument: a write to it changes both."""
    memory = [a.untyped_storage().data_ptr() if isinstance(a, torch.Tensor) else None for a in args]
    return any(memory.count(memory[i]) > 1 for i in places)


def _version(value: object) -> int | None:
    return value._version if isinstance(value, torch.Tensor) else None
