"""An ONNX file -> `ImportedModel`, by converters of our own: one small file per family of operators.

Walk: `_file` reads and checks; `_graph` visits the nodes in order; for each, `_folding` computes what is constant,
`_registry.SYMBOLIC` what depends on dimensions only, a converter from `_registry.CONVERTERS` emits Relax, and
`_functions` falls back to the body of the operator's definition.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tvm
from tvm import relax, tirx

from ...errors import MissingPackage, UnsupportedModel, UsageError
from ...imported import UNBOUNDED, ImportedModel, InputSpec
from .._lowerable import what_cannot_be_lowered

ASSUMED_RANGE = (1, UNBOUNDED)  # of a symbolic dimension: ONNX declares no bounds
_QUANTISED_ERROR = 0.02  # of the largest output: five steps of an 8-bit grid
Bounds = tuple[tuple[int, int], ...]


class NeedsConstants(UnsupportedModel):
    """Shapes or parameters depend on the values of these inputs: `names`."""

    def __init__(self, message: str, names: frozenset[str]) -> None:
        super().__init__(message)
        self.names = names


def import_onnx(
    path: Path, *, shapes: Mapping[str, Bounds] | None = None, constants: Mapping[str, np.ndarray] | None = None
) -> ImportedModel:
    """Read the ONNX model at `path`; its own engine, onnxruntime, becomes the reference.

    `shapes` fixes or bounds the dimensions of inputs by name; `constants` gives inputs whose values are known now.
    """
    _need_onnx()
    from ._file import read_model

    from ._graph import TVM_ERRORS

    proto = read_model(path)
    try:
        model = import_proto(proto, name=path.stem, shapes=shapes, constants=constants, file=path.name)
    except TVM_ERRORS as reason:  # no node is to blame; the file may be hostile, and a user meets one sentence
        lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
        raise UnsupportedModel(
            f"expected an ONNX model that can be imported, found {path.name} to end in {type(reason).__name__}: "
            f"{lines[-1][:200] if lines else 'no message'}; export it again, with another exporter or opset"
        ) from reason
    source = {"kind": "onnx", "name": path.name, "sha256": _sha256(path)}
    return _with(model, source=source, engine=_engine(path, model.outputs))


def import_proto(
    proto: object,
    *,
    name: str,
    shapes: Mapping[str, Bounds] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    file: str = "the model",
    flatten: bool = False,
) -> ImportedModel:
    """As `import_onnx`, for a checked `onnx.ModelProto` in memory; without an engine.

    With `flatten`, outputs may be sequences and absent values: a sequence becomes the outputs `name.0`, `name.1`, ...,
    and report["flattened"] tells their number by name (None: absent). Inputs and outputs of less than a byte per element
    then are one per byte (see `_narrow`). Without, all these are refused.
    """
    from . import _registry
    from ._graph import GraphConverter, initialisers

    _registry.load_converters()
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    functions = {("" if f.domain == "ai.onnx" else f.domain, f.name): f for f in proto.functions}
    graph = GraphConverter(opsets, functions)
    for key, value in initialisers(proto.graph, graph).items():
        graph.define(key, value)
    inputs = _Inputs(proto, graph, shapes or {}, constants or {}, file, narrow=flatten)
    with graph.builder.function("main", inputs.variables):
        graph.convert(proto.graph.node)
        failure = _problems(graph, file)
        outputs: dict[str, relax.Expr] = {}
        flattened: dict[str, int | None] = {}
        for output in () if failure else proto.graph.output:
            outputs.update(_output(graph, output, file, flattened if flatten else None))
        results = list(outputs.values())
        graph.builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    if failure:
        raise failure
    mod = _finished(graph)
    unfit = what_cannot_be_lowered(mod["main"], {n.op_type for n in proto.graph.node})
    if unfit:
        raise UnsupportedModel(
            f"expected operators that can be compiled, found {', '.join(unfit)} in {file}: export the model without them"
        )
    return ImportedModel(
        name=name,
        mod=mod,
        params=graph.params,
        inputs=tuple(inputs.specs),
        outputs=tuple(outputs),
        ranges=inputs.ranges,
        typical=inputs.typical,
        source={"kind": "onnx", "name": file},
        samples={n: v for n, v in _compared(proto.graph).items() if n in {s.name for s in inputs.specs}},
        accepted_error=_QUANTISED_ERROR if _rounds_to_integers(proto.graph) else None,
        report={
            "importer": "onnx",
            "nodes": len(proto.graph.node),
            "parameters": len(graph.params.sources),
            "unbounded": inputs.assumed,
            **({"flattened": flattened} if flattened else {}),
        },
    )


def _output(graph, output, file: str, flattened: dict[str, int | None] | None) -> dict[str, relax.Expr]:
    """The tensors that an output consists of, by name: itself, or the elements of a sequence (noted in `flattened`)."""
    from ._values import NARROW, Sequence

    try:
        value = graph.lookup(output.name)
    except KeyError:
        raise UnsupportedModel(
            f"expected every output to be made by a node, found none for {output.name} in {file}"
        ) from None
    if value is not None and not isinstance(value, Sequence):
        if value.dtype in NARROW and flattened is None:
            raise UnsupportedModel(
                f"expected outputs of whole bytes, found {value.dtype} {output.name} in {file}: convert it inside"
            )
        expr = graph.stored_of(value)
        return {output.name: expr if isinstance(expr, relax.Var) else graph.builder.emit(expr)}
    if flattened is None:
        kind = "an absent value" if value is None else "a sequence"
        raise UnsupportedModel(f"expected tensors as outputs, found {kind} {output.name} in {file}: export it without")
    items = () if value is None else value.items
    if any(item is None or isinstance(item, Sequence) for item in items):
        raise UnsupportedModel(
            f"expected sequences of tensors, found another kind of element in {output.name} of {file}"
        )
    flattened[output.name] = None if value is None else len(items)
    exprs = {f"{output.name}.{i}": graph.expr_of(item) for i, item in enumerate(items)}
    return {name: e if isinstance(e, relax.Var) else graph.builder.emit(e) for name, e in exprs.items()}


def _finished(graph) -> tvm.IRModule:
    """The built module: weights as further parameters of main, pure bindings in dataflow blocks."""
    mod = graph.builder.get()
    func = mod["main"]
    count = len(func.params)
    func = relax.Function([*func.params, *graph.weights.values()], func.body, func.ret_ty, func.is_pure)
    mod["main"] = func.with_attrs({"num_input": count, "halo.params": list(graph.weights), "global_symbol": "main"})
    steps = [relax.transform.ConvertToDataflow(1), relax.transform.Normalize(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(steps)(mod)


def _problems(graph, file: str) -> UnsupportedModel | None:
    """Everything that could not be converted, in one error."""
    if not graph.problems:
        return None
    listed = "; ".join(
        f"{what} ({len(nodes)}: {', '.join(nodes[:3])})" for what, nodes in sorted(graph.problems.items())[:20]
    )
    message = f"expected operators that can be converted, found {listed} in {file}"
    if graph.needs:
        names = ", ".join(sorted(graph.needs))
        return NeedsConstants(f"{message}: make {names} constant in the model", frozenset(graph.needs))
    return UnsupportedModel(f"{message}: export the model with another opset or without them")


class _Inputs:
    """The inputs of a model: variables of main, their specs, and the ranges of their symbolic dimensions."""

    def __init__(
        self,
        proto,
        graph,
        shapes: Mapping[str, Bounds],
        constants: Mapping[str, np.ndarray],
        file: str,
        *,
        narrow: bool,
    ) -> None:
        from ._file import MOST_BYTES, MOST_DIMENSIONS
        from ._values import NARROW, Constant, Tensor

        self.variables: list[relax.Var] = []
        self.specs: list[InputSpec] = []
        self.ranges: dict[str, tuple[int, int]] = {}
        self.typical: dict[str, int] = {}
        self.assumed: list[str] = []
        self._symbols: dict[str, tirx.Var] = {}
        self._graph, self._file = graph, file
        held = {i.name for i in proto.graph.initializer} | {s.values.name for s in proto.graph.sparse_initializer}
        given = [i for i in proto.graph.input if i.name not in held]
        unknown = sorted((set(shapes) | set(constants)) - {i.name for i in given})
        if unknown:
            from ...errors import UnknownName

            raise UnknownName("input", unknown[0], [i.name for i in given])
        self._fixed = self._fixed_names(given, shapes)
        indices = _index_ranges(proto.graph)
        for info in given:
            if info.name in constants:
                graph.define(info.name, Constant.of(np.asarray(constants[info.name]), info.name))
                continue
            dtype, dims = self._type(info)
            shape = self._shape(info.name, dims, shapes.get(info.name))
            if len(shape) > MOST_DIMENSIONS or math.prod(d for d in shape if isinstance(d, int)) > MOST_BYTES:
                raise UnsupportedModel(
                    f"expected inputs of at most {MOST_DIMENSIONS} dimensions and {MOST_BYTES} elements, found {info.name} of shape {dims[:8]} in "
                    f"{self._file}: export it again"
                )
            kind, dtype = (dtype, NARROW[dtype]) if dtype in NARROW else ("", dtype)
            if kind and not narrow:
                raise UnsupportedModel(
                    f"expected inputs of whole bytes, found {kind} {info.name} in {file}: convert it inside"
                )
            var = relax.Var(_identifier(info.name), relax.TensorType(shape, dtype))
            self.variables.append(var)
            if info.name in indices and "int" in dtype:
                graph.checked_indices.append(var)
            names = tuple(d if isinstance(d, int) else str(d) for d in shape)
            self.specs.append(InputSpec(info.name, names, dtype, indices.get(info.name) if "int" in dtype else None))
            graph.define(info.name, Tensor(var, kind), is_input=True)

    def _type(self, info) -> tuple[str, list[int | str | None]]:
        import onnx

        from ._values import dtype_name

        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedModel(
                f"expected tensors as inputs, found {kind} {info.name} in {self._file}: export it without"
            )
        element = info.type.tensor_type
        if element.elem_type in (
            onnx.TensorProto.STRING,
            onnx.TensorProto.UNDEFINED,
            onnx.TensorProto.COMPLEX64,
            onnx.TensorProto.COMPLEX128,
        ):
            name = onnx.TensorProto.DataType.Name(element.elem_type)
            raise UnsupportedModel(
                f"expected numbers as inputs, found {name} {info.name} in {self._file}: export it without"
            )
        try:
            dtype = dtype_name(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element.elem_type)))
        except KeyError:
            raise UnsupportedModel(
                f"expected a known element type for {info.name} in {self._file}, found {element.elem_type}: export it again"
            ) from None
        if not element.HasField("shape"):
            return dtype, None
        # A size of 0 or less is how some exporters write "not known".
        return dtype, [
            d.dim_value if d.dim_value > 0 else (d.dim_param if d.dim_param and d.dim_param != "?" else None)
            for d in element.shape.dim
        ]

    def _fixed_names(self, given, shapes: Mapping[str, Bounds]) -> dict[str, int]:
        """Dimension names that `shapes` fix through one of the inputs."""
        fixed: dict[str, int] = {}
        for info in given:
            dims = self._type(info)[1] or []
            for dim, (low, high) in zip(dims, shapes.get(info.name, ())):
                if isinstance(dim, str) and low == high:
                    fixed[dim] = low
        return fixed

    def _shape(self, name: str, dims: list | None, bounds: Bounds | None) -> list:
        if dims is None:
            if bounds is None:
                raise UnsupportedModel(
                    f"expected inputs of known rank, found {name} without a shape in {self._file}: give --shape {name}=..."
                )
            dims = [None] * len(bounds)
        if bounds is not None and len(bounds) != len(dims):
            raise UsageError(
                f"expected {len(dims)} dimensions for input {name}, found {len(bounds)}: give one per dimension"
            )
        return [self._dim(name, axis, dim, bounds[axis] if bounds else None) for axis, dim in enumerate(dims)]

    def _dim(self, name: str, axis: int, dim: int | str | None, bound: tuple[int, int] | None):
        if isinstance(dim, int):
            if bound is not None and bound != (dim, dim):
                raise UsageError(
                    f"input {name} has a fixed dimension of {dim}, found {bound[0]}..{bound[1]}: "
                    "only symbolic dimensions have ranges"
                )
            return dim
        if isinstance(dim, str) and dim in self._fixed:
            return self._fixed[dim]
        if dim is None and bound is not None and bound[0] == bound[1]:
            return bound[0]
        expression = self._expression(dim) if isinstance(dim, str) else None
        if expression is not None:
            return expression
        key = re.sub(r"\W", "_", dim) if dim else f"{_identifier(name)}_{axis}"
        if key not in self._symbols:
            self._symbols[key] = tirx.Var(self._graph.dimension_name(key), "int64")
            self.ranges[key] = bound or ASSUMED_RANGE
            if bound is None:
                self.assumed.append(key)
            self.typical[key] = 1 if axis == 0 else min(128, self.ranges[key][1])
            self._graph.sizes.declare(self._symbols[key], 1, UNBOUNDED)
        elif bound is not None:
            low, high = self.ranges[key]
            self.ranges[key] = bound if key in self.assumed else (max(low, bound[0]), min(high, bound[1]))
            if key in self.assumed:
                self.assumed.remove(key)
        return self._symbols[key]

    def _expression(self, text: str):
        """A size like `past + sequence` of names met before; None for anything else."""
        parts = re.findall(r"\w+|[+*()-]", text)
        if len(parts) < 3 or "".join(parts) != re.sub(r"\s", "", text):
            return None
        total = None
        if any(p in "*()-" for p in parts) or len(parts) % 2 == 0:
            return None
        for part in parts[::2]:
            term = int(part) if part.isdigit() else self._fixed.get(part, self._symbols.get(part))
            if term is None:
                return None
            total = term if total is None else total + term
        return total


def _index_ranges(graph) -> dict[str, tuple[int, int]]:
    """Inputs that select rows of a weight (token ids) or along another axis: 0 to the last of the smallest such."""
    sizes = {i.name: list(i.dims) for i in graph.initializer if i.dims}
    origin: dict[str, str] = {}  # a value that only converts another -> that one
    found: dict[str, tuple[int, int]] = {}
    for node in graph.node:  # sorted: a value is made before it is used
        if node.op_type in ("Cast", "Identity"):
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
        elif node.op_type == "Gather" and node.input[0] in sizes:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            if not -len(sizes[node.input[0]]) <= axis < len(sizes[node.input[0]]):
                continue  # its converter says what is wrong
            name = origin.get(node.input[1], node.input[1])
            last = sizes[node.input[0]][axis] - 1
            found[name] = (0, min(last, found.get(name, (0, last))[1]))
    return found


def _compared(graph) -> dict[str, tuple[int, ...]]:
    """Values that the outermost graph compares with integer constants, and the constants."""
    from onnx import numpy_helper

    tensors = {t.name: t for t in graph.initializer if t.data_type in (6, 7) and int(np.prod(t.dims)) <= 4096}
    origin: dict[str, str] = {}
    found: dict[str, tuple[int, ...]] = {}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensor = node.attribute[0].t
            if tensor.data_type in (6, 7) and int(np.prod(tensor.dims)) <= 4096:
                tensors[node.output[0]] = tensor
        elif node.op_type in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze") and node.input:
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
            if node.input[0] in tensors and node.op_type != "Cast":
                tensors[node.output[0]] = tensors[node.input[0]]
        elif node.op_type == "Equal":
            for value, constant in (node.input, node.input[::-1]):
                if constant in tensors and value not in tensors:
                    numbers = numpy_helper.to_array(tensors[constant]).reshape(-1).tolist()
                    name = origin.get(value, value)
                    found[name] = tuple(dict.fromkeys([*found.get(name, ()), *numbers]))
    return {name: numbers for name, numbers in found.items() if numbers}


def _rounds_to_integers(graph) -> bool:
    """Whether activations are quantised on the way."""
    rounding = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul")
    return any(n.op_type in rounding or n.op_type.startswith("QLinear") for n in graph.node)


def _engine(path: Path, outputs: tuple[str, ...]):
    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it refuses is raised as well
        refusals = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            return dict(zip(outputs, session.run(list(outputs), dict(inputs))))
        except refusals as reason:
            line = str(reason).strip().splitlines()[0][:200]
            raise UnsupportedModel(
                f"expected onnxruntime to run {path.name} for the reference, but it says: {line}: "
                "give inputs that it accepts with --inputs"
            ) from reason

    return run


def _with(model: ImportedModel, **changes: object) -> ImportedModel:
    import dataclasses

    return dataclasses.replace(model, **changes)


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as missing:
        raise MissingPackage("onnx", "reading an ONNX file", "pip install onnx") from missing


def _identifier(name: str) -> str:
    from ._graph import identifier

    return identifier(name)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
