"""A TorchScript file -> ImportedModel. Runs in the restricted worker: loading runs code of the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import tvm
from torch.export import Dim
from tvm import relax

from ...artifact import RANDOM_STATE
from ...errors import UnsupportedModel
from ...imported import ImportedModel, InputSpec
from .._digest import sha256_of
from ..torch_export import import_program
from ._examples import Example, examples_of, wanted_from, widened
from ._program import Program, State, state_name, steady_state
from ._source import Source, last_line
from ._walk import Walker

T = TypeVar("T")
_TOLERANCE = 1e-3


def import_unrestricted(path: Path, options: Mapping[str, object]) -> ImportedModel:
    """Import the file at `path` for the inputs that `options` describe; to be called in a confined process only."""
    torch.manual_seed(0)
    source = Source(path)
    examples = examples_of(source, wanted_from(options))
    model, program, notes = _convert(Walker(source.script), source, examples)
    state = sorted(program.state_inputs)
    return dataclasses.replace(
        model,
        name=path.stem,
        source={"kind": "torchscript", "file": path.name, "sha256": sha256_of(path), "state": state},
        report={**model.report, "importer": "torchscript", "state": state, "notes": notes},
        engine=_engine(source, program, examples, model.outputs),
    )


def _convert(walker: Walker, source: Source, examples: list[Example]) -> tuple[ImportedModel, Program, list[str]]:
    """The widest form that torch.export accepts: free sizes where nobody fixed them, else the example's."""
    tensors = [e for e in examples if e.is_tensor]
    asked = {(e.name, a) for e in tensors for a, r in enumerate(e.ranges) if r is not None and r[0] < r[1]}
    unsaid = [(e, a) for e in tensors for a, r in enumerate(e.ranges) if r is None]
    batch = {(e.name, a) for e, a in unsaid if a == _batch_axis(e.value.shape)}
    length = {(e.name, a) for e, a in unsaid if e.value.dim() == 2 and a == 1}
    attempts = list(dict.fromkeys(frozenset(asked | more) for more in (batch | length, batch, set())))
    notes: list[str] = []
    for varying in attempts:
        try:
            program, exported, chosen = _export(walker, examples, varying)
            _compare(program, exported, source, examples)
            model = _import(program, exported, chosen, asked)
            return _within_limits(model, program, exported, source, examples), program, notes
        except UnsupportedModel as error:
            if varying == attempts[-1]:
                raise
            notes.append(f"not free: {', '.join(f'{n}[{a}]' for n, a in sorted(varying))}, since {str(error)[:300]}")
    raise AssertionError("the last attempt returns or raises")


def _batch_axis(shape: Sequence[int]) -> int:
    """The axis that is likely a batch. The state of a recurrence is [layers, batch, width]."""
    return 1 if len(shape) == 3 and shape[1] == 1 and shape[0] != 1 else 0


def _sizes_of_state(
    walker: Walker, examples: Sequence[Example], state: State, varying: frozenset[tuple[str, int]]
) -> dict[str, dict[int, object]]:
    """The axes of state tensors whose size follows from the inputs': those that grow when the inputs do."""
    if not state.tensors:
        return {}
    found: dict[str, dict[int, object]] = {state_name(path): {} for path in state.tensors}
    # inputs grow together, axis by axis: a batch is the same in all of them, a model may refuse another length
    for axis in sorted({a for _, a in varying}):
        grown = tuple(_grow(e.value, axis) if (e.name, axis) in varying else e.value for e in examples)
        try:
            other = steady_state(walker, grown).tensors
        except (UnsupportedModel, RuntimeError):
            continue  # the model refuses other sizes: nothing varies with this axis
        for path, tensor in state.tensors.items():
            sizes = enumerate(zip(tensor.shape, other[path].shape))
            found[state_name(path)] |= {i: Dim.AUTO for i, (a, b) in sizes if a != b}
    return found


def _grow(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis)


def _export(
    walker: Walker, examples: list[Example], varying: frozenset[tuple[str, int]]
) -> tuple[Program, torch.export.ExportedProgram, list[Example]]:
    chosen = widened(examples, varying)
    arguments = tuple(e.value for e in chosen)
    constants = {e.identifier: e.value for e in chosen if not e.is_tensor}
    try:
        state = steady_state(walker, arguments)
        program = Program(walker, tuple(e.identifier for e in chosen), constants, state)
        values = {e.identifier: e.value for e in chosen if e.is_tensor}
        shapes: dict[str, dict[int, object]] = {
            e.identifier: {a: _dim(e.ranges[a]) for a in range(e.value.dim()) if (e.name, a) in varying}
            for e in chosen
            if e.is_tensor
        }
        dynamic = any(shapes.values())
        values |= {name: state.tensors[path] for name, path in program.state_inputs.items()}
        if dynamic:
            shapes |= _sizes_of_state(walker, chosen, state, varying)
        with torch.no_grad():
            exported = torch.export.export(
                program,
                tuple(values[n] for n in program.inputs),
                dynamic_shapes=shapes if dynamic else None,
                strict=False,
            )
    except UnsupportedModel:
        raise
    except Exception as reason:  # torch.export raises whatever torch's tracer does
        raise UnsupportedModel(
            f"expected a graph that torch.export can trace, found {type(reason).__name__} "
            f"({last_line(reason)[:200]}): give fixed shapes, or export the model as ONNX"
        ) from reason
    return program, exported, chosen


def _dim(limits: tuple[int, int] | None) -> object:
    return Dim.AUTO if limits is None else Dim.AUTO(min=max(limits[0], 0), max=limits[1])


def _compare(
    program: Program, exported: torch.export.ExportedProgram, source: Source, examples: Sequence[Example]
) -> None:
    """The exported program must give what the file's own interpreter gives, at the sizes of the examples."""
    arguments = tuple(e.value for e in examples)
    state = {}
    if program.state_inputs:
        started = steady_state(program.walker, arguments)
        state = {name: started.tensors[path] for name, path in program.state_inputs.items()}
    values = {e.identifier: e.value for e in examples if e.is_tensor} | state
    with torch.no_grad():
        try:
            module = exported.module()
            found = _seeded(lambda: module(*(values[n] for n in program.inputs)))
            expected = _seeded(lambda: source.run(arguments))
        except (RuntimeError, ValueError, AssertionError) as reason:
            raise UnsupportedModel(
                f"expected a program that takes the example inputs, found {last_line(reason)[:200]}: give --shape"
            ) from reason
    kept = len(found) - len(state)
    if len(expected) != kept:
        raise UnsupportedModel(
            f"expected the converted graph to give the {len(expected)} results of the file, found {kept}: "
            "export the model as ONNX"
        )
    for index, (a, b) in enumerate(zip(expected, found[:kept], strict=True)):
        scale = float(b.abs().max()) if b.numel() and b.is_floating_point() else 1.0
        if (a.shape, a.dtype) != (b.shape, b.dtype) or not torch.allclose(
            a.double(), b.double(), atol=_TOLERANCE * max(scale, 1e-3), rtol=_TOLERANCE, equal_nan=True
        ):
            raise UnsupportedModel(
                f"expected the converted graph to compute what the file computes, found output {index} to differ: "
                "export the model as ONNX"
            )


def _seeded(run: Callable[[], T]) -> T:
    """What `run` gives where torch draws random numbers by one seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return run()


def _within_limits(
    model: ImportedModel,
    program: Program,
    exported: torch.export.ExportedProgram,
    source: Source,
    examples: Sequence[Example],
) -> ImportedModel:
    """Ranges within which the source takes its inputs too; `UnsupportedModel` where other sizes give other results.

    A range that nobody declared is an assumption: a table of positions may end before it.
    """
    ranges = dict(model.ranges)
    for dim, (low, high) in model.ranges.items():
        sized = [_resized(examples, model, dim, n) for n in _probes(examples, model, dim, low, high)]
        for other in sized:
            if source.accepts([e.value for e in other]):
                _compare(program, exported, source, other)
        if dim in model.report.get("assumed_ranges", {}):
            good, bad = max(low, _size(examples, model, dim)), high + 1
            probe = high
            while bad - good > 1:
                if source.accepts([e.value for e in _resized(examples, model, dim, probe)]):
                    good = probe
                else:
                    bad = probe
                probe = (good + bad) // 2
            ranges[dim] = (low, good)
    typical = {name: min(size, ranges[name][1]) for name, size in model.typical.items()}
    return dataclasses.replace(model, ranges=ranges, typical=typical)


def _size(examples: Sequence[Example], model: ImportedModel, dim: str) -> int:
    specs = {spec.name: spec.shape for spec in model.inputs}
    found = [e.value.shape[a] for e in examples if e.is_tensor for a, d in enumerate(specs[e.name]) if d == dim]
    return found[0] if found else 1


def _probes(examples: Sequence[Example], model: ImportedModel, dim: str, low: int, high: int) -> list[int]:
    """Sizes beside the example's at which the conversion is compared with its source."""
    size = _size(examples, model, dim)
    return sorted({min(max(n, low), high) for n in (size // 2, size + 1, 2 * size)} - {size})


def _resized(examples: Sequence[Example], model: ImportedModel, dim: str, size: int) -> list[Example]:
    """Examples whose dimension `dim` has `size`: values are repeated, or cut."""
    specs = {spec.name: spec.shape for spec in model.inputs}
    out = []
    for example in examples:
        value = example.value
        for axis, d in enumerate(specs.get(example.name, ()) if example.is_tensor else ()):
            if d == dim:
                value = value.index_select(axis, torch.arange(size) % value.shape[axis])
        out.append(dataclasses.replace(example, value=value))
    return out


def _import(
    program: Program,
    exported: torch.export.ExportedProgram,
    examples: Sequence[Example],
    asked: set[tuple[str, int]],
) -> ImportedModel:
    model = import_program(exported, name="model")
    specs = {spec.name: spec for spec in model.inputs}
    for example in examples:
        spec = specs.get(example.identifier)
        if spec is None or not example.is_tensor:
            continue
        for axis, size in enumerate(spec.shape):
            if (example.name, axis) in asked and not isinstance(size, str):
                raise UnsupportedModel(
                    f"expected dimension {axis} of {example.name} to vary, found that the model fixes it at {size} (a "
                    "trace holds the sizes it was made with): give one number for it, or script the model"
                )
            _check_range(example, axis, model.ranges.get(size) if isinstance(size, str) else None)
    inputs, variables = _with_numbers(model, program, examples)
    state = list(program.state_inputs)
    drawing = [name for name in model.outputs if name == RANDOM_STATE]
    kept = len(model.outputs) - len(state) - len(drawing)
    given = {e.identifier: e.value for e in examples if isinstance(e.value, torch.Tensor)}
    given |= {name: program.state.tensors[path] for name, path in program.state_inputs.items()}
    outputs = program.output_names(given)
    assert len(outputs) == kept, f"{len(outputs)} names for {kept} outputs"
    outputs = (*outputs, *state, *drawing)
    drawn = tuple(new for old, new in zip(model.outputs, outputs, strict=True) if old in model.drawn)
    func = model.mod["main"]
    rest = list(func.params)[len(model.inputs) :]
    func = relax.Function([*variables, *rest], func.body, func.ret_ty, func.is_pure, func.attrs).with_attr(
        "num_input", len(inputs)
    )
    mod = tvm.IRModule({**{gv: f for gv, f in model.mod.functions_items() if gv.name_hint != "main"}, "main": func})
    named = dict(zip(model.outputs, outputs, strict=True))
    complex_outputs = tuple(named[name] for name in model.complex_outputs)
    return dataclasses.replace(
        model, mod=mod, inputs=tuple(inputs), outputs=outputs, drawn=drawn, complex_outputs=complex_outputs
    )


def _check_range(example: Example, axis: int, found: tuple[int, int] | None) -> None:
    """A model may branch on a size: it is converted for the branch that its example takes."""
    asked = example.ranges[axis]
    if found is not None and asked is not None and (asked[0] < found[0] or found[1] < asked[1]):
        raise UnsupportedModel(
            f"expected dimension {axis} of {example.name} to take {asked[0]}..{asked[1]}, found that the graph is the "
            f"same for {found[0]}..{found[1]} only (it branches on the size): give that range, or export the model "
            "as ONNX"
        )


def _with_numbers(
    model: ImportedModel, program: Program, examples: Sequence[Example]
) -> tuple[list[InputSpec], list[relax.Var]]:
    """Inputs under the user's names; a number that was fixed stays an input that takes only its value."""
    specs = {spec.name: (spec, var) for spec, var in zip(model.inputs, model.mod["main"].params)}
    inputs: list[InputSpec] = []
    variables: list[relax.Var] = []
    for example in examples:
        if example.identifier in specs:
            spec, var = specs[example.identifier]
            inputs.append(dataclasses.replace(spec, name=example.name))
            variables.append(var)
        elif isinstance(example.value, int | float) and not isinstance(example.value, bool):
            dtype = "int64" if isinstance(example.value, int) else "float32"
            allowed = (example.value, example.value) if dtype == "int64" else None
            inputs.append(InputSpec(example.name, (), dtype, values=allowed))
            variables.append(relax.Var(example.identifier, relax.TensorType((), dtype)))
    for name, path in program.state_inputs.items():
        spec, var = specs[name]
        zero = not program.state.tensors[path].any()
        inputs.append(dataclasses.replace(spec, default="zeros" if zero else None))
        variables.append(var)
    if RANDOM_STATE in specs:
        spec, var = specs[RANDOM_STATE]
        inputs.append(spec)
        variables.append(var)
    return inputs, variables


def _engine(
    source: Source, program: Program, examples: Sequence[Example], outputs: tuple[str, ...]
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """The file's own interpreter; with state, the walked graph, whose state can be given."""

    def run(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
        with torch.no_grad():
            if program.state_inputs:
                named = {e.identifier: given[e.name] for e in examples if e.is_tensor}
                results = program.run({**named, **{n: given[n] for n in program.state_inputs}})
            else:
                results = source.run([given[e.name] if e.is_tensor else e.value for e in examples])
        return {name: tensor.detach().resolve_conj().numpy() for name, tensor in zip(outputs, results, strict=True)}

    return run
