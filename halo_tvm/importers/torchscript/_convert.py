"""A TorchScript file -> ImportedModel. Runs in the restricted worker: loading runs code of the file."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import tvm
from torch.export import Dim
from tvm import relax

from ...errors import UnsupportedModel
from ...imported import ImportedModel, InputSpec
from ..torch_export import import_program
from ._examples import Example, widened, examples_of, last_line, wanted_from
from ._program import Program, State, flat, state_name, steady_state
from ._walk import Walker

_TOLERANCE = 1e-3


def import_unrestricted(path: Path, options: Mapping[str, object]) -> ImportedModel:
    """Import the file at `path` for the inputs that `options` describe; to be called in a confined process only."""
    torch.manual_seed(0)
    try:
        script = torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError, OSError, AttributeError, ImportError, UnicodeDecodeError) as reason:
        raise UnsupportedModel(
            f"expected a whole TorchScript file, found that {path.name} cannot be loaded ({last_line(reason)[:200]}): "
            "save or download it again"
        ) from reason
    if not isinstance(script, torch.jit.ScriptModule) or not hasattr(script, "forward"):
        raise UnsupportedModel(f"expected a module with a method forward in {path.name}, found none: save such a module")
    walker = Walker(script)
    examples = examples_of(torch.jit.load(str(path), map_location="cpu").eval(), wanted_from(options))
    model, program, notes = _convert(walker, script, examples)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    state = sorted(program.state_inputs)
    return dataclasses.replace(
        model,
        name=path.stem,
        source={"kind": "torchscript", "file": path.name, "sha256": digest, "state": state},
        report={**model.report, "importer": "torchscript", "state": state, "notes": notes},
        engine=_engine(path, program, examples, model.outputs),
    )


def _convert(
    walker: Walker, script: torch.jit.ScriptModule, examples: list[Example]
) -> tuple[ImportedModel, Program, list[str]]:
    """The widest form that torch.export accepts: free sizes where nobody fixed them, else the example's."""

    def asked(example: Example, axis: int) -> bool:
        limits = example.ranges[axis]
        return limits is not None and limits[0] < limits[1]

    def free(example: Example, axis: int) -> bool:
        """Batch, and what is likely a length; sizes of images stay as they are, their kernels are faster so."""
        return asked(example, axis) or example.ranges[axis] is None and axis in _free_axes(example.value.shape)

    attempts: list[tuple[Callable[[Example, int], bool], str]] = [(asked, "")]
    if any(e.is_tensor and free(e, a) != asked(e, a) for e in examples for a in range(len(e.ranges))):
        attempts.insert(0, (free, "the model holds the sizes of its inputs as constants, or relates them"))
    notes: list[str] = []
    for may_vary, reason in attempts:
        try:
            program, exported, chosen = _export(walker, examples, may_vary)
            _compare(program, exported, script, examples)
            return _import(program, exported, chosen, asked), program, notes
        except UnsupportedModel as error:
            if not reason:
                raise
            notes.append(f"sizes are fixed: {reason} ({str(error)[:200]})")
    raise AssertionError("the last attempt returns or raises")


def _free_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Axes that are likely a batch or a length. The state of a recurrence is [layers, batch, width]."""
    if len(shape) == 3 and shape[1] == 1 and shape[0] != 1:
        return (1,)
    return (0, 1) if len(shape) == 2 else (0,)


def _sizes_of_state(
    walker: Walker, examples: Sequence[Example], state: State, may_vary: Callable[[Example, int], bool]
) -> dict[str, dict[int, object]]:
    """The axes of state tensors whose size follows from the inputs': those that grow when the inputs do."""
    if not state.tensors:
        return {}
    found: dict[str, dict[int, object]] = {state_name(path): {} for path in state.tensors}
    varying = [(e.name, a) for e in examples if e.is_tensor for a in range(e.value.dim()) if may_vary(e, a)]
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
    walker: Walker, examples: list[Example], may_vary: Callable[[Example, int], bool]
) -> tuple[Program, torch.export.ExportedProgram, list[Example]]:
    chosen = widened(examples, may_vary)
    arguments = tuple(e.value for e in chosen)
    constants = {e.identifier: e.value for e in chosen if not e.is_tensor}
    try:
        state = steady_state(walker, arguments)
        program = Program(walker, tuple(e.identifier for e in chosen), constants, state)
        values = {e.identifier: e.value for e in chosen if e.is_tensor}
        shapes: dict[str, dict[int, object]] = {
            e.identifier: {a: _dim(e.ranges[a]) for a in range(e.value.dim()) if may_vary(e, a)}
            for e in chosen if e.is_tensor
        }  # fmt: skip
        dynamic = any(shapes.values())
        values |= {name: state.tensors[path] for name, path in program.state_inputs.items()}
        if dynamic:
            shapes |= _sizes_of_state(walker, chosen, state, may_vary)
        with torch.no_grad():
            exported = torch.export.export(
                program, tuple(values[n] for n in program.inputs), dynamic_shapes=shapes if dynamic else None,
                strict=False,
            )  # fmt: skip
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
    program: Program, exported: torch.export.ExportedProgram, script: torch.jit.ScriptModule, examples: list[Example]
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
            found = exported.module()(*(values[n] for n in program.inputs))
            expected = flat(script(*(e.value.clone() if e.is_tensor else e.value for e in examples)))
        except (RuntimeError, ValueError, AssertionError) as reason:
            raise UnsupportedModel(
                f"expected a program that takes the example inputs, found {last_line(reason)[:200]}: give --shape"
            ) from reason
    for index, (a, b) in enumerate(zip(expected, found)):
        scale = float(b.abs().max()) if b.numel() and b.is_floating_point() else 1.0
        if a.shape != b.shape or not torch.allclose(
            a.double(), b.double(), atol=_TOLERANCE * max(scale, 1e-3), rtol=_TOLERANCE, equal_nan=True
        ):
            raise UnsupportedModel(
                f"expected the converted graph to compute what the file computes, found output {index} to differ "
                "(a random operator?): export the model as ONNX"
            )


def _import(
    program: Program,
    exported: torch.export.ExportedProgram,
    examples: Sequence[Example],
    asked: Callable[[Example, int], bool],
) -> ImportedModel:
    model = import_program(exported, name="model")
    specs = {spec.name: spec for spec in model.inputs}
    for example in examples:
        spec = specs.get(example.identifier)
        if spec is None or not example.is_tensor:
            continue
        for axis, size in enumerate(spec.shape):
            if asked(example, axis) and not isinstance(size, str):
                raise UnsupportedModel(
                    f"expected dimension {axis} of {example.name} to vary, found that the model fixes it at {size} (a "
                    "trace holds the sizes it was made with): give one number for it, or script the model"
                )
    inputs, variables = _with_numbers(model, program, examples)
    state = list(program.state_inputs)
    kept = len(model.outputs) - len(state)
    outputs = ("output",) if kept == 1 else tuple(f"output_{i}" for i in range(kept))
    func = model.mod["main"]
    rest = list(func.params)[len(model.inputs) :]
    func = relax.Function(
        [*variables, *rest], func.body, func.ret_ty, func.is_pure, func.attrs
    ).with_attr("num_input", len(inputs))  # fmt: skip
    mod = tvm.IRModule({**{gv: f for gv, f in model.mod.functions_items() if gv.name_hint != "main"}, "main": func})
    return dataclasses.replace(model, mod=mod, inputs=tuple(inputs), outputs=(*outputs, *state))


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
    return inputs, variables


def _engine(
    path: Path, program: Program, examples: Sequence[Example], outputs: tuple[str, ...]
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """The file's own interpreter; with state, the walked graph, whose state can be given."""

    def run(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
        with torch.no_grad():
            if program.state_inputs:
                named = {e.identifier: given[e.name] for e in examples if e.is_tensor}
                results = program.run({**named, **{n: given[n] for n in program.state_inputs}})
            else:
                script = torch.jit.load(str(path), map_location="cpu").eval()
                results = flat(script(*(given[e.name] if e.is_tensor else e.value for e in examples)))
        return {name: tensor.detach().numpy() for name, tensor in zip(outputs, results, strict=True)}

    return run
