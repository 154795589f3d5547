"""What an artifact's manifest says about the model it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version

import tvm
from tvm import relax

from . import __version__
from .artifact import RANDOM_STATE, FunctionSpec, Manifest, TensorSpec, Variant
from .dimensions import text_of
from .imported import ImportedModel
from .passes.caches import written_in_place
from .passes.weights import param_names
from .phase_reports import Reports, to_plain
from .targets import Target


def manifest_of(
    functions: Mapping[str, ImportedModel],
    modules: Mapping[str, tvm.IRModule],
    target: Target,
    reports: Mapping[str, Reports],
    precision: str = "fp32",
) -> Manifest:
    """The manifest of `modules`, the scheduled forms of `functions`; `write_artifact` adds files and hashes.

    The reports of `main` are the artifact's, those of other functions stand under `functions` in them.
    """
    model, own = functions["main"], reports["main"]
    specs = {name: function_spec(functions[name], modules[name]) for name in functions}
    variant = Variant(
        isa=target.isa.name,
        requires=tuple(sorted(target.isa.requires)),
        machine=target.machines,
        target=target.key,
        library="model.so",
        params="params.bin" if any(spec.params for spec in specs.values()) else None,
        device_code=own.build.device.form if own.build.device else None,
    )
    others = [name for name in functions if name != "main"]
    return Manifest(
        name=model.name,
        functions=specs,
        variants=(variant,),
        precision=precision,
        language=model.language if others or (model.language or {}).get("recomputes") else None,
        pack_formats=own.optimise.pack_formats,
        source={
            **model.source,
            "typical": {dim: n for entry in reversed(functions.values()) for dim, n in entry.typical.items()},
        },
        versions={
            "halo_tvm": __version__,
            **{name: version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")},
        },
        reports={
            **to_plain(own),
            **({"functions": {name: to_plain(reports[name]) for name in others}} if others else {}),
        },
    )


def function_spec(model: ImportedModel, mod: tvm.IRModule) -> FunctionSpec:
    """What `main` of `mod`, a form of `model`, takes and gives.

    An output's dimension is a number, a name or an expression of the inputs' dimensions, or a name that no input
    has, when the size depends on values. An output of unknown rank has the one dimension `...`. State that is written
    in place is an output, too, behind those that `main` returns.
    """
    func = mod["main"]
    memory = written_in_place(func)
    types = flat_types(func.ret_ty)
    assert len(types) == len(model.outputs), f"{len(model.outputs)} outputs are named, main gives {len(types)}"
    inputs = tuple(TensorSpec(s.name, s.shape, s.dtype, s.values, s.default, s.room) for s in model.inputs)
    state = (*map(str, model.source.get("state", ())), *(s.name for s in model.inputs if s.name == RANDOM_STATE))
    written = tuple(spec.name for spec, var in zip(inputs, func.params) if var in memory)
    returned = tuple(
        _complex(_output(name, ty)) if name in model.complex_outputs else _output(name, ty)
        for name, ty in zip(model.outputs, types)
    )
    returned = tuple(replace(spec, labels=model.labels.get(spec.name, ())) for spec in returned)
    return FunctionSpec(
        inputs=inputs,
        outputs=(*returned, *(spec for spec in inputs if spec.name in written and spec.name in state)),
        state=state,
        ranges=model.ranges,
        params=tuple(param_names(func)),
        written=written,
        drawn=model.drawn,
        conditions=model.conditions,
        alignment=1,
    )


def flat_types(ty: relax.Type) -> list[relax.Type]:
    """The types of the tensors in `ty`, tuples inside tuples opened, as a run returns them."""
    return [leaf for field in ty.fields for leaf in flat_types(field)] if isinstance(ty, relax.TupleType) else [ty]


def _output(name: str, ty: relax.Type) -> TensorSpec:
    if isinstance(ty, relax.ShapeType):
        return TensorSpec(name, (ty.ndim,), "int64")
    if not isinstance(ty, relax.TensorType):
        return TensorSpec(name, (), "int64")  # a dimension by itself
    if isinstance(ty.shape, relax.ShapeExpr):
        shape = tuple(map(text_of, ty.shape.values))
    else:
        shape = ("...",) if ty.ndim < 0 else tuple(f"{name}.{axis}" for axis in range(ty.ndim))
    return TensorSpec(name, shape, str(ty.dtype))


def _complex(pairs: TensorSpec) -> TensorSpec:
    """Pairs of real numbers as the complex numbers that the runtime makes of them."""
    return replace(pairs, shape=pairs.shape[:-1], dtype={"float32": "complex64", "float64": "complex128"}[pairs.dtype])
