"""The graph passes in order: which phase each belongs to and from which opt level on it runs.

-O0   only what is required to lower a model
-O1   recognise operators, simplify, work on weights once, work on rows, quantise, narrow attention, pad its heads,
      pack weights, vector mathematics
-O2   and fuse: projections of one input, element-wise neighbours, the steps of a loop; look up functions of one byte,
      round without a division
-O3   and compute common sub-expressions once, share memory between activations, runs of equal sizes as CUDA graphs
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import tvm

from ..errors import UnknownName, UnsupportedModel, UsageError
from .graph_pass import PASSES, Context, Pass, Report, with_options

_REASON = 240  # characters of what TVM's verifier says, whose end tells most


@dataclass(frozen=True)
class Step:
    """One place in the pipeline. `level` is the lowest opt level that runs it; `off` passes run when enabled only,
    and one with `precisions` at those precisions only."""

    name: str
    level: int
    required: bool = False
    off: bool = False
    precisions: tuple[str, ...] = ()


LIFT = (
    Step("canonicalise", 1),
    Step("fewer_windows", 1),
    Step("hoist_parts", 1),
    Step("lift", 1),
)
OPTIMISE = (
    Step("prune_heads", 0, off=True),
    Step("channels_last", 1),
    Step("expand", 0, required=True),
    Step("fold", 1),
    Step("hoist_weights", 1),
    Step("simplify", 1),
    Step("cse", 3),
    Step("fuse_projections", 2),
    Step("flatten_rows", 1),
    Step("simplify", 1),
    Step("byte_tables", 2),
    Step("grid_scales", 2),
    Step("round_to_grid", 2),
    Step("dce", 1),
    Step("quantise", 1, precisions=("int8", "int4")),
    Step("narrow_attention", 1, precisions=("fp16", "bf16", "int8", "int4")),
    Step("pad_heads", 1),
    Step("pack_weights", 1),
    Step("pack_experts", 1),
    Step("pack_integers", 1),
    Step("legalize", 0, required=True),
    Step("fuse", 2),
    Step("merge_functions", 0, required=True),
    Step("check_caches", 0, required=True),
    Step("tile_batch", 3),
)
# Decided while building, switched like passes.
BUILD = (Step("plan_memory", 3), Step("cuda_graph", 3), Step("vector_math", 1), Step("loop_kernels", 2))
_NEEDED = {
    "bf16": "pack_weights",
    "fp16": "pack_weights",
    "int8": "quantise",
    "int4": "quantise",
}  # precision -> the pass that makes it


@dataclass(frozen=True)
class Pipeline:
    """The steps of one compilation, resolved from level, --enable and --disable."""

    level: int
    enabled: frozenset[str]
    disabled: frozenset[str]

    @classmethod
    def of(cls, level: int, enable: Iterable[str] = (), disable: Iterable[str] = ()) -> Pipeline:
        """Check the names; a required pass cannot be disabled."""
        steps = {step.name: step for step in (*LIFT, *OPTIMISE, *BUILD)}
        for name in (*enable, *disable):
            if name not in steps and name not in PASSES:
                raise UnknownName("pass", name, set(steps) | set(PASSES))
        for name in disable:
            if name in enable:
                raise UsageError(f"pass {name} is both in --enable and in --disable: leave one out")
            if name in steps and steps[name].required:
                raise UsageError(f"pass {name} is needed to lower any model, found it in --disable: leave it out there")
        return cls(level, frozenset(enable), frozenset(disable))

    def without(self, name: str) -> Pipeline:
        """The same but for the pass `name`."""
        return replace(self, enabled=self.enabled - {name}, disabled=self.disabled | {name})

    def runs(self, step: Step) -> bool:
        if step.required or step.name in self.enabled:
            return True
        return not step.off and step.level <= self.level and step.name not in self.disabled

    def runs_named(self, name: str) -> bool:
        """Whether a step of the build phase runs."""
        return any(step.name == name and self.runs(step) for step in BUILD)

    def why_not(self, name: str, precision: str) -> str | None:
        """Why no pass `name` runs at `precision`, and what makes it run; None where it does."""
        steps = [step for step in (*LIFT, *OPTIMISE) if step.name == name]
        served = [precision for step in steps for precision in step.precisions]
        if served and precision not in served:
            return f"the pass computes in {' or '.join(served)}, which --precision chooses, and this is {precision}"
        if name in self.enabled or any(self.runs(step) for step in steps):
            return None
        if name in self.disabled:
            return f"--disable {name} leaves it out"
        return f"the pass runs with --enable {name}"

    def makes(self, precision: str) -> bool:
        """Whether the step that `precision` needs runs."""
        needed = _NEEDED.get(precision)
        return needed is None or any(step.name == needed and self.runs(step) for step in OPTIMISE)

    def check_precision(self, precision: str) -> None:
        """`UsageError` when a step that `precision` needs is switched off."""
        if not self.makes(precision):
            raise UsageError(
                f"--precision {precision} needs opt level 1 or more and the pass {_NEEDED[precision]}, "
                f"found opt level {self.level} and {', '.join(sorted(self.disabled)) or 'nothing'} disabled: "
                "raise the level, or compile with --precision fp32"
            )

    def run(self, steps: tuple[Step, ...], mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        """The chosen steps in order, each verified; the report maps pass names to their reports."""
        reports: Report = {}
        known = {step.name for step in (*LIFT, *OPTIMISE, *BUILD)}
        # A plug-in's pass runs, when enabled, in front of the expansion of semantic operators.
        extra = tuple(Step(name, 0) for name in sorted(self.enabled - known)) if steps is OPTIMISE else ()
        for step in (*extra, *steps):
            if not self.runs(step):
                continue
            if step.precisions and context.precision not in step.precisions:
                if step.name in self.enabled:
                    served = " or ".join(step.precisions)
                    raise UsageError(
                        f"pass {step.name} computes in {served}, found it in --enable at "
                        f"--precision {context.precision}: choose --precision {served} instead"
                    )
                continue
            instance: Pass = with_options(PASSES[step.name], context.overrides.passes.get(step.name, {}))
            mod, report = instance(mod, context)
            check_verified(step.name, mod)
            name = step.name if step.name not in reports else f"{step.name}_again"
            reports[name] = report
        return mod, reports


def check_verified(name: str, mod: tvm.IRModule) -> None:
    """`UnsupportedModel` where pass `name` made a module that TVM's verifier refuses, with its reason."""
    if tvm.relax.analysis.check_well_formed(mod):
        return
    try:
        tvm.relax.analysis.well_formed(mod)
        reason = "no reason is given"
    except (TypeError, ValueError, RuntimeError, tvm.error.InternalError) as error:
        reason = " ".join(str(error).split())[-_REASON:]
    raise UnsupportedModel(
        f"expected a module that TVM takes behind pass {name}, found one that its verifier refuses ({reason}): "
        f"report this model, which another --opt-level or --disable {name} may compile"
    )
