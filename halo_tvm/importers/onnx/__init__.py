"""An ONNX file -> `ImportedModel`, by converters of our own: one small file per family of operators.

Walk: `_file` reads and checks; `_graph` visits the nodes in order; for each, `_folding` computes what is constant,
`_registry.SYMBOLIC` what depends on dimensions only, a converter from `_registry.CONVERTERS` emits Relax, and
`_functions` falls back to the body of the operator's definition.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from ...artifact import RANDOM_STATE, names_of, sizes_that_hold
from ...errors import MissingPackage, UnsupportedModel
from ...imported import ImportedModel, Spelled
from ...onnxruntime_apart import Model, Refused
from ...processes import Ended, ProcessTrouble
from .._digest import sha256_of
from .._lowerable import what_cannot_be_lowered
from .._reasons import last_line, listed
from ._registry import BEYOND as BEYOND
from .unsigned import with_unsigned_weights

_QUANTISED_ERROR = 0.02  # of the largest output: five steps of an 8-bit grid
Bounds = tuple[tuple[int, int], ...]


class NeedsConstants(UnsupportedModel):
    """Shapes or parameters depend on the values of these inputs: `names`."""

    def __init__(self, message: str, names: frozenset[str]) -> None:
        super().__init__(message)
        self.names = names


def import_onnx(
    path: Path,
    *,
    shapes: Mapping[str, Bounds] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    spelled: Spelled | None = None,
) -> ImportedModel:
    """Read the ONNX model at `path`; its own engine, onnxruntime, becomes the reference.

    `shapes` fixes or bounds the dimensions of inputs by name; `constants` gives inputs whose values are known now.
    `spelled`, for an export: a node that is made of other calls of Relax stays a node.
    """
    _need_onnx()
    from ._file import read_model
    from ._plain_outputs import changed_file, with_plain_outputs

    proto = read_model(path)
    changed, labels = with_plain_outputs(proto)
    model = import_of_file(proto, path, shapes=shapes, constants=constants, spelled=spelled)
    source = {"kind": "onnx", "name": path.name, "sha256": sha256_of(path)}
    outputs = tuple(name for name in model.outputs if name != RANDOM_STATE)
    rounds = model.accepted_error is not None
    engine = OnnxRuntime(changed_file(path) if changed else str(path), path.name, outputs, rounds)
    other = engine.optimised() if rounds else None
    return dataclasses.replace(model, source=source, engine=engine, other_engine=other, labels=labels)


def plain_model(path: Path) -> bytes | None:
    """The model at `path` with tensors of numbers as outputs, as it is compiled; None where all are such already."""
    from ._plain_outputs import changed_file, needs_change

    return changed_file(path) if needs_change(path) else None


def import_of_file(
    proto: object,
    path: Path,
    *,
    shapes: Mapping[str, Bounds] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    spelled: Spelled | None = None,
) -> ImportedModel:
    """As `import_proto`, for a graph that the file at `path` holds, or was written as."""
    from ._errors import TVM_ERRORS

    try:
        return import_proto(proto, name=path.stem, shapes=shapes, constants=constants, file=path.name, spelled=spelled)
    except TVM_ERRORS as reason:  # no node is to blame; the file may be hostile, and a user meets one sentence
        raise UnsupportedModel(
            f"expected a model that can be imported, found {path.name} to end in {type(reason).__name__}: "
            f"{last_line(reason)}; export it again, with another exporter or opset"
        ) from reason


def import_proto(
    proto: object,
    *,
    name: str,
    shapes: Mapping[str, Bounds] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    file: str = "the model",
    flatten: bool = False,
    spelled: Spelled | None = None,
) -> ImportedModel:
    """As `import_onnx`, for a checked `onnx.ModelProto` in memory; without an engine.

    With `flatten`, outputs may be sequences and absent values: a sequence becomes the outputs `name.0`, `name.1`, ...,
    and report["flattened"] tells their number by name (None: absent). Inputs and outputs of less than a byte per
    element then are one per byte (see `_narrow`). Without, all these are refused.
    """
    from ..meaning.random import drawing
    from . import _registry
    from ._graph import GraphConverter, initialisers
    from ._inputs import Inputs, compared

    _registry.load_converters()
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    functions = {("" if f.domain == "ai.onnx" else f.domain, f.name): f for f in proto.functions}
    graph = GraphConverter(opsets, functions, spelled)
    for key, value in initialisers(proto.graph, graph).items():
        graph.define(key, value)
    inputs = Inputs(proto, graph, shapes or {}, constants or {}, file, narrow=flatten)
    with graph.builder.function("main", inputs.variables):
        graph.convert(proto.graph.node)
        failure = _problems(graph, file)
        outputs: dict[str, relax.Expr] = {}
        flattened: dict[str, int | None] = {}
        for output in () if failure else proto.graph.output:
            outputs.update(_output(graph, output, file, flattened if flatten else None))
        results = [*outputs.values(), *graph.draws.outputs(graph.builder.emit)]
        graph.builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    if failure:
        raise failure
    mod = _finished(graph)
    unfit = what_cannot_be_lowered(mod["main"], {n.op_type for n in proto.graph.node})
    if unfit:
        raise UnsupportedModel(
            f"expected operators that can be compiled, found {', '.join(unfit)} in {file}: "
            "export the model without them"
        )
    conditions = tuple(c for c in graph.conditions if names_of(c.formula) <= set(inputs.ranges))
    model = ImportedModel(
        name=name,
        mod=mod,
        params=graph.params,
        inputs=tuple(inputs.specs),
        outputs=tuple(outputs),
        ranges=inputs.ranges,
        typical=sizes_that_hold(conditions, inputs.ranges, inputs.typical),
        source={"kind": "onnx", "name": file},
        kept=graph.kept,
        samples={n: v for n, v in compared(proto.graph).items() if n in {s.name for s in inputs.specs}},
        accepted_error=_QUANTISED_ERROR if _rounds_to_integers(proto.graph) else _narrow_error(proto.graph),
        report={
            "importer": "onnx",
            "nodes": len(proto.graph.node),
            "opset": opsets.get("", 1),
            "parameters": len(graph.params.sources),
            "unbounded": inputs.assumed,
            **({"flattened": flattened} if flattened else {}),
        },
        conditions=conditions,
    )
    return drawing(model, graph.draws)


def _output(graph, output, file: str, flattened: dict[str, int | None] | None) -> dict[str, relax.Expr]:
    """The tensors that an output consists of, by name: itself, or the elements of a sequence (noted in `flattened`)."""
    from ..meaning.constant import NARROW
    from ._values import Sequence

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
    inputs = [*func.params, *graph.draws.inputs]
    count = len(inputs)
    func = relax.Function([*inputs, *graph.weights.values()], func.body, func.ret_ty, func.is_pure)
    mod["main"] = func.with_attrs({"num_input": count, "halo.params": list(graph.weights), "global_symbol": "main"})
    steps = [relax.transform.ConvertToDataflow(1), relax.transform.Normalize(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(steps)(mod)


def _problems(graph, file: str) -> UnsupportedModel | None:
    """Everything that could not be converted, in one error."""
    if not graph.problems:
        return None
    message = f"expected operators that can be converted, found {listed(graph.problems)} in {file}"
    if graph.needs:
        names = ", ".join(sorted(graph.needs))
        return NeedsConstants(f"{message}: make {names} constant in the model", frozenset(graph.needs))
    return UnsupportedModel(f"{message}: export the model with another opset or without them")


def _rounds_to_integers(graph) -> bool:
    """Whether activations are quantised on the way."""
    rounding = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul")
    return any(n.op_type in rounding or n.op_type.startswith("QLinear") for n in graph.node)


def _narrow_error(graph) -> float | None:
    """What float32 outputs may be off because numbers on the way have 16 bits: what validation accepts of outputs of
    such a type. None where none have."""
    from onnx import TensorProto

    from ...runtime.validation import TOLERANCES

    kinds_of = {"bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16}
    errors = {kind: TOLERANCES[name].relative for name, kind in kinds_of.items()}
    if any(o.type.tensor_type.elem_type in errors for o in graph.output):
        return None  # outputs of such types have their own tolerance
    kinds = {t.data_type for t in graph.initializer}
    kinds |= {a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"}
    return next((error for kind, error in errors.items() if kind in kinds), None)


class OnnxRuntime:
    """onnxruntime on a model (its file, or its bytes); where it rounds on the way, on the graph as it is written.

    Optimised, such a graph rounds at other places and may differ from itself by more than a right answer does. Its
    sums do not saturate. Calls inside `with` share one session, which is gone behind it.
    """

    def __init__(
        self, model: str | bytes, name: str, outputs: tuple[str, ...], rounds: bool, *, exact: bool | None = None
    ) -> None:
        self._source, self._name, self._outputs, self._rounds = model, name, outputs, rounds
        self._exact = rounds if exact is None else exact

    def optimised(self) -> OnnxRuntime:
        """The same model with onnxruntime's optimisations, wherever it rounds."""
        return OnnxRuntime(self._source, self._name, self._outputs, self._rounds, exact=False)

    @functools.cached_property
    def _model(self) -> Model:
        return Model(with_unsigned_weights(self._source) if self._rounds else self._source, exact=self._exact)

    def __enter__(self) -> None:
        self._model.__enter__()

    def __exit__(self, *error: object) -> None:
        self._model.__exit__(*error)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return dict(zip(self._outputs, self._model(self._outputs, inputs)))
        except Refused as reason:
            found = f"it says: {reason}"
        except Ended as end:
            found = ": ".join([f"its process ended with {end.how}", *end.last_words.splitlines()[-1:]])
        except ProcessTrouble as trouble:
            found = f"its process gave no answer ({type(trouble).__name__})"
        raise UnsupportedModel(
            f"expected onnxruntime to run {self._name} for the reference, but {found}: "
            "give inputs that it accepts with --inputs"
        )


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as missing:
        raise MissingPackage("onnx", "reading an ONNX file", "pip install onnx") from missing
