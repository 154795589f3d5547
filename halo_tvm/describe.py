"""What an artifact's manifest says about the model it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import tvm
from tvm import relax, tirx

from . import __version__
from .artifact import FunctionSpec, Manifest, TensorSpec, Variant
from .imported import ImportedModel
from .passes._weights import param_names
from .targets import Target


def manifest_of(
    model: ImportedModel, mod: tvm.IRModule, target: Target, reports: Mapping[str, Mapping[str, object]]
) -> Manifest:
    """The manifest of `mod`, the scheduled form of `model`; `write_artifact` adds files and hashes."""
    func = mod["main"]
    types = func.ret_ty.fields if isinstance(func.ret_ty, relax.TupleType) else [func.ret_ty]
    function = FunctionSpec(
        inputs=tuple(TensorSpec(s.name, s.shape, s.dtype, s.values, s.default) for s in model.inputs),
        outputs=tuple(
            TensorSpec(name, tuple(_dimension(d) for d in ty.shape.values), str(ty.dtype))
            for name, ty in zip(model.outputs, types)
        ),
        ranges=model.ranges,
        params=tuple(param_names(func)),
    )
    variant = Variant(
        isa=target.isa.name,
        requires=tuple(sorted(target.isa.requires)),
        machine=target.machines,
        target=target.key,
        library="model.so",
        params="params.bin" if function.params else None,
    )
    formats = reports["optimise"].get("pack_weights", {}).get("formats", {})
    return Manifest(
        name=model.name,
        functions={"main": function},
        variants=(variant,),
        pack_formats=formats,
        source={**model.source, "typical": model.typical},
        versions={
            "halo_tvm": __version__,
            **{name: version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")},
        },
        reports=reports,
    )


def _dimension(dim: tvm.ir.Expr) -> int | str:
    return int(dim) if isinstance(dim, tirx.IntImm) else dim.name if isinstance(dim, tirx.Var) else str(dim)
