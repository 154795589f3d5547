"""Small Relax functions for tests: one operator call, or a body over inputs and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.models.builder import ModelBuilder, RandomWeights
from halo_tvm.passes import Context, Overrides, pipeline
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.targets import Target, resolve
from halo_tvm.tir_schedules import RULES


def small_model(
    inputs: Sequence[InputSpec], body: Callable[[ModelBuilder], Mapping[str, relax.Expr]], **ranges: tuple[int, int]
) -> ImportedModel:
    """A model with seeded weights; symbolic dimensions range over 1..64 unless said otherwise."""
    builder = ModelBuilder(RandomWeights(0))
    symbolic = {d: ranges.get(d, (1, 64)) for spec in inputs for d in spec.shape if isinstance(d, str)}

    def define(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        for spec in inputs:
            m.input(spec.name, spec.shape, spec.dtype)
        return body(m)

    mod, outputs = builder.module(define)
    return ImportedModel(
        "small", mod, builder.params, tuple(inputs), outputs, symbolic, dict.fromkeys(symbolic, 8), {"kind": "test"}, {}
    )


def tied() -> ImportedModel:
    """ids [rows] -> the products of their rows of one table [131, 32] with all of its rows."""

    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        table = m.weight("wte", (131, 32))
        rows = m.op("embedding", m.inputs["ids"], table, layout="nk", n=131)
        return {"y": m.op("linear", rows, table, layout="nk", n=131)}

    return small_model((InputSpec("ids", ("rows",), "int64"),), body)


def context_of(model: ImportedModel, target: Target | None = None, **overrides: object) -> Context:
    return Context(model.params, target or resolve("cpu"), model.ranges, model.typical, Overrides(**overrides))


def run_model(
    model: ImportedModel,
    inputs: Mapping[str, np.ndarray],
    target: Target | None = None,
    level: int = 3,
    **overrides: object,
) -> np.ndarray:
    """The first output of `model` lowered, scheduled and compiled in this process."""
    context = context_of(model, target, **overrides)
    steps = pipeline.Pipeline.of(level)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    mod, _ = steps.run(pipeline.OPTIMISE, mod, context)
    mod, _ = schedule_functions(mod, context.target)
    return run_module(mod, [inputs[s.name] for s in model.inputs], model, context.target)


def run_module(mod: tvm.IRModule, inputs: Sequence[np.ndarray], model: ImportedModel, target: Target) -> np.ndarray:
    """The first output of scheduled `mod`, compiled in this process."""
    return built_module(mod, model, target)(*inputs)


def built_module(mod: tvm.IRModule, model: ImportedModel, target: Target) -> Callable[..., np.ndarray]:
    """Inputs -> the first output of scheduled `mod`, compiled once."""
    from executables import executable_of

    from halo_tvm.passes.weights import param_names

    vm = relax.VirtualMachine(executable_of(mod, target, plan_memory=True), tvm.cpu())
    weights = [model.params.materialise(name) for name in param_names(mod["main"])]
    return lambda *inputs: vm["main"](*map(tvm.runtime.tensor, [*inputs, *weights])).numpy()


def unscheduled(model: ImportedModel, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by what is required to lower alone: no schedules, and code as it is generated. It builds in seconds."""
    from halo_tvm.build import lowering

    mod, steps, context = model.mod, pipeline.Pipeline.of(0), context_of(model)
    for phase in (pipeline.LIFT, pipeline.OPTIMISE):
        mod, _ = steps.run(phase, mod, context)
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    needless = ["s_tir.CompactBufferAllocation"]  # no schedule moved a computation, so no buffer is too large
    with target, tvm.transform.PassContext(opt_level=0, disabled_pass=needless):
        machine = relax.VirtualMachine(relax.build(mod, target=target, relax_pipeline=lowering(False)), tvm.cpu())
    weights = [model.params.materialise(name) for name in model.mod["main"].attrs["halo.params"]]
    arrays = [given[spec.name] for spec in model.inputs] + weights
    found = machine["main"](*map(tvm.runtime.tensor, arrays))
    return dict(zip(model.outputs, (a.numpy() for a in (found if len(model.outputs) > 1 else [found]))))


def rules_of(mod: tvm.IRModule, target: Target) -> dict[str, int]:
    """How many functions each rule would schedule."""
    return dict(schedule_functions(mod, target)[1].rules)


__all__ = [
    "RULES",
    "built_module",
    "context_of",
    "rules_of",
    "run_model",
    "run_module",
    "small_model",
    "tied",
    "unscheduled",
]
