"""The graph that is exported: operators recognised, weights put together, what is computed twice computed once."""

from __future__ import annotations

from dataclasses import replace

import tvm

from ..imported import ImportedModel
from ..inner_functions import apart, together
from ..passes import Context
from ..passes.pipeline import LIFT, Pipeline, Step
from ..targets import resolve

# Passes that leave operators whole: none chooses layouts, and none makes kernels.
_STEPS = ("fold", "hoist_weights", "simplify", "cse", "fuse_projections", "simplify", "dce")


def optimised(imported: ImportedModel) -> ImportedModel:
    """`imported` after lift and those graph passes that serve another engine as well; its weights gain recipes."""
    pipeline = Pipeline.of(3)
    context = Context(imported.params, resolve("cpu"), imported.ranges, imported.typical)
    parts: dict[str, tvm.IRModule] = {}
    for name, part in apart(imported.mod).items():
        mod, _ = pipeline.run(LIFT, part.mod, context)
        parts[name], _ = pipeline.run(tuple(Step(name, 0) for name in _STEPS), mod, context)
    return replace(imported, mod=together(parts, imported.params))
