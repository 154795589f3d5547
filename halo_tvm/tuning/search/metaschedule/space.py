"""A rule's space as MetaSchedule sees it: one sampled index per field of the decision, noted on the root block.

Our loop nests are no sequence of schedule primitives, so what MetaSchedule samples, mutates and replays
is the decision alone, on a stand-in function with nothing but a root block. That costs it next to nothing,
works for symbolic shapes, which MetaSchedule refuses, and leaves its search as it is.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import tvm
from tvm import s_tir, te
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

_FIELD = "halo.decision."  # + a field's name: the index of its value, on the root block
_SAMPLE = "SampleCategorical"


class Space:
    """The decisions of one task: each field's values in order of appearance, and which combinations exist."""

    def __init__(self, decisions: Sequence[object]) -> None:
        """`decisions` are of one dataclass; at least one."""
        self.kind = cast(Any, type(decisions[0]))
        self.allowed = frozenset(decisions)
        names = [f.name for f in dataclasses.fields(self.kind)]
        self.values = {name: tuple(dict.fromkeys(getattr(d, name) for d in decisions)) for name in names}
        self.sampled = tuple(name for name in names if len(self.values[name]) > 1)

    @property
    def product(self) -> int:
        """Combinations of values, those that are no decision of the space included."""
        return int(np.prod([len(values) for values in self.values.values()], dtype=np.int64))

    def sample(self, schedule: s_tir.Schedule) -> None:
        """MetaSchedule's schedule function: draw every field that has a choice."""
        root = schedule.get_sblock(name="root", func_name="main")
        for name in self.sampled:
            count = len(self.values[name])
            drawn = schedule.sample_categorical(list(range(count)), [1.0 / count] * count)
            schedule.annotate(root, _FIELD + name, drawn)

    def decision(self, schedule: s_tir.Schedule) -> object:
        """The decision that a schedule's annotations say; it need not be one of the space."""
        notes = schedule.mod["main"].body.block.annotations
        index = {name: int(notes[_FIELD + name]) for name in self.sampled}
        return self.kind(**{name: values[index.get(name, 0)] for name, values in self.values.items()})

    def features(self, decision: object) -> list[float]:
        """Numbers as they are and as their logarithms, anything else by its position among the values."""
        row: list[float] = []
        for name in self.sampled:
            value = getattr(decision, name)
            number = float(value) if isinstance(value, (int, float)) else float(self.values[name].index(value))
            row += [number, float(np.log2(1.0 + abs(number)))]
        return row


def stand_in() -> tvm.IRModule:
    """A function whose root block carries the annotations while MetaSchedule searches."""
    x = te.placeholder((1,), name="x")
    func = te.create_prim_func([x, te.compute((1,), lambda i: x[i], name="y")])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def generator(space: Space, seed: int) -> ms.space_generator.SpaceGenerator:
    """The space for a `TuneContext`: samples, refuses what is no decision, and mutates a field at a time."""
    return ms.space_generator.ScheduleFn(
        space.sample, sch_rules=[], postprocs=[_Exists(space)], mutator_probs={_AnotherValue(seed): 1.0}
    )


@derived_object
class _Exists(ms.postproc.PyPostproc):
    """Refuses combinations of values that are no decision of the space."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        pass

    def apply(self, sch: s_tir.Schedule) -> bool:
        return self.space.decision(sch) in self.space.allowed

    def clone(self) -> _Exists:
        return _Exists(self.space)


@derived_object
class _AnotherValue(ms.mutator.PyMutator):
    """Another value for one field. MetaSchedule's own mutators change tiles, unrolling and threads only."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        pass

    def apply(self, trace: s_tir.schedule.Trace, _: object = None) -> s_tir.schedule.Trace | None:
        drawn = [inst for inst in trace.insts if str(inst.kind.name) == _SAMPLE]
        inst = self.random.choice(drawn)
        others = [i for i in range(len(inst.attrs[0])) if i != int(trace.decisions[inst])]
        return trace.with_decision(inst, self.random.choice(others), remove_postproc=True)

    def clone(self) -> _AnotherValue:
        return _AnotherValue(self.random.getrandbits(32))


@derived_object
class Features(ms.feature_extractor.PyFeatureExtractor):
    """One row per candidate, of its decision: MetaSchedule's own extractor sees loops, and there are none."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space

    def extract_from(
        self, context: ms.TuneContext, candidates: Sequence[ms.search_strategy.MeasureCandidate]
    ) -> list[tvm.runtime.Tensor]:
        rows = (self.space.features(self.space.decision(candidate.sch)) for candidate in candidates)
        return [tvm.runtime.tensor(np.array([row], "float64")) for row in rows]
