"""An `ExportedProgram` -> `ImportedModel`: which of its values are inputs, weights and outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import tvm
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree
from tvm import relax

from ...artifact import sizes_that_hold
from ...dimensions import text_of
from ...errors import UnsupportedModel
from ...imported import ImportedModel, InputSpec
from ...params import ParamSource, ParamTable
from .._reasons import lines_of, not_run
from ..meaning.builder import Refused, is_tensor
from ..meaning.random import drawing
from ..shapes import usual_size
from ._call import dtype_name, from_array, to_array
from ._complex import COMPONENTS, Pair, parts_of
from ._conditions import conditions_of, texts_of
from ._decompose import decomposed
from ._dimensions import Dimensions
from ._names import distinct, name_of
from ._registry import target_name
from ._state import Buffer, arrays_of, buffers_changed, set_buffers
from ._tracing import tracing
from ._translate import Translator

_FIXES = "Suggested fixes:"  # the line in front of torch's advice on sizes
_CONSTANT_BYTES = 4096  # smaller tensors that no state_dict calls a parameter are constants: they fold

# Operators that hand integers on unchanged, so that a range of their result is a range of their input.
_INDEX_STEPS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default reshape.default unsqueeze.default squeeze.dim squeeze.dims slice.Tensor select.int clone.default "
        "alias.default _to_copy.default to.dtype expand.default permute.default contiguous.default"
    ).split()
)


def import_module(
    module: torch.nn.Module,
    example_inputs: Sequence[object],
    *,
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    name: str | None = None,
) -> ImportedModel:
    """Export `module` with torch.export and import the result.

    `dynamic_shapes` is torch.export's. Raises `UnsupportedModel` when torch cannot export the module.
    """
    if module.training:
        raise UnsupportedModel(
            f"expected a module in inference mode, found {type(module).__name__} in training mode: call .eval() first"
        )
    try:
        with tracing():
            program = torch.export.export(
                module, tuple(example_inputs), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as reason:  # torch.export raises whatever the module's own code or torch's tracer does
        raise UnsupportedModel(
            f"expected a module that torch.export can export, found {type(reason).__name__} ({_said(reason)}): "
            "see torch.export's advice, or export the module to ONNX"
        ) from reason
    name = name or type(module).__name__
    return import_program(program, name=name, source={"kind": "torch", "name": name})


def _said(reason: Exception) -> str:
    """The sentence of torch's message that says most: Dynamo explains, and of sizes there are a list and a remedy."""
    lines = lines_of(reason)
    if not lines[0].startswith("Constraints violated"):
        return next((text for text in lines if text.startswith("Explanation: ")), lines[0])[:200]
    why = next((text for text in lines if text.startswith("- ")), lines[0]).removeprefix("- ").rstrip(".")[:300]
    fixes = lines[lines.index(_FIXES) + 1 :] if _FIXES in lines else []
    found = ", ".join(itertools.takewhile(lambda text: " = " in text, fixes))[:200]
    return f"{why}; it suggests {found}" if found else why


def import_program(
    program: torch.export.ExportedProgram,
    *,
    name: str,
    source: Mapping[str, object] | None = None,
    guards: Sequence[str] = (),
) -> ImportedModel:
    """Import an exported program; its own module becomes the reference engine. `guards` are what it takes for granted
    of sizes where it does not hold that itself.

    Raises `UnsupportedModel` with all operators and forms that cannot be converted.
    """
    original = program
    program = decomposed(program)
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs, dropped = _inputs(program, nodes)
    state = buffers_changed(program, inputs)
    inputs |= {name: nodes[buffer.placeholder] for name, buffer in state.items()}
    dims = Dimensions({n: node.meta["val"] for n, node in inputs.items()}, program.range_constraints)
    texts = dict.fromkeys([*guards, *texts_of(original), *texts_of(program)])
    conditions = (*dims.conditions, *conditions_of(texts, program, inputs, dims))
    held = {name: node for name, node in nodes.items() if name not in {b.placeholder for b in state.values()}}
    weights, constants, params, tensors = _weights(program, held)
    translator = Translator(dims, weights, constants, params, tensors)
    variables = {}
    for input_name, node in inputs.items():
        value = node.meta["val"]
        is_complex = value.dtype in COMPONENTS
        shape = [*dims.shape(value.shape), *([tvm.tirx.IntImm("int64", 2)] if is_complex else [])]
        var = variables[input_name] = relax.Var(node.name, relax.TensorType(shape, _input_dtype(input_name, value)))
        translator.env[node] = Pair(together=var) if is_complex else var
    builder = translator.builder
    with builder.function("main"):
        with builder.dataflow():
            translator.walk(program.graph)
            outputs, complex_outputs, left_out = _outputs(program, translator, state)
            results = [*outputs.values(), *translator.draws.outputs(builder.emit)]
            results = [builder.emit_output(value) for value in results]
        builder.emit_func_output(
            results[0] if len(results) == 1 else relax.Tuple(results),
            params=[*variables.values(), *translator.draws.inputs, *translator.weights],
        )
    mod = builder.get()
    mod["main"] = _without_unused(mod["main"], translator, len(inputs) + len(translator.draws.inputs))
    values = _index_ranges(program, inputs)
    specs = tuple(
        InputSpec(
            input_name,
            tuple(map(text_of, var.ty.shape.values[: inputs[input_name].meta["val"].dim()])),
            _spec_dtype(inputs[input_name].meta["val"], var),
            values.get(input_name),
            state[input_name].default if input_name in state else "ones" if _is_padding_mask(input_name, var) else None,
        )
        for input_name, var in variables.items()
    )
    model = ImportedModel(
        name=name,
        mod=mod,
        params=params,
        inputs=specs,
        outputs=tuple(outputs),
        ranges=dims.ranges,
        typical=sizes_that_hold(
            conditions,
            dims.ranges,
            {n: dims.served(n, usual_size(_first_axis(n, specs), *limits)) for n, limits in dims.ranges.items()},
        ),
        source=dict(source or {"kind": "torch", "name": name}),
        report={
            "importer": "torch_export",
            "nodes": sum(node.op == "call_function" for node in program.graph.nodes),
            "parameters": len(params.sources),
            "assumed_ranges": {n: list(dims.ranges[n]) for n in dims.assumed},
            "fixed_inputs": dropped,
            "left_out_outputs": left_out,
            "mutated_buffers": [buffer.target for buffer in state.values()],
        },
        engine=_engine(original, list(outputs), state),
        complex_outputs=complex_outputs,
        conditions=conditions,
    )
    return drawing(model, translator.draws)


def _first_axis(dim: str, specs: Sequence[InputSpec]) -> int:
    """Which axis of an input `dim` is, of the first that has it."""
    return next((spec.shape.index(dim) for spec in specs if dim in spec.shape), 0)


def _without_unused(main: relax.Function, translator: Translator, inputs: int) -> relax.Function:
    """`main` with the parameters that it reads: what was only made into other weights is no longer one."""
    used = set(relax.analysis.all_vars(main.body))
    kept = {var: name for var, name in translator.weights.items() if var in used}
    for name in set(translator.weights.values()) - set(kept.values()):
        del translator.params.sources[name]
    smaller = relax.Function([*main.params[:inputs], *kept], main.body, main.ret_ty, main.is_pure)
    return smaller.with_attrs({"num_input": inputs, "halo.params": list(kept.values()), "global_symbol": "main"})


def _input_dtype(name: str, value: torch.Tensor) -> str:
    try:
        return dtype_name(COMPONENTS.get(value.dtype, value.dtype))
    except Refused as reason:
        raise UnsupportedModel(f"expected inputs of numbers, found {reason} for input {name}: convert it") from reason


def _spec_dtype(value: torch.Tensor, var: relax.Var) -> str:
    return str(value.dtype).removeprefix("torch.") if value.dtype in COMPONENTS else str(var.ty.dtype)


def _is_padding_mask(name: str, var: relax.Var) -> bool:
    return name.endswith("attention_mask") and var.ty.ndim == 2 and str(var.ty.dtype) in ("int64", "int32", "bool")


def _inputs(
    program: torch.export.ExportedProgram, nodes: Mapping[str, fx.Node]
) -> tuple[dict[str, fx.Node], dict[str, str]]:
    """Run-time tensors by name, and the inputs whose values the export fixed, with those values."""
    inputs: dict[str, fx.Node] = {}
    fixed: dict[str, str] = {}
    numbers: list[str] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            continue
        name = spec.arg.name
        value = nodes[name].meta.get("val")
        if isinstance(value, torch.Tensor):
            inputs[name] = nodes[name]
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            numbers.append(name)
        else:
            fixed[name] = repr(getattr(spec.arg, "value", value))
    if numbers:
        raise UnsupportedModel(
            f"expected inputs that are tensors, found "
            f"the dynamic number{'s' * (len(numbers) > 1)} {', '.join(numbers)}: "
            "export with a fixed value, or pass a tensor"
        )
    return inputs, fixed


def _weights(
    program: torch.export.ExportedProgram, nodes: Mapping[str, fx.Node]
) -> tuple[dict[fx.Node, relax.Var | Pair], dict[fx.Node, torch.Tensor], ParamTable, dict[fx.Node, torch.Tensor]]:
    """Parameters as variables, small buffers and integers as constants; tied tensors are one parameter.

    Last the tensors of the parameters.
    """
    weights: dict[fx.Node, relax.Var | Pair] = {}
    constants: dict[fx.Node, torch.Tensor] = {}
    tensors: dict[fx.Node, torch.Tensor] = {}
    params = ParamTable()
    known: dict[tuple[object, ...], relax.Var | Pair] = {}
    used = {node.name for node in nodes.values() if node.users}
    outputs = {spec.arg.name for spec in program.graph_signature.output_specs if hasattr(spec.arg, "name")}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT or spec.arg.name not in (used | outputs) & nodes.keys():
            continue
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise UnsupportedModel(
                f"expected weights and tensors, found {spec.kind.name.lower()} {spec.target!r}: export without it"
            )
        held = program.state_dict if spec.target in program.state_dict else program.constants
        tensor, node = held[spec.target].detach(), nodes[spec.arg.name]
        try:
            dtype = dtype_name(COMPONENTS.get(tensor.dtype, tensor.dtype))
        except Refused as reason:
            raise UnsupportedModel(
                f"expected weights of numbers, found {reason} for {spec.target}: convert it"
            ) from reason
        small = tensor.numel() <= 1 or (
            spec.kind is not InputKind.PARAMETER and tensor.numel() * tensor.element_size() <= _CONSTANT_BYTES
        )
        if not (tensor.dtype.is_floating_point or tensor.is_complex()) or small:
            constants[node] = tensor
            continue
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype)
        if place not in known:
            parts = {"": tensor} if tensor.is_floating_point() else dict(zip((".real", ".imag"), parts_of(tensor)))
            variables = []
            for suffix, part in parts.items():
                shape = tuple(part.shape)
                params.add_source(spec.target + suffix, ParamSource(shape, dtype, lambda part=part: to_array(part)))
                variables.append(relax.Var(node.name + suffix.replace(".", "_"), relax.TensorType(shape, dtype)))
            known[place] = Pair.of(*variables) if len(variables) == 2 else variables[0]
        weights[node], tensors[node] = known[place], tensor
    return weights, constants, params, tensors


def _outputs(
    program: torch.export.ExportedProgram, translator: Translator, state: Mapping[str, Buffer]
) -> tuple[dict[str, relax.Expr], tuple[str, ...], dict[str, str]]:
    """Tensors by name: keys of dicts, positions in tuples. Beside them the names of those that are pairs of a complex
    number's parts, and what is left out, as for inputs: None, and numbers, which are no tensors.
    """
    result = next(node for node in program.graph.nodes if node.op == "output").args[0]
    specs = program.graph_signature.output_specs
    users = [value for value, spec in zip(result, specs) if spec.kind is OutputKind.USER_OUTPUT]
    tree = _pytree.tree_unflatten(list(range(len(users))), program.call_spec.out_spec)
    named = distinct(
        {
            index: name_of([_key(part) for part in path]) or "output"
            for path, index in _pytree.tree_flatten_with_path(tree)[0]
        }
    )
    outputs: dict[str, relax.Expr] = {}
    pairs: list[str] = []
    left_out: dict[str, str] = {}
    for index, node in enumerate(users):
        name, value = named[index], translator.env.get(node) if isinstance(node, fx.Node) else None
        if isinstance(value, Pair):
            value = value.joined(translator.builder.emit)
            pairs.append(name)
        if is_tensor(value):
            outputs[name] = value
        else:
            left_out[name] = str(node.meta.get("val")) if isinstance(node, fx.Node) else repr(node)
    if not outputs:
        raise UnsupportedModel("expected a program that returns tensors, found none in its outputs: return one")
    changed = {s.target: v for s, v in zip(specs, result) if s.kind is OutputKind.BUFFER_MUTATION}
    for name, buffer in state.items():
        value = translator.env[changed[buffer.target]]
        if not is_tensor(value) or name in outputs:
            raise UnsupportedModel(
                f"expected a buffer of real numbers whose name {name!r} no output has, found that the module changes "
                f"{buffer.target!r}: take the buffer as an input and return its new value"
            )
        outputs[name] = value
    return outputs, tuple(pairs), left_out


def _key(part: object) -> str:
    """Of one step of a path of pytree."""
    return str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part))))


def _index_ranges(program: torch.export.ExportedProgram, inputs: Mapping[str, fx.Node]) -> dict[str, tuple[int, int]]:
    """Inputs that select rows of a table (token ids): 0 to the last row of the smallest such table."""
    origin = {node: name for name, node in inputs.items()}
    found: dict[str, tuple[int, int]] = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        target = target_name(node.target)
        if target in _INDEX_STEPS and node.args[0] in origin:
            origin[node] = origin[node.args[0]]
        elif target == "aten.embedding.default" and node.args[1] in origin:
            rows = node.args[0].meta["val"].shape[0]
            name = origin[node.args[1]]
            if isinstance(rows, int):
                found[name] = (0, min(rows - 1, found.get(name, (0, math.inf))[1]))
    return found


def _engine(
    program: torch.export.ExportedProgram, outputs: Sequence[str], state: Mapping[str, Buffer]
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """torch itself, for the reference."""
    module = None

    def run(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal module
        module = module or program.module(check_guards=False)  # conditions say what is not served
        flat = []
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                name = spec.arg.name
                flat.append(from_array(values[name]) if name in values else getattr(spec.arg, "value", None))
        args, kwargs = _pytree.tree_unflatten(flat, program.call_spec.in_spec)
        try:
            with torch.no_grad(), set_buffers(module, state, values) as held:
                result = module(*args, **kwargs)
                after = arrays_of(held)
        except (RuntimeError, ValueError, IndexError) as reason:  # what torch raises for inputs that are none
            raise not_run("torch", "the program", reason) from reason
        tensors = [t for t in _pytree.tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
        found = [to_array(tensor.detach().resolve_conj().resolve_neg()) for tensor in tensors]
        return {**dict(zip([name for name in outputs if name not in state], found, strict=True)), **after}

    return run
