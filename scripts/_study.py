"""What the verbs of tuning_study.py share: the tasks of a study, the files it keeps, and races of decisions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.importers import import_model
from halo_tvm.phases import lower
from halo_tvm.records.decision import decision_from_plain, decision_to_plain
from halo_tvm.records.record import IMPROVED, parse_line
from halo_tvm.records.store import lines
from halo_tvm.targets import Target, read_host, resolve
from halo_tvm.tuning.defaults import importance, latencies
from halo_tvm.tuning.measure import make_lab
from halo_tvm.tuning.measure import protocol as p
from halo_tvm.tuning.measure.lab import Failure, Lab, LabOptions
from halo_tvm.tuning.statistics import speedups_by_round
from halo_tvm.tuning.task import Task, tasks_of

BATCH = 8  # candidates that race in the same rounds
ROUNDS = 2
# (decisions, rounds, as they ship) that race again for the title: two rounds among hundreds are won by luck
CROWNING = ((48, 4, False), (16, 8, False), (7, 16, True))


class Study:
    """The model's tasks, and the files of one target under `--out`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.target: Target = resolve(options.target, cores=options.threads)
        self.folder = Path(options.out) / self.target.key
        self.folder.mkdir(parents=True, exist_ok=True)

    def tasks(self, model: str) -> tuple[Task, ...]:
        imported = import_model(model, seed=0, shapes=(), inputs=None, trust=False)
        mod, _ = lower(imported, Compilation.of(CompileConfig(model=model), self.target))
        return tasks_of(mod, self.target, imported.ranges).tasks

    @contextmanager
    def lab(self) -> Iterator[Lab]:
        options = LabOptions(self.target.cores, 8 << 30)
        with make_lab(self.target, options, seed=0, l3_bytes=read_host().l3_bytes) as lab:
            yield lab

    def heaviest(self, lab: Lab) -> list[tuple[Task, list[float]]]:
        """The tasks that take most of the model's time by their defaults, with those latencies by size."""
        path = self.folder / "latencies.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        tasks = self.tasks(self.options.model)
        for task in tasks:
            if task.key not in known:
                known[task.key] = latencies(lab, task)
        path.write_text(json.dumps(known))

        tasks = sorted(tasks, key=lambda task: importance(task, known[task.key]), reverse=True)
        return [(task, known[task.key]) for task in tasks[: self.options.tasks]]

    def table(self, task: Task) -> dict[str, object]:
        """Measured decisions of a task: their speed-up over the default, or why they have none."""
        path = self.folder / f"exhaustive-{task.key}.jsonl"
        if not path.exists():
            return {}
        return {text_of_fields(line["decision"]): line["speedup"] for line in map(json.loads, path.open())}

    def add(self, task: Task, found: dict[str, object]) -> None:
        with (self.folder / f"exhaustive-{task.key}.jsonl").open("a") as file:
            for decision, speedup in found.items():
                file.write(json.dumps({"decision": json.loads(decision), "speedup": speedup}) + "\n")

    def crown(self, lab: Lab, task: Task, default_us: Sequence[float]) -> None:
        """Race the first of the table again, twice; what wins is the best there is."""
        path = self.folder / f"best-{task.key}.json"
        if path.exists():
            return
        lab.open(task)
        numbers = {d: s for d, s in self.table(task).items() if isinstance(s, float)}
        again = dict(numbers)
        for most, rounds, final in CROWNING:
            first = sorted(again, key=again.__getitem__, reverse=True)[: most - 1]
            first = list(dict.fromkeys([text_of(task.default), *first]))  # the default may be the best
            again = {}
            for at in range(0, len(first), BATCH):
                decisions = [decision_of(task, d) for d in first[at : at + BATCH]]
                ordered = dict(zip(lab.order(decisions), decisions))
                found = measured(lab, task, ordered, default_us, rounds, final=final)
                again.update({d: s for d, s in found.items() if isinstance(s, float)})
        best = max(again, key=again.__getitem__)
        path.write_text(
            json.dumps(
                {
                    "task": task.readable,
                    "count": task.count,
                    "decisions": len(task.space),
                    "best": json.loads(best),
                    "speedup": again[best],
                },
                indent=1,
            )
        )
        ordered = sorted(numbers.values())
        shown = f"median {ordered[len(ordered) // 2]:.3f}, worst {ordered[0]:.3f}"
        print(f"  best {again[best]:.3f} of the default, {shown}: {best}", flush=True)

    def start(self, task: Task, name: str) -> object:
        """The default, or the decision of median or of least speed in the table."""
        if name == "default":
            return task.default
        numbers = {d: s for d, s in self.table(task).items() if isinstance(s, float)}
        ordered = sorted(numbers, key=numbers.__getitem__)
        return decision_of(task, ordered[len(ordered) // 2 if name == "median" else 0])

    def neighbours(self, tasks: Sequence[Task], log: Path, beside: Path) -> tuple[Path, int]:
        """A copy of a log without the workloads of `tasks`, and how many winners were left out."""
        around = beside.with_name(beside.name + "-around")
        excluded = 0
        own = {task.key for task in tasks}
        for path in log.glob("*/*.jsonl"):
            kept = []
            for line in lines(path):
                record = parse_line(line.text)
                excluded += record.workload in own and record.outcome == IMPROVED
                if record.workload not in own:
                    kept.append(line.data)
            copy = around / path.parent.name / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(b"".join(kept))
        print(f"{excluded} exact records left out", flush=True)
        return around, excluded

    def searches(self) -> list[dict]:
        """What `search` has left."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("search-*.json"))]

    def best(self, task: Task) -> dict:
        return json.loads((self.folder / f"best-{task.key}.json").read_text())


def measured(
    lab: Lab,
    task: Task,
    ordered: dict[int, object],
    default_us: Sequence[float],
    rounds: int = ROUNDS,
    *,
    final: bool = False,
) -> dict[str, object]:
    """Speed-up over the default by decision; a word where it failed. With `final`, of code as it ships."""
    found: dict[str, object] = {}
    alive = []
    for candidate, decision in ordered.items():
        try:
            lab.take(candidate)
            if final:
                lab.final(candidate)
            alive.append(candidate)
        except Failure as failure:
            if failure.blamed is None:
                raise
            found[text_of(decision)] = failure.kind
    while alive:
        try:
            samples = [lab.race([p.DEFAULT_ID, *alive], s, rounds, us) for s, us in enumerate(default_us)]
        except Failure as failure:
            if failure.blamed not in alive:
                raise
            alive.remove(failure.blamed)
            found[text_of(ordered[failure.blamed])] = failure.kind
            continue
        default = [s[p.DEFAULT_ID] for s in samples]
        weights = [s.weight for s in task.sizes][: len(default_us)]
        for candidate in alive:
            by_round = speedups_by_round(default, [s[candidate] for s in samples], weights)
            found[text_of(ordered[candidate])] = median(by_round)
        break
    lab.drop(list(ordered))
    return found


def text_of(decision: object) -> str:
    return text_of_fields(decision_to_plain(decision))


def text_of_fields(fields: dict) -> str:
    return json.dumps(fields, sort_keys=True)


def decision_of(task: Task, text: str) -> object:
    return decision_from_plain(task.rule.Decision, json.loads(text))
