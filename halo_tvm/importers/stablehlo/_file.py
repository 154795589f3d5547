"""A file's content -> the module in it, the inputs that it declares, and XLA running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from numpy.typing import NDArray

from ...errors import UnsupportedModel
from ...imported import ImportedModel
from .._reasons import lines_of
from ..jax import import_function
from ..jax.models import Door
from ._operation import Value, dtype_of
from ._program import Program

_BYTECODE = b"ML\xefR"
_PORTABLE = re.compile(rb"ML\xefR.{0,4}StableHLO_v", re.DOTALL)  # written for a version of StableHLO, for later ones
_CONSTRAINT = re.compile(r"symbolic shape constraint (.+?)\. Expected")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class _Opened:
    """A module and how it is called: the inputs by name, how results become what the function returned."""

    module: ir.Module
    names: tuple[str, ...]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    kept: tuple[int, ...]  # the inputs that `main` takes
    returned: Callable[[list[Value]], object]
    exported: export.Exported | None
    constraints: tuple[str, ...] = ()  # on the symbols in the shapes, as jax writes them


def import_unrestricted(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """Read `path`; `options`: "shapes" (by input, a low and a high bound for each dimension)."""
    content, bounds = path.read_bytes(), dict(options["shapes"])
    with jax.enable_x64(True), mlir.make_ir_context():  # a file says its dtypes; nothing of it is to be narrowed
        if _is_exported(content):
            return _imported(_exported(content), path.stem, bounds)
        try:  # inputs of different lengths, as of an encoder and a decoder
            return _imported(_plain(content, together=False), path.stem, bounds)
        except UnsupportedModel as apart:
            together = _plain(content, together=True)
            if all(isinstance(d, int) for s in together.inputs for d in s.shape):
                raise apart
            return _imported(together, path.stem, bounds)


def _is_exported(content: bytes) -> bool:
    return not content.startswith(_BYTECODE) and b"\x00" in content[:64]


def _exported(content: bytes) -> _Opened:
    """What `jax.export.Exported.serialize` wrote."""
    try:
        exported = export.deserialize(bytearray(content))
        module = ir.Module.parse(exported.mlir_module())
    except Exception as reason:  # flatbuffers, jax and MLIR raise what they meet
        raise _unreadable("a file that this jax's export.deserialize reads", reason) from reason
    newest = export.maximum_supported_calling_convention_version
    if exported.calling_convention_version > newest:
        raise UnsupportedModel(
            f"expected a calling convention of at most version {newest}, found {exported.calling_convention_version}: "
            "install a newer jax"
        )
    if exported.nr_devices != 1:
        raise UnsupportedModel(f"expected a program for one device, found {exported.nr_devices}: export it for one")
    if len(exported.platforms) != 1:
        raise UnsupportedModel(
            f"expected a program for one platform, found {', '.join(exported.platforms)}: "
            "export it with platforms=['cpu']"
        )
    structs = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals)
    kept = tuple(exported.module_kept_var_idx)
    found = dict(zip(kept, _argument_names(module), strict=True))
    names = _clear([found.get(place, f"input_{place}") for place in range(len(structs))])

    def returned(results: list[Value]) -> object:
        return jax.tree_util.tree_unflatten(exported.out_tree, results)

    return _Opened(module, names, structs, kept, returned, exported, _constraints(module))


def _constraints(module: ir.Module) -> tuple[str, ...]:
    """`s <= 64`, from the messages of what `main` asserts: `deserialize` forgets the constraints of symbols."""
    found = []
    for op in ir.SymbolTable(module.operation)["main"].entry_block.operations:
        attributes = op.operation.attributes
        if "error_message" in attributes:
            said = _CONSTRAINT.search(ir.StringAttr(attributes["error_message"]).value)
            found += [said[1]] if said else []
    return tuple(found)


def _plain(content: bytes, *, together: bool) -> _Opened:
    """StableHLO as text or bytecode; a size that it leaves open is named after the input and the axis.

    `together`: open sizes of one axis are one in all inputs, `batch` and `length_<axis>`.
    """
    try:
        if _PORTABLE.match(content):
            module = stablehlo.deserialize_portable_artifact(ir.Context.current, content)
        else:
            module = ir.Module.parse(content if content.startswith(_BYTECODE) else content.decode("utf-8"))
    except Exception as reason:  # MLIR raises what it meets
        raise _unreadable(f"StableHLO up to version {stablehlo.get_current_version()}", reason) from reason
    main = next((op for op in module.body.operations if _symbol(op) == "main"), None)
    if main is None:
        raise UnsupportedModel("expected a module with a function main, found none: export it with one")
    names = _clear(_argument_names(module))
    kinds = [ir.RankedTensorType(argument.type) for argument in main.arguments]
    scope = export.SymbolicScope()
    structs = []
    for name, kind in zip(names, kinds, strict=True):
        dims = [
            _open_size(name, axis, together) if kind.is_dynamic_dim(axis) else str(kind.shape[axis])
            for axis in range(kind.rank)
        ]
        shape = export.symbolic_shape(", ".join(dims), scope=scope) if dims else ()
        structs.append(jax.ShapeDtypeStruct(shape, dtype_of(kind)))
    whole = tuple(range(len(names)))
    return _Opened(module, names, tuple(structs), whole, lambda found: found[0] if len(found) == 1 else found, None)


def _symbol(op: Any) -> str:
    attributes = op.operation.attributes
    return str(ir.StringAttr(attributes["sym_name"]).value) if "sym_name" in attributes else ""


def _unreadable(expected: str, reason: Exception) -> UnsupportedModel:
    lines = lines_of(reason)
    line = next((text for text in lines if "rror" in text or "ersion" in text), lines[0])
    return UnsupportedModel(
        f"expected {expected}, found another ({line[:200]}): export the model again, or install a newer jax"
    )


# Names.


def _argument_names(module: ir.Module) -> list[str]:
    """As jax notes them where `main` or the function that it calls has its arguments from; else by position."""
    table = ir.SymbolTable(module.operation)
    main = table["main"]
    names = [_noted(argument) for argument in main.arguments]
    for op in main.entry_block.operations:
        if op.operation.name == "func.call":
            inner = table[ir.FlatSymbolRefAttr(op.operation.attributes["callee"]).value]
            for operand, argument in zip(op.operation.operands, inner.arguments, strict=True):
                for place, own in enumerate(main.arguments):
                    if operand == own:
                        names[place] = names[place] or _noted(argument)
    return [name or f"input_{place}" for place, name in enumerate(names)]


def _noted(argument: Any) -> str:
    """`x.a` for an argument at the location "x['a']"."""
    location = argument.location
    named = isinstance(location, ir.NameLoc) if hasattr(ir, "NameLoc") else hasattr(location, "name_str")
    return ".".join(_WORDS.findall(str(location.name_str))) if named else ""


def _clear(names: Sequence[str]) -> tuple[str, ...]:
    """Keys of dicts alone where no two are equal; numbers where names repeat."""
    short = [name.partition(".")[2] or name for name in names]
    if len(set(short)) == len(short) and not any(s[:1].isdigit() for s in short):
        return tuple(short)
    return tuple(name if list(names).count(name) == 1 else f"{name}_{place}" for place, name in enumerate(names))


def _open_size(name: str, axis: int, together: bool) -> str:
    if together:
        return "batch" if axis == 0 else f"length_{axis}"
    return re.sub(r"\W", "_", f"{name}_{axis}")


# The model.


def _imported(opened: _Opened, name: str, bounds: Mapping[str, Sequence[Sequence[int]]]) -> ImportedModel:
    program = Program(opened.module)
    specs = _specs(opened, _fixed(opened, bounds))

    def function(*inputs: jax.Array) -> object:
        return opened.returned(program(*(inputs[place] for place in opened.kept)))

    imported = import_function(Door(function, None, specs, opened.names), None, name=name)
    return replace(
        imported,
        source={"kind": "stablehlo", "name": name},
        report={**imported.report, "importer": "stablehlo"},
        engine=_engine(opened, function, [s.name for s in imported.inputs], list(imported.outputs)),
    )


def _fixed(opened: _Opened, bounds: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, int]:
    """Symbols that a bound of one number fixes."""
    found = {}
    for name, struct in zip(opened.names, opened.inputs, strict=True):
        for dim, (low, high) in zip(struct.shape, bounds.get(name, ())):
            if not isinstance(dim, int) and str(dim).isidentifier() and low == high:
                found[str(dim)] = int(low)
    return found


def _specs(opened: _Opened, fixed: Mapping[str, int]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The inputs with numbers instead of the symbols that are fixed: written anew, in a scope with the constraints."""
    constraints = [_with(fixed, text) for text in opened.constraints]
    scope = export.SymbolicScope([text for text in constraints if re.search(r"[a-zA-Z_]", text)])
    shapes = [", ".join(_with(fixed, str(d)) for d in s.shape) for s in opened.inputs]
    return tuple(
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope) if shape else (), s.dtype)
        for shape, s in zip(shapes, opened.inputs, strict=True)
    )


def _with(fixed: Mapping[str, int], text: str) -> str:
    """An expression with numbers instead of the symbols that are fixed."""
    return _WORDS.sub(lambda word: str(fixed.get(word[0], word[0])), text.replace("^", "**"))


def _engine(
    opened: _Opened, function: Callable[..., object], inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    """XLA, running the module as it is in the file."""
    exported = opened.exported
    if exported is None:
        # What `export` writes of our reading says how the module is called; the module is the file's own.
        template = export.export(jax.jit(function, keep_unused=True))(*opened.inputs)
        version = stablehlo.get_minimum_version()
        artifact = stablehlo.serialize_portable_artifact(opened.module, version)
        exported = replace(template, mlir_module_serialized=artifact)
    compiled = jax.jit(exported.call)

    def run(values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        arrays = [np.asarray(values[name], s.dtype) for name, s in zip(inputs, opened.inputs, strict=True)]
        args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, arrays)
        with jax.enable_x64(True):
            result = jax.tree_util.tree_leaves(compiled(*args, **kwargs))
        return {name: np.asarray(array) for name, array in zip(outputs, result, strict=True)}

    return run
