"""An imported model as an ONNX file, so that another engine can run the same weights.

The graph is written as it is: before any lift, or behind `optimised`. Weights go to `<file>.data` beside it, tensor
by tensor, so memory stays near the largest tensor and models beyond 2 GB work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, relax, tirx

from ..dimensions import text_of
from ..errors import UnsupportedModel
from ..imported import ImportedModel, Spelled
from ..importers.onnx.definitions import nodes_in
from ..relay_ops.operator import op_name
from ..whole_file import replaced
from . import _attention, _halo_ops, _layers, _nbits, _relax_ops
from ._graph import OPSETS, Graph, Spelling
from ._overwriting import weights_beside
from ._walk import converted

IR_VERSION = 10
NEXT = ".next"  # behind the name of an output that is an input's, too
ALIGNMENT = 4096  # engines map external data by page
SMALL = 1024  # bytes of a weight that is written into the file itself: checkers read scales and axes there

CONVERTERS = {
    **_relax_ops.CONVERTERS,
    **_halo_ops.CONVERTERS,
    **_attention.CONVERTERS,
    **_layers.CONVERTERS,
}
PLAIN = Spelling()
FUSED = Spelling.of("onnxruntime")


def spelled(opset: int | None = None) -> Spelled:
    """What is written by itself, in `opset` or in that of the file."""
    return Spelled(_writes, lambda own: opset or min(max(own, OPSETS[0]), OPSETS[1]))


def _writes(call: relax.Call) -> bool:
    if not isinstance(call.op, ir.Op):
        return False
    if call.op.name == "relax.call_pure_packed":  # of a node inside that stays one
        return True
    return call.op.name in CONVERTERS and not _relax_ops.rounds(call) and not _layers.is_beyond(call)


def export_onnx(imported: ImportedModel, path: Path, *, fused: bool = False) -> None:
    """Write `imported` to `path` and its weights to `<path>.data`.

    `fused` uses onnxruntime's contrib operators where they exist; without it every operator is standard.
    Raises `UnsupportedModel` with every operator that has no ONNX spelling.
    """
    write_onnx(imported, Path(path), FUSED if fused else PLAIN)


def write_onnx(imported: ImportedModel, path: Path, spelling: Spelling) -> None:
    """`export_onnx` with each choice of spelling in the caller's hand."""
    if imported.complex_outputs or any(spec.dtype.startswith("complex") for spec in imported.inputs):
        raise UnsupportedModel(
            "expected inputs and outputs of real numbers, found complex ones, which no operator of ONNX takes: put "
            "torch.view_as_complex and torch.view_as_real at both ends of the model"
        )
    main = imported.mod["main"]
    g = Graph(spelling)
    count = len(imported.inputs)
    env: dict[relax.Var, _relax_ops.Value] = {}
    for var, spec in zip(main.params[:count], imported.inputs, strict=True):
        env[var] = spec.name
        for axis, dim in enumerate(var.ty.shape.values):
            if isinstance(dim, tirx.Var):
                g.dims.setdefault(dim, (spec.name, axis))
    known = (*imported.params.sources, *imported.params.recipes)
    own = (
        main.attrs["halo.params"] if main.attrs and "halo.params" in main.attrs else known
    )  # other functions have more
    values = {*imported.outputs, *(spec.name for spec in imported.inputs)}
    for var, weight in zip(main.params[count:], map(str, own), strict=True):
        name = weight
        while name in values:  # a weight that is an output, too: of another name there
            name += ".weight"
        g.sources[name] = weight
        env[var] = name
        g.weights[var] = name
    g.only_linear = _only_linear(main)
    result = converted(g, imported.mod, env, imported.kept, CONVERTERS)
    inputs = [_value_info(s.name, v) for s, v in zip(imported.inputs, main.params[:count], strict=True)]
    taken = {s.name for s in imported.inputs}  # ONNX has one name for one value: state gets another one where it leaves
    outputs = _outputs(g, main, result, tuple(n + NEXT if n in taken else n for n in imported.outputs))
    read = {name for node in g.nodes for inner in nodes_in(node) for name in inner.input}
    used = [name for name in g.weights.values() if name in read or name in g.in_groups]
    names = {g.sources[name]: name for name in used}
    path.parent.mkdir(parents=True, exist_ok=True)
    with _pair(path) as (file, data, location):
        weights = _write_weights(imported.params.stream(list(names)), names, g, read, data, location)
        graph = helper.make_graph(g.nodes, imported.name, inputs, outputs, [*g.constants.values(), *weights])
        file.write(_model(graph, g).SerializeToString())


def _model(graph: onnx.GraphProto, g: Graph) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", g.spelling.opset)]
    ir_version = max(IR_VERSION, helper.find_min_ir_version_for(opsets))
    opsets += [helper.make_opsetid(domain, version) for domain, version in sorted(g.domains.items())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name="halo_tvm")


@contextmanager
def _pair(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO, str]]:
    """The files of a model and of its weights, and the latter's name; both replace the old ones, or neither does.

    An old model would compute with new weights and give no error. So both are whole and on disk before the first is
    renamed, and nothing but the two renames is between them.
    """
    data = weights_beside(path)
    with replaced(path) as file, replaced(data) as weights:
        yield file, weights, data.name
        file.flush()
        os.fsync(file.fileno())
    if not data.stat().st_size:
        data.unlink()


def _only_linear(main: relax.Function) -> set[relax.Var]:
    """Parameters used by weight multiplications alone: these may be stored transposed."""
    uses: dict[relax.Var, set[bool]] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            name = op_name(expr)
            for arg in expr.args:
                if isinstance(arg, relax.Var):
                    uses.setdefault(arg, set()).add(name in ("relax.halo.linear", "relax.halo.ffn"))

    relax.analysis.post_order_visit(main.body, visit)
    return {var for var, kinds in uses.items() if kinds == {True}}


def _value_info(name: str, expr: relax.Expr) -> onnx.ValueInfoProto:
    dims = expr.ty.shape.values if isinstance(expr.ty.shape, relax.ShapeExpr) else [None] * expr.ty.ndim  # by data
    shape = [None if d is None else text_of(d) for d in dims]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(str(expr.ty.dtype))), shape)


def _outputs(
    g: Graph, main: relax.Function, result: _relax_ops.Value, names: tuple[str, ...]
) -> list[onnx.ValueInfoProto]:
    """Give the results their names: an Identity each, which every engine removes."""
    results = result if isinstance(result, tuple) else (result,)
    types = main.ret_ty.fields if isinstance(main.ret_ty, ir.TupleType) else [main.ret_ty]
    infos = []
    for value, ty, name in zip(results, types, names, strict=True):
        g.nodes.append(helper.make_node("Identity", [value], [name], name=f"node_{name}"))
        infos.append(_value_info(name, relax.Var(name, ty)))
    return infos


def _write_weights(
    weights: Iterable[tuple[str, np.ndarray]],
    names: Mapping[str, str],
    g: Graph,
    read: Set[str],
    file: BinaryIO,
    location: str,
) -> list[TensorProto]:
    """Stream the weights, each with its name in the graph, into the external data file; returns their declarations."""
    declared = []
    for source, weight in weights:
        for name, values in _forms(names[source], weight, g, read):
            array = np.asarray(values, order="C")
            if array.nbytes <= SMALL:
                declared.append(numpy_helper.from_array(array, name))
                continue
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = TensorProto(name=name, data_type=dtype, dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", file.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            array.tofile(file)
            declared.append(tensor)
    return declared


def _forms(name: str, weight: np.ndarray, g: Graph, read: Set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """What nodes read of a weight: itself, its integers, or both."""
    if name in read:
        yield name, weight.T if name in g.transposed else weight
    if name in g.in_groups:
        yield from _nbits.stored(name, weight, g.spelling.numbers, transposed=g.in_groups[name]).items()
