"""An ONNX file with static shapes -> `ImportedModel`, through TVM's own frontend.

Files are untrusted: the checker must accept a model before anything else looks at it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from .. import _compat
from ..errors import MissingPackage, UnsupportedModel
from ..imported import ImportedModel, InputSpec
from ..params import ParamSource, ParamTable
from ._lowerable import what_cannot_be_lowered

_RANGE = (1, 1024)  # of a symbolic dimension, for which ONNX declares no bounds
# What TVM's converters raise for a node they cannot convert: there is no common base.
_CONVERTER_ERRORS = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, NotImplementedError, RuntimeError,
)  # fmt: skip


def import_onnx(path: Path) -> ImportedModel:
    """Read the ONNX model at `path`; its own engine, onnxruntime, becomes the reference."""
    onnx = _onnx()
    model = _checked(onnx, path)
    _refuse_unsupported(model)
    try:
        mod = _compat.from_onnx(model)
    except _CONVERTER_ERRORS as reason:
        line = str(reason).strip().splitlines()
        raise UnsupportedModel(
            f"expected an ONNX graph with static shapes, found one in {path.name} that cannot be converted "
            f"({line[-1][:200] if line else type(reason).__name__}): fix its dimensions (symbolic lengths come with "
            "a later release)"
        ) from reason
    mod, params = _named_params(mod)
    inputs, ranges = _inputs(model, mod, path.name)
    unfit = what_cannot_be_lowered(mod["main"], {node.op_type for node in _nodes(model.graph)})
    if unfit:
        raise UnsupportedModel(
            f"expected operators that can be compiled, found {', '.join(unfit)} in {path.name}: "
            "export the model without them"
        )
    return ImportedModel(
        name=path.stem,
        mod=mod,
        params=params,
        inputs=inputs,
        outputs=tuple(o.name for o in model.graph.output),
        ranges=ranges,
        typical={name: 1 for name in ranges},
        source={"kind": "onnx", "name": path.name, "sha256": _sha256(path)},
        report={
            "importer": "onnx",
            "nodes": len(model.graph.node),
            "parameters": len(params.sources),
            "assumed_ranges": {name: list(bounds) for name, bounds in ranges.items()},
        },
        engine=_engine(path, tuple(o.name for o in model.graph.output)),
    )


def _onnx():
    try:
        import onnx
        import onnx.checker
    except ImportError as missing:
        raise MissingPackage("onnx", "reading an ONNX file", "pip install onnx") from missing
    return onnx


def _checked(onnx, path: Path):
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(str(path))
    except (DecodeError, onnx.checker.ValidationError, ValueError, OSError, RuntimeError) as reason:
        line = str(reason).strip().splitlines()
        raise UnsupportedModel(
            f"expected a valid ONNX model, found {path.name} that the checker refuses "
            f"({line[0][:200] if line else type(reason).__name__}): export or download it again"
        ) from reason
    if not model.graph.node:
        raise UnsupportedModel(
            f"expected a valid ONNX model, found no node in {path.name}: export or download it again"
        )
    return model


def _refuse_unsupported(model) -> None:
    """All operators without converter at once, with the names of their nodes."""
    known = _compat.onnx_operators()
    missing: dict[str, list[str]] = defaultdict(list)
    for node in _nodes(model.graph):
        if node.domain not in ("", "ai.onnx") or node.op_type not in known:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            missing[name].append(node.name or (node.output[0] if node.output else "?"))
    if missing:
        listed = "; ".join(f"{op} ({len(nodes)}: {', '.join(nodes[:3])})" for op, nodes in sorted(missing.items()))
        raise UnsupportedModel(
            f"expected operators with a converter, found {listed}: export the model with another opset or without them"
        )


def _nodes(graph) -> Iterator:
    """All nodes of a graph and of the graphs that its nodes hold (branches, loop bodies)."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(inner)


def _named_params(mod: tvm.IRModule) -> tuple[tvm.IRModule, ParamTable]:
    """Floating-point initialisers as named parameters; numbers and integers bound as constants, for folding."""
    mod, detached = relax.frontend.detach_params(mod)
    func = mod["main"]
    count = int(func.attrs["num_input"])
    params, small, names = ParamTable(), {}, []
    for var, tensor in zip(func.params[count:], detached.get("main", ())):
        data = tensor.numpy()
        if data.size <= 1 or data.dtype.kind != "f":
            small[var] = tensor
            continue
        names.append(var.name)
        params.add_source(var.name, ParamSource(data.shape, str(data.dtype), lambda data=data: data))
    func = func.with_attr("halo.params", names)
    mod["main"] = func
    if small:
        mod = relax.transform.BindParams("main", dict(small))(mod)
    return mod, params


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
            name = origin.get(node.input[1], node.input[1])
            last = sizes[node.input[0]][axis] - 1
            found[name] = (0, min(last, found.get(name, (0, last))[1]))
    return found


def _inputs(model, mod: tvm.IRModule, file: str) -> tuple[tuple[InputSpec, ...], dict[str, tuple[int, int]]]:
    initialisers = {i.name for i in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in initialisers]
    indices = _index_ranges(model.graph)
    specs, ranges = [], {}
    for name, var in zip(names, mod["main"].params):
        if not (isinstance(var.ty, relax.TensorType) and isinstance(var.ty.shape, relax.ShapeExpr)):
            raise UnsupportedModel(
                f"expected tensors of known rank as inputs, found {name} of type {var.ty} in {file}: "
                "export the model with the shapes of its inputs"
            )
        shape = tuple(int(d) if isinstance(d, tvm.tirx.IntImm) else d.name for d in var.ty.shape.values)
        ranges.update({d: _RANGE for d in shape if isinstance(d, str)})
        dtype = str(var.ty.dtype)
        specs.append(InputSpec(name, shape, dtype, values=indices.get(name) if "int" in dtype else None))
    return tuple(specs), ranges


def _engine(path: Path, outputs: tuple[str, ...]):
    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return dict(zip(outputs, session.run(list(outputs), dict(inputs))))

    return run


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
