"""A graph of torch.compile as a program of ours: which arguments it serves, and what goes in and comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...artifact import RANDOM_STATE, UNBOUNDED, broken, size_at
from ...imported import ImportedModel
from ...importers.torch_export import import_module
from ...in_process import compile_in_process
from .autocast import with_contexts
from .empty import EmptyTensor
from .numbers import kind_of_number
from .weights import WatchedWeights


class CompiledGraph:
    """`graph` compiled for arguments like `args`; weights, numbers and tensors without elements are part of it.

    With `symbolic` the sizes that torch left open stay open; arguments at the positions `written` get what the graph
    writes to them. `draws`: whether it draws random numbers. Raises what importing and compiling raise.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        args: Sequence[Any],
        weights: Sequence[int],
        options: Mapping[str, Any],
        symbolic: bool,
        written: Sequence[int] = (),
    ) -> None:
        given = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in weights]
        self._places = [i for i in given if args[i].numel()]
        if not self._places:
            raise ValueError("a graph without inputs: nothing to compute at run time")
        fakes = [node.meta.get("example_value") for node in graph.graph.nodes if node.op == "placeholder"]
        sizes = _sizes(fakes, self._places) if symbolic else {}
        self._kinds = {
            i: kind_of_number(a)
            for i, a in enumerate(args)
            if not isinstance(a, torch.Tensor) and _symbol(fakes[i]) not in sizes
        }
        self._empty = {
            i: EmptyTensor.like(args[i], list(map(_symbol, fakes[i].shape)), sizes)
            for i in given
            if not args[i].numel()
        }
        open_numbers = {i: sizes.get(_symbol(fake)) for i, fake in enumerate(fakes)}
        holder = _Holder(graph, args, weights, self._places, open_numbers, self._empty, written)
        examples = [_real(args[i].detach()) for i in self._places]
        model = import_module(holder, examples, dynamic_shapes=_open_axes(fakes, self._places, sizes), name="graph")
        self.draws = any(spec.name == RANDOM_STATE for spec in model.inputs)
        if len(model.inputs) - self.draws != len(self._places):
            raise ValueError("an input that the graph does not read")
        # What nobody bounded has no bound here: the sizes of a call are compared with nothing but `serves`.
        said = model.report.get("assumed_ranges")
        assumed = said if isinstance(said, Mapping) else {}
        ranges = {n: (low, UNBOUNDED if n in assumed else high) for n, (low, high) in model.ranges.items()}
        self._model = model = dataclasses.replace(model, ranges=ranges)
        self._dtypes = [args[i].dtype for i in self._places]
        self._complex = frozenset(holder.complex_outputs)
        self._written = tuple(written)
        self.weights = WatchedWeights(weights, args)
        self.program = compile_in_process(model, **options)

    @property
    def rereads_weights(self) -> bool:
        """Whether `refresh` is enough after a change: no weight became a constant of the code."""
        return all(holds(self._model, f"weight_{i}", t) for i, t in zip(self.weights.places, self.weights.tensors))

    def refresh(self) -> None:
        """Read the weights again, from where they were when this was compiled."""
        self.program.refresh_weights()
        self.weights.seen()

    def serves(self, args: Sequence[Any]) -> bool:
        """Whether the program computes the graph for arguments of these dtypes, sizes and numbers."""
        if any(kind_of_number(args[i]) != kind for i, kind in self._kinds.items()):
            return False
        inputs = [args[i] for i in self._places]
        if not all(empty.serves(args[i], inputs) for i, empty in self._empty.items()):
            return False
        found: dict[str, int] = {}
        others: list[tuple[int | str, int]] = []  # fixed, and computed of those that have names
        for spec, place, dtype in zip(self._model.inputs, self._places, self._dtypes):
            if args[place].dtype != dtype or not args[place].numel():
                return False
            tensor = _real(args[place])
            if tensor.dim() != len(spec.shape):
                return False
            for dim, size in zip(spec.shape, tensor.shape, strict=True):
                if isinstance(dim, int) or dim not in self._model.ranges:
                    others.append((dim, size))
                    continue
                low, high = self._model.ranges[dim]
                if not low <= size <= high or found.setdefault(dim, size) != size:
                    return False
        return all(size_at(d, found) == size for d, size in others) and broken(self._model.conditions, found) is None

    def __call__(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs for `args`: tensors of their own, that share no memory with arguments or with each other."""
        inputs = [readable(args[i]) for i in self._places]
        if self.draws:  # a seed out of torch's generator for every call, so that torch.manual_seed repeats all
            inputs.append(torch.cat([torch.randint(1 << 62, (1,)), torch.zeros(1, dtype=torch.int64)]))
        result = self.program.run_tensors(inputs)
        if isinstance(result, torch.Tensor):
            tensors = [result]
        else:
            tensors = [torch.from_dlpack(tensor) for tensor in result]
        if self.draws:
            tensors.pop()  # the state, which no call takes over
        if self._written:
            self._write(args, tensors)
        weights, taken = self.program.weight_addresses, {args[i].data_ptr() for i in self._places}
        outputs = []
        for index, tensor in enumerate(tensors):
            # A program may hand an input or a weight through, or return one value twice.
            address = tensor.data_ptr()
            own = tensor.clone() if address in taken or address in weights else tensor
            taken.add(address)
            outputs.append(torch.view_as_complex(own) if index in self._complex else own)
        return outputs

    def _write(self, args: Sequence[Any], tensors: list[torch.Tensor]) -> None:
        """Take the new values of arguments off the end of `tensors` and write them, as the graph would have done."""
        first = len(tensors) - len(self._written)
        with torch.no_grad():
            for index, place in enumerate(self._written, first):
                value = tensors[index]
                args[place].copy_(torch.view_as_complex(value) if index in self._complex else value)
        del tensors[first:]


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where kernels can read it, else a dense copy; without gradients."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return _real(tensor).contiguous()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs along a last axis, as programs take and give them; others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def holds(model: ImportedModel, name: str, tensor: torch.Tensor) -> bool:
    """Whether the weight `name`, which is `tensor`, is a parameter of the program, or one that nothing reads."""
    return name in model.params.sources or not tensor.numel()


def _symbol(fake: object) -> object:
    """The symbol that an open size stands for; None for anything else, expressions included."""
    node = fake.node if isinstance(fake, torch.SymInt) else None
    return node.expr if node is not None and node.expr.is_Symbol else None


def _sizes(fakes: Sequence[Any], places: Sequence[int]) -> dict[object, tuple[int, int]]:
    """Open sizes of run-time tensors: the symbol -> (position among these tensors, axis)."""
    found: dict[object, tuple[int, int]] = {}
    for position, place in enumerate(places):
        for axis, size in enumerate(fakes[place].shape):
            if (symbol := _symbol(size)) is not None:
                found.setdefault(symbol, (position, axis))
    return found


def _open_axes(fakes: Sequence[Any], places: Sequence[int], sizes: Mapping[object, object]) -> object:
    """torch.export's dynamic_shapes for `_Holder.forward`; None where every size is fixed."""
    if not sizes:
        return None
    auto = torch.export.Dim.AUTO
    tensors = [
        {axis: auto for axis, size in enumerate(fakes[i].shape) if isinstance(size, torch.SymInt)} for i in places
    ]
    return (tuple(tensors),)


class _Holder(torch.nn.Module):
    """The graph as a module of its run-time tensors; it returns what is computed, and behind that what it writes to
    arguments. Complex numbers are pairs.

    complex_outputs: the places of complex outputs, known once it ran
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        args: Sequence[Any],
        weights: Sequence[int],
        places: Sequence[int],
        sizes: Mapping[int, tuple[int, int] | None],
        empty: Mapping[int, EmptyTensor],
        written: Sequence[int],
    ) -> None:
        super().__init__()
        self.graph = with_contexts(graph)
        self._empty, self._written = dict(empty), list(written)
        self._places, self._weights, self._sizes = list(places), list(weights), dict(sizes)
        self.complex_outputs: set[int] = set()
        self._complex = {i for i in places if args[i].is_complex()}
        self._fixed = [None if isinstance(a, torch.Tensor) else a for a in args]
        for i in weights:
            weight = args[i].detach() if args[i].is_inference() else args[i]
            if isinstance(weight, torch.nn.Parameter):
                self.register_parameter(f"weight_{i}", weight)
            else:
                self.register_buffer(f"weight_{i}", weight)
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args: list[Any] = list(self._fixed)
        for i in self._weights:
            args[i] = getattr(self, f"weight_{i}")
        for i, value in zip(self._places, inputs, strict=True):
            args[i] = torch.view_as_complex(value) if i in self._complex else value
        for i, place in self._sizes.items():
            if place is not None:
                args[i] = inputs[place[0]].shape[place[1]]
        for i, empty in self._empty.items():
            args[i] = empty.made(inputs)
        for i in self._written:
            args[i] = args[i].clone()
        outputs = (*self.graph(*args), *(args[i] for i in self._written))
        self.complex_outputs.update(i for i, output in enumerate(outputs) if output.is_complex())
        return tuple(map(_real, outputs))
