"""The graph that is exported: operators recognised, weights put together, what is computed twice computed once."""

from __future__ import annotations

from dataclasses import replace

from ..imported import ImportedModel
from ..passes import Context
from ..passes.pipeline import LIFT, Pipeline, Step
from ..targets import resolve

# Passes that leave operators whole: none chooses layouts, and none makes kernels.
_STEPS = ("fold", "hoist_weights", "simplify", "cse", "fuse_projections", "simplify", "dce")


def optimised(imported: ImportedModel) -> ImportedModel:
    """`imported` after lift and those graph passes that serve another engine as well; its weights gain recipes."""
    pipeline = Pipeline.of(3)
    context = Context(imported.params, resolve("cpu"), imported.ranges, imported.typical)
    mod, _ = pipeline.run(LIFT, imported.mod, context)
    mod, _ = pipeline.run(tuple(Step(name, 0) for name in _STEPS), mod, context)
    return replace(imported, mod=mod)
