"""Compiled models inside PyTorch.

    module = halo_tvm.integrations.torch.HaloModule("gpt2.halo")     an artifact as `nn.Module`
    fast = torch.compile(model.eval(), backend="halo_tvm")           graphs compiled in this process
    print(halo_tvm.integrations.torch.report())                      what was compiled, what was not, and why

Inference only. A graph that cannot be compiled, or a call that wants gradients, runs in torch as it would without
this package; `report` has the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import tvm_ffi

from ..errors import HaloError, UsageError
from ..runtime.tensors import ALIGNMENT

_VARIANTS = 8  # sets of input shapes that one graph is compiled for; further ones run in torch
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


class HaloModule(torch.nn.Module):
    """An artifact as a module: tensors in, tensors out, no copies of dense tensors at multiples of 64 bytes.

    It takes inputs by position or name and returns one tensor, or a dict by output name. It has no parameters
    that torch could train: under gradients its inputs must not require any.
    """

    def __init__(self, artifact: Path | str, *, threads: int | None = None) -> None:
        from ..runtime import load

        super().__init__()
        self._program = load(artifact, threads=threads)

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        for value in (*args, *kwargs.values()):
            if torch.is_grad_enabled() and isinstance(value, torch.Tensor) and value.requires_grad:
                raise UsageError(
                    "expected inputs of inference, found one that requires gradients: call under torch.no_grad()"
                )
        outputs = self._program(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
        if not isinstance(outputs, tuple):
            return _tensor(outputs)
        names = [spec.name for spec in self._program.output_specs]
        return {name: _tensor(value) for name, value in zip(names, outputs, strict=True)}

    def extra_repr(self) -> str:
        return ", ".join(f"{spec.name}{list(spec.shape)}" for spec in self._program.input_specs)


def _plain(value: object) -> object:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.kind == "V" or array.dtype.isbuiltin != 1:  # bfloat16, which NumPy does not know by itself
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@dataclass
class GraphReport:
    """One graph that torch.compile handed over."""

    number: int
    operators: int
    compiled: int = 0  # how many sets of shapes were compiled
    seconds: float = 0.0  # spent on compiling
    calls: int = 0
    eager_calls: int = 0  # of these, how many torch ran
    reasons: list[str] = field(default_factory=list)  # why it ran any, each reason once

    def __str__(self) -> str:
        done = (
            f"compiled for {self.compiled} sets of shapes in {self.seconds:.1f} s" if self.compiled else "not compiled"
        )
        text = (
            f"graph {self.number}: {self.operators} operators, {done}, {self.calls} calls, {self.eager_calls} in torch"
        )
        return "\n".join([text, *(f"    {reason}" for reason in self.reasons)])

    def because(self, reason: str) -> None:
        self.eager_calls += 1
        if reason not in self.reasons:
            self.reasons.append(reason)


_REPORTS: list[GraphReport] = []


class Report(tuple[GraphReport, ...]):
    """All graphs so far, in order; printed one after another."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no graph was compiled"


def report() -> Report:
    """What `torch.compile(..., backend="halo_tvm")` compiled in this process, and what it left to torch."""
    return Report(_REPORTS)


def compile_backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[object], *, options: Mapping[str, object] | None = None
) -> Callable[..., object]:
    """The backend of torch.compile; options: `threads`, `level` (the opt level, 0 to 3).

    Nothing is compiled before the first call: only then are weights and inputs real.
    """
    unknown = set(options or {}) - {"threads", "level"}
    if unknown:
        raise UsageError(f"expected the options threads and level, found {sorted(unknown)[0]!r}: leave it out")
    operators = sum(node.op in ("call_function", "call_method", "call_module") for node in graph.graph.nodes)
    record = GraphReport(len(_REPORTS), operators)
    _REPORTS.append(record)
    return _Graph(graph, record, dict(options or {}))


class _Graph:
    """One graph: compiled once per set of input shapes, or left to torch."""

    def __init__(self, graph: torch.fx.GraphModule, record: GraphReport, options: dict[str, object]) -> None:
        self._graph = graph
        self._record = record
        self._options = options
        self._programs: dict[tuple[object, ...], _Compiled | str] = {}
        self._weights: tuple[tuple[int, int], ...] = ()
        self._static: list[int] | None = None

    def __call__(self, *args: object) -> object:
        record = self._record
        record.calls += 1
        if self._static is None:
            self._static = [i for i, arg in enumerate(args) if _is_weight(arg)]
        if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            record.because("a call that wants gradients: only inference is compiled, use torch.no_grad()")
            return self._graph(*args)
        state = tuple((args[i].data_ptr(), args[i]._version) for i in self._static)
        if state != self._weights:  # weights are part of the program: changed ones need another
            self._programs.clear()
            self._weights = state
        key = tuple(_kind(arg) for i, arg in enumerate(args) if i not in set(self._static))
        if key not in self._programs:
            self._programs[key] = self._compile(args)
        program = self._programs[key]
        if isinstance(program, str):
            record.because(program)
            return self._graph(*args)
        return program(args)

    def _compile(self, args: Sequence[object]) -> _Compiled | str:
        if len(self._programs) >= _VARIANTS:
            return f"more than {_VARIANTS} sets of input shapes: pad the inputs to fewer"
        foreign = next((a for a in args if isinstance(a, torch.Tensor) and a.device.type != "cpu"), None)
        if foreign is not None:
            return f"tensors on {foreign.device}: only CPU graphs are compiled"
        start = time.perf_counter()
        try:
            program = _Compiled(self._graph, args, self._static or [], self._options)
        except _COMPILER_ERRORS as reason:
            line = next((t for t in str(reason).strip().splitlines() if t.strip()), type(reason).__name__)
            return line[:300]
        self._record.seconds += time.perf_counter() - start
        self._record.compiled += 1
        return program


class _Compiled:
    """A graph for one set of shapes; weights and numbers are part of it."""

    def __init__(
        self, graph: torch.fx.GraphModule, args: Sequence[object], static: Sequence[int], options: Mapping[str, object]
    ) -> None:
        from ..importers.torch_export import import_module
        from ..in_process import compile_in_process

        dynamic = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in static]
        if not dynamic:
            raise ValueError("a graph without inputs: nothing to compute at run time")
        self._places = dynamic
        holder = _Holder(graph, args, static, dynamic)
        model = import_module(holder, [args[i].detach() for i in dynamic], name="graph")
        if len(model.inputs) != len(dynamic):
            raise ValueError("an input that the graph does not read")
        self._outputs = _outputs(graph)
        self._program = compile_in_process(model, threads=options.get("threads"), level=int(options.get("level", 3)))

    def __call__(self, args: Sequence[object]) -> object:
        inputs = [_dlpack(args[i]) for i in self._places]
        result = self._program.run_tensors(inputs)
        tensors = [result] if isinstance(result, tvm_ffi.Tensor) else list(result)
        outputs = iter([torch.from_dlpack(tensor) for tensor in tensors])
        return tuple(next(outputs) if isinstance(out, torch.fx.Node) else out for out in self._outputs)


class _Holder(torch.nn.Module):
    """The graph as a module of its run-time tensors; it returns tensors only."""

    def __init__(
        self, graph: torch.fx.GraphModule, args: Sequence[object], static: Sequence[int], dynamic: Sequence[int]
    ) -> None:
        super().__init__()
        self.graph = graph
        self._dynamic = list(dynamic)
        self._fixed = [None if i in dynamic or i in static else arg for i, arg in enumerate(args)]
        self._static = list(static)
        for i in static:
            name = f"weight_{i}"
            if isinstance(args[i], torch.nn.Parameter):
                self.register_parameter(name, args[i])
            else:
                self.register_buffer(name, args[i])
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args = list(self._fixed)
        for i in self._static:
            args[i] = getattr(self, f"weight_{i}")
        for i, value in zip(self._dynamic, inputs, strict=True):
            args[i] = value
        outputs = self.graph(*args)
        return tuple(o for o in outputs if isinstance(o, torch.Tensor))


def _outputs(graph: torch.fx.GraphModule) -> tuple[object, ...]:
    """What the graph returns: nodes that are tensors, and values that are None or fixed."""
    (returned,) = next(node for node in graph.graph.nodes if node.op == "output").args
    for out in returned:
        if isinstance(out, torch.fx.Node) and not isinstance(out.meta.get("example_value"), torch.Tensor):
            raise ValueError(f"a graph that returns the number {out.name}: only tensors can be returned")
    return tuple(returned)


def _is_weight(arg: object) -> bool:
    """Parameters and what torch marks as a module's own buffers."""
    return isinstance(arg, torch.nn.Parameter) or getattr(arg, "_dynamo_static_input_type", None) is not None


def _kind(arg: object) -> object:
    return (tuple(arg.shape), arg.dtype) if isinstance(arg, torch.Tensor) else arg


def _dlpack(tensor: torch.Tensor) -> tvm_ffi.Tensor:
    """The tensor's own memory where kernels can read it, else a dense copy at a multiple of 64 bytes."""
    tensor = tensor.detach().contiguous()
    if tensor.data_ptr() % ALIGNMENT:
        tensor = tensor.clone()
    return tvm_ffi.from_dlpack(tensor)
