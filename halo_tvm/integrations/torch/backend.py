"""The backend of torch.compile: a graph is compiled when it is first called, or left to torch with a warning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import fx

from ...errors import HaloError, UsageError
from ...in_process import config_of
from .gradients import CompiledForward
from .numbers import kind_of_number, numbers_of, with_numbers
from .outputs import Outputs
from .program import CompiledGraph
from .reports import GraphReport, opened
from .writes import share_memory, written

OPTIONS = ("threads", "level", "precision", "log", "records")
_VARIANTS = 8  # programs of one graph, which differ in numbers or in sizes that had to be fixed; more run in torch
_KEYS = 4096  # sets of argument sizes whose program is remembered
_GRADIENTS = "backward was asked for: the forward ran compiled, its gradients come from torch, which runs it again"
_WRITES = "a graph that writes to an argument, of which gradients are asked for or which shares memory with another"
_DRAWS = "a graph that draws random numbers, of which gradients are asked for"
# What TVM raises for a function it cannot build: there is no common base.
_COMPILER_ERRORS = (
    HaloError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AssertionError,
    NotImplementedError,
)

# Before it asks a backend torch decides what is traced, and leaves recurrent layers out unless it is told otherwise:
# without a graph of them there would be nothing to compile, nor to report.
torch._dynamo.config.allow_rnn = True


def compile_backend(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., object]:
    """The backend of torch.compile; options: `threads`, `level` (0 to 3), `precision`, `log` and `records`.

    They mean what they mean to `halo-tvm compile`. Nothing is compiled before the first call: only then are weights
    and inputs real.
    """
    unknown = sorted(set(options or {}) - set(OPTIONS))
    if unknown:
        raise UsageError(f"expected the options {', '.join(OPTIONS)}, found {unknown[0]!r}: leave it out")
    config_of("graph", **(options or {}))  # a wrong value is an error, not a graph that is left to torch
    operators = sum(node.op in ("call_function", "call_method", "call_module") for node in graph.graph.nodes)
    made = _Graph(graph, opened(operators), dict(options or {}))
    run: Callable[..., object] = torch._dynamo.disable(made)  # else torch looks at every Python call of ours, too
    return run


class _Graph:
    """One graph: programs by the arguments they serve, or the reason why torch runs it."""

    def __init__(self, graph: fx.GraphModule, record: GraphReport, options: dict[str, Any]) -> None:
        self._graph = graph
        self._record = record
        self._options = options
        numbers = with_numbers(graph)
        self._numbers = numbers.places
        self._whole = numbers.graph
        self._outputs = Outputs(numbers.graph)
        self._written: tuple[int, ...] = ()
        self._weights: list[int] = []
        self._inputs: list[int] | None = None  # positions of the other arguments, known from the first call on
        self._programs: list[CompiledGraph] = []
        self._chosen: dict[tuple[object, ...], CompiledGraph | str] = {}

    def __call__(self, *args: object) -> object:
        record, outputs = self._record, self._outputs
        record.calls += 1
        if outputs.computed is None:
            return self._graph(*args)  # views and numbers only: there is nothing to compile
        given = numbers_of(args, self._numbers) if self._numbers else args
        found = self._program(given)
        if isinstance(found, str):
            record.fell_back(found)
            return self._graph(*args)
        differentiated = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in given)
        if self._written and (differentiated or share_memory(given, self._written)):
            record.fell_back(_WRITES)
            return self._graph(*args)
        if differentiated and found.draws:  # `backward` would run the graph again and draw others
            record.fell_back(_DRAWS)
            return self._graph(*args)
        if differentiated:
            computed = CompiledForward.apply(found, outputs.computed, outputs.differentiable, self._asked, *given)
        else:
            computed = found(given)
        return outputs.joined(computed, given)

    def _asked(self) -> None:
        self._record.warn(_GRADIENTS)

    def _program(self, args: Sequence[Any]) -> CompiledGraph | str:
        """The program for these arguments and the present weights, or why there is none."""
        if self._inputs is None:
            self._written = written(self._whole, args)
            self._weights = [i for i, arg in enumerate(args) if _is_weight(arg) and i not in self._written]
            self._inputs = [i for i in range(len(args)) if i not in self._weights]
        if self._programs:
            self._follow(args)
        key = tuple([_kind(args[i]) for i in self._inputs])
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= _KEYS:
                self._chosen.clear()
            found = (
                self._unfit(args) or next((p for p in self._programs if p.serves(args)), None) or self._compile(args)
            )
            self._chosen[key] = found
        return found

    def _follow(self, args: Sequence[Any]) -> None:
        """Programs take changed weights over; those whose weights are other tensors now are made again."""
        watched = self._programs[0].weights
        moved = watched.moved(args)
        if not moved and not watched.changed():
            return
        if moved or not all(p.rereads_weights for p in self._programs):
            self._programs.clear()
            self._chosen.clear()
        else:
            for program in self._programs:
                program.refresh()
            self._record.refreshed += 1

    def _unfit(self, args: Sequence[Any]) -> str:
        """Why no program takes these arguments; empty where one can."""
        for tensor in (a for a in args if isinstance(a, torch.Tensor)):
            if tensor.device.type != "cpu":
                return f"tensors on {tensor.device}: only CPU graphs are compiled"
            if tensor.layout != torch.strided:
                return f"a tensor of layout {tensor.layout}: only dense ones are compiled"
        if self._outputs.entangled:
            return "outputs that share memory with each other in a layout that only torch makes: return copies"
        if self._written and self._outputs.returns_written:
            return "a graph that writes to an argument and returns it in another layout: return a copy"
        return ""

    def _compile(self, args: Sequence[Any]) -> CompiledGraph | str:
        """A new program, with sizes left open where that can be compiled; else the reason."""
        if len(self._programs) >= _VARIANTS:
            return f"more than {_VARIANTS} sets of sizes or numbers that had to be fixed: pad the inputs to fewer"
        start = time.perf_counter()
        reason = ""
        for symbolic in (True, False) if _has_open_sizes(self._graph) else (False,):
            try:
                program = CompiledGraph(
                    self._outputs.computed, args, self._weights, self._options, symbolic, self._written
                )
            except _COMPILER_ERRORS as error:
                first = next((t for t in str(error).strip().splitlines() if t.strip()), type(error).__name__)
                reason = first[:300]
                continue
            if reason:
                self._record.note(f"sizes are fixed, one program for each: {reason}")
            self._programs.append(program)
            self._record.add(program.program.reports, time.perf_counter() - start)
            return program
        return reason


def _has_open_sizes(graph: fx.GraphModule) -> bool:
    return any(
        isinstance(size, torch.SymInt)
        for node in graph.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("example_value"), torch.Tensor)
        for size in node.meta["example_value"].shape
    )


def _is_weight(arg: object) -> bool:
    """Parameters and what torch marks as a module's own buffers."""
    return isinstance(arg, torch.nn.Parameter) or getattr(arg, "_dynamo_static_input_type", None) is not None


def _kind(arg: object) -> object:
    """What a program is chosen by."""
    return (arg.shape, arg.dtype, arg.device) if isinstance(arg, torch.Tensor) else kind_of_number(arg)
