#!/usr/bin/env python3
"""How close the search comes to the best decision there is, and how fast: exhaustive tables, curves, a figure.

    python scripts/tuning_study.py exhaustive --out study            # every decision: may take an hour
    python scripts/tuning_study.py search --out study --start median --budget 5m
    python scripts/tuning_study.py search --out study --engine metaschedule --budget 15m
    python scripts/tuning_study.py judge --out study                 # found against best, one race per task
    python scripts/tuning_study.py plot --out study -o study/curves.png

`exhaustive` can be ended and started again: it goes on with the decisions that are not in its file. A task's
quality is the speed of a decision as a share of the best decision's speed, the geometric mean over the task's
weighted sizes; `judge` measures both again in the same rounds, so that the winner's luck does not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from halo_tvm.compiler import lower  # noqa: E402 - the checkout comes first
from halo_tvm.config import ENGINES, STAGES, TuneConfig  # noqa: E402
from halo_tvm.importers import import_model  # noqa: E402
from halo_tvm.lookup import fingerprint_of  # noqa: E402
from halo_tvm.records.decision import decision_from_plain, decision_to_plain  # noqa: E402
from halo_tvm.records.record import IMPROVED as IMPROVED_RECORD  # noqa: E402
from halo_tvm.records.record import MEASURED, parse_line  # noqa: E402
from halo_tvm.records.store import lines  # noqa: E402
from halo_tvm.targets import Target, read_host, resolve  # noqa: E402
from halo_tvm.tuning.budget import parse_budget  # noqa: E402
from halo_tvm.tuning.defaults import latencies  # noqa: E402
from halo_tvm.tuning.measure import make_lab  # noqa: E402
from halo_tvm.tuning.measure import protocol as p  # noqa: E402
from halo_tvm.tuning.measure.lab import Failure, Lab, LabOptions  # noqa: E402
from halo_tvm.tuning.metaschedule import tune_tasks  # noqa: E402
from halo_tvm.tuning.options import TuneOptions  # noqa: E402
from halo_tvm.tuning.progress import Progress  # noqa: E402
from halo_tvm.tuning.result import IMPROVED  # noqa: E402
from halo_tvm.tuning.search.efforts import effort_named  # noqa: E402
from halo_tvm.tuning.statistics import speedups_by_round  # noqa: E402
from halo_tvm.tuning.task import Task, Tasks, tasks_of  # noqa: E402
from halo_tvm.tuning.tuner import Tuner  # noqa: E402

BATCH = 8  # candidates that race in the same rounds
ROUNDS = 2
# (decisions, rounds, as they ship) that race again for the title: two rounds among hundreds are won by luck
CROWNING = ((48, 4, False), (16, 8, False), (7, 16, True))
JUDGED_ROUNDS = 20
TARGET_QUALITY = 0.97


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return options.run(options)


def exhaustive(options: argparse.Namespace) -> int:
    """Measure every decision of the heaviest tasks."""
    study = Study(options)
    with study.lab() as lab:
        for task, default_us in study.heaviest(lab):
            table = study.table(task)
            left = [d for d in task.space if _text(d) not in table]
            print(f"{task.readable}: {len(task.space)} decisions, {len(left)} to measure", flush=True)
            began = time.monotonic()
            lab.open(task)
            batches = [left[at : at + BATCH] for at in range(0, len(left), BATCH)]
            ordered = [lab.order(batches[0])] if batches else []
            for at, batch in enumerate(batches):
                if at + 1 < len(batches):
                    ordered.append(lab.order(batches[at + 1]))  # built while this batch races
                study.add(task, _measured(lab, task, dict(zip(ordered[at], batch)), default_us))
            seconds = time.monotonic() - began
            if left:
                print(f"  {len(left) / seconds:.1f} decisions per second", flush=True)
            study.crown(lab, task, default_us)
    return 0


def search(options: argparse.Namespace) -> int:
    """Tune the same tasks from a start, and keep what was tried when."""
    study = Study(options)
    with study.lab() as lab:
        chosen = study.heaviest(lab)
    name = options.name or "-".join([options.engine, options.start, *(["neighbour"] if options.neighbour else [])])
    directory = study.folder / f"log-{name}"
    if directory.exists():
        print(f"{directory} exists: give another --name", file=sys.stderr)
        return 1
    read = [directory]
    excluded = 0
    if options.neighbour:
        around, excluded = study.neighbours([task for task, _ in chosen], Path(options.neighbour), directory)
        read.append(around)
    spoiled = options.start != "default"
    stages = tuple(s for s in STAGES if s != "analytic" or not spoiled)
    tune = TuneOptions(
        model=f"study {options.model}", budget_s=parse_budget(options.budget), effort=effort_named("full"),
        directory=directory, read=tuple(read), threads=study.target.cores, memory_bytes=8 << 30,
        l3_bytes=read_host().l3_bytes, stages=stages, seed=options.seed,
    )  # fmt: skip
    starts = {task.key: study.start(task, options.start) for task, _ in chosen}
    tasks = Tasks(tuple(task for task, _ in chosen), ())
    progress = Progress(len(tasks.tasks), tune.budget_s)
    began = datetime.now(timezone.utc)
    if options.engine == "metaschedule":
        result = tune_tasks(tasks, study.target, tune, progress)
    else:
        fingerprint = fingerprint_of(study.target)
        result = Tuner(tasks, study.target, fingerprint, tune, progress, starts=starts if spoiled else None).run()
    print(result)
    trials = _trials(directory, began)
    # What a run leaves behind: the committed decision, else the one it began with.
    found = {task.key: decision_to_plain(starts[task.key]) for task, _ in chosen}
    found |= {t.key: dict(t.decision) for t in result.tasks if t.outcome == IMPROVED}
    if spoiled or options.engine == "metaschedule":  # they do not know the default: their best trial counts
        committed = {t.key for t in result.tasks if t.outcome == IMPROVED}
        found |= {t.key: _reached(t.key, trials) or found[t.key] for t in result.tasks if t.key not in committed}
    (study.folder / f"search-{name}.json").write_text(json.dumps({
        "name": name, "engine": options.engine, "start": options.start, "budget_s": tune.budget_s,
        "starts": {key: decision_to_plain(decision) for key, decision in starts.items()},
        "seconds": result.seconds, "excluded": excluded, "found": found, "trials": trials,
        "rank_correlation": result.rank_correlation,
    }))  # fmt: skip
    return 0


def _trials(directory: Path, began: datetime) -> list[list[object]]:
    """(seconds, workload, decision, speed-up) of the trials that were timed at every size.

    The others left their race after a cheap first rung; the search does not believe their figures either.
    """
    records = [parse_line(line.text) for path in directory.glob("*/trials.jsonl") for line in lines(path)]
    records = [record for record in records if record.outcome == MEASURED]
    sizes: dict[str, int] = {}
    for record in records:
        sizes[record.workload] = max(sizes.get(record.workload, 0), len(record.candidate_us))
    return [
        [
            max(0.0, (datetime.fromisoformat(record.timestamp) - began).total_seconds()),
            record.workload,
            dict(record.decision),
            record.speedup,
        ]
        for record in records
        if record.candidate_us and len(record.candidate_us) == sizes[record.workload]
    ]


def _reached(key: str, trials: Sequence[Sequence[object]]) -> dict | None:
    """The decision of the best trial of a task; None when there is none."""
    own = [t for t in trials if t[1] == key]
    return max(own, key=lambda t: t[3])[2] if own else None


def judge(options: argparse.Namespace) -> int:
    """Race every decision that ever stood in a search against the best of the table, in the same rounds."""
    study = Study(options)
    searches = study.searches()
    judged: dict[str, dict[str, float]] = {}
    rows: dict[str, dict[str, float]] = {}
    with study.lab() as lab:
        for task, default_us in study.heaviest(lab):
            best = _text_of(study.best(task)["best"])
            named = {"default": _text(task.default), "best": best}
            named |= {n: _text(study.start(task, n)) for n in ("median", "worst")}
            named |= {one["name"]: _text_of(one["found"][task.key]) for one in searches}
            stood = [d for one in searches for _, d in standing(one, task.key)]
            others = [d for d in dict.fromkeys([*named.values(), *stood]) if d not in (best, _text(task.default))]
            lab.open(task)
            speeds = {best: 1.0}
            for at in range(0, max(1, len(others)), BATCH - 1):
                batch = [d for d in (best, *others[at : at + BATCH - 1]) if d != _text(task.default)]
                decisions = [_decision(task, d) for d in batch]
                found = _measured(
                    lab, task, dict(zip(lab.order(decisions), decisions)), default_us, JUDGED_ROUNDS, final=True
                )
                found[_text(task.default)] = 1.0
                top = found[best]
                speeds |= {d: s / top for d, s in found.items() if isinstance(s, float)}
            judged[task.key] = speeds
            rows[task.readable] = {n: speeds.get(d, 0.0) for n, d in named.items()}
            print(task.readable, {n: round(v, 3) for n, v in rows[task.readable].items()}, flush=True)
    means = {n: _geomean([max(1e-3, row[n]) for row in rows.values()]) for n in next(iter(rows.values()))}
    print("geometric mean", {n: round(v, 3) for n, v in means.items()})
    (study.folder / "judged.json").write_text(json.dumps({"tasks": rows, "geomean": means, "speeds": judged}, indent=1))
    return 0


def standing(one: dict, key: str) -> list[tuple[float, str]]:
    """(seconds, decision) of a search whenever another decision of that task took the lead by its own measurement."""
    knows = one["engine"] != "metaschedule"  # which is told of no decision to begin with
    best = 1.0 if knows and one["start"] == "default" else 0.0
    found = [(0.0, _text_of(one["starts"][key]))] if knows else []
    for seconds, workload, decision, speedup in sorted(one["trials"], key=lambda t: t[0]):
        if workload == key and speedup > best:
            best = speedup
            found.append((seconds, _text_of(decision)))
    return found


def plot(options: argparse.Namespace) -> int:
    """The speed of what stood in every search over time, as it was judged."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    study = Study(options)
    speeds = json.loads((study.folder / "judged.json").read_text())["speeds"]
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for one, style in zip(study.searches(), itertools.cycle(["-", "--", ":", "-.", (0, (1, 3)), (0, (5, 1))])):
        times, qualities = curve(one, speeds)
        reached = next((t for t, q in zip(times, qualities) if q >= TARGET_QUALITY), None)
        label = one["name"] + (f": {TARGET_QUALITY:.0%} after {reached:.0f} s" if reached is not None else "")
        axes.step([*times, one["seconds"]], [*qualities, qualities[-1]], linestyle=style, where="post", label=label)
        print(f"{label}, {qualities[0]:.3f} at the start, {qualities[-1]:.3f} at the end")
    axes.axhline(TARGET_QUALITY, color="0.6", linewidth=0.8)
    axes.set_xlabel("seconds since the run began")
    axes.set_ylabel(f"speed, share of the exhaustive best\n(geometric mean of {len(speeds)} tasks)")
    axes.set_title(f"{options.model}, {study.target.key}, {study.target.cores} threads")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(options.figure or study.folder / "curves.png", dpi=150)
    return 0


def curve(one: dict, speeds: dict[str, dict[str, float]]) -> tuple[list[float], list[float]]:
    """Times, and the geometric mean over the tasks of the judged speed of what stood then."""
    events = sorted((s, key, d) for key in speeds for s, d in standing(one, key))
    now: dict[str, float] = {}
    times, qualities = [], []
    for seconds, key, decision in events:
        now[key] = max(1e-3, speeds[key].get(decision, 0.0))
        if len(now) == len(speeds):
            times.append(seconds)
            qualities.append(_geomean(list(now.values())))
    return times, qualities


def _measured(
    lab: Lab, task: Task, ordered: dict[int, object], default_us: Sequence[float], rounds: int = ROUNDS,
    *, final: bool = False,
) -> dict[str, object]:  # fmt: skip
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
            found[_text(decision)] = failure.kind
    while alive:
        try:
            samples = [lab.race([p.DEFAULT_ID, *alive], s, rounds, us) for s, us in enumerate(default_us)]
        except Failure as failure:
            if failure.blamed not in alive:
                raise
            alive.remove(failure.blamed)
            found[_text(ordered[failure.blamed])] = failure.kind
            continue
        default = [s[p.DEFAULT_ID] for s in samples]
        weights = [s.weight for s in task.sizes][: len(default_us)]
        for candidate in alive:
            by_round = speedups_by_round(default, [s[candidate] for s in samples], weights)
            found[_text(ordered[candidate])] = median(by_round)
        break
    lab.drop(list(ordered))
    return found


class Study:
    """The model's tasks, and the files of one target under `--out`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.target: Target = resolve(options.target, cores=options.threads)
        self.folder = Path(options.out) / self.target.key
        self.folder.mkdir(parents=True, exist_ok=True)

    def tasks(self, model: str) -> tuple[Task, ...]:
        imported = import_model(model, seed=0, shapes=(), inputs=None, trust=False)
        mod, _ = lower(imported, self.target, TuneConfig(model=model, target=self.options.target).compile_config())
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

        def time_of(task: Task) -> float:
            return task.count * sum(s.weight * us for s, us in zip(task.sizes, known[task.key]))

        return [(t, known[t.key]) for t in sorted(tasks, key=time_of, reverse=True)[: self.options.tasks]]

    def table(self, task: Task) -> dict[str, object]:
        """Measured decisions of a task: their speed-up over the default, or why they have none."""
        path = self.folder / f"exhaustive-{task.key}.jsonl"
        if not path.exists():
            return {}
        return {_text_of(line["decision"]): line["speedup"] for line in map(json.loads, path.open())}

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
            first = list(dict.fromkeys([_text(task.default), *first]))  # the default may be the best
            again = {}
            for at in range(0, len(first), BATCH):
                decisions = [_decision(task, d) for d in first[at : at + BATCH]]
                ordered = dict(zip(lab.order(decisions), decisions))
                found = _measured(lab, task, ordered, default_us, rounds, final=final)
                again.update({d: s for d, s in found.items() if isinstance(s, float)})
        best = max(again, key=again.__getitem__)
        path.write_text(json.dumps({
            "task": task.readable, "count": task.count, "decisions": len(task.space), "best": json.loads(best),
            "speedup": again[best],
        }, indent=1))  # fmt: skip
        ordered = sorted(numbers.values())
        shown = f"median {ordered[len(ordered) // 2]:.3f}, worst {ordered[0]:.3f}"
        print(f"  best {again[best]:.3f} of the default, {shown}: {best}", flush=True)

    def start(self, task: Task, name: str) -> object:
        """The default, or the decision of median or of least speed in the table."""
        if name == "default":
            return task.default
        numbers = {d: s for d, s in self.table(task).items() if isinstance(s, float)}
        ordered = sorted(numbers, key=numbers.__getitem__)
        return _decision(task, ordered[len(ordered) // 2 if name == "median" else 0])

    def neighbours(self, tasks: Sequence[Task], log: Path, beside: Path) -> tuple[Path, int]:
        """A copy of a log without the workloads of `tasks`, and how many winners were left out."""
        around = beside.with_name(beside.name + "-around")
        excluded = 0
        own = {task.key for task in tasks}
        for path in log.glob("*/*.jsonl"):
            kept = []
            for line in lines(path):
                record = parse_line(line.text)
                excluded += record.workload in own and record.outcome == IMPROVED_RECORD
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


def _text(decision: object) -> str:
    return _text_of(decision_to_plain(decision))


def _text_of(fields: dict) -> str:
    return json.dumps(fields, sort_keys=True)


def _decision(task: Task, text: str) -> object:
    return decision_from_plain(task.rule.Decision, json.loads(text))


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for run in (exhaustive, search, judge, plot):
        verb = verbs.add_parser(run.__name__, help=(run.__doc__ or "").splitlines()[0])
        verb.set_defaults(run=run)
        verb.add_argument("--model", default="gpt2")
        verb.add_argument("--target", default="cpu")
        verb.add_argument("--threads", type=int, default=None)
        verb.add_argument("--tasks", type=int, default=5, help="so many of the heaviest")
        verb.add_argument("--out", required=True, metavar="DIR")
        if run is search:
            verb.add_argument("--start", choices=("default", "median", "worst"), default="default",
                              help="median, worst: the table's decision; no analytic ranking")  # fmt: skip
            verb.add_argument("--engine", choices=ENGINES, default=ENGINES[0])
            verb.add_argument("--budget", default="5m")
            verb.add_argument("--neighbour", metavar="LOG", help="a tuning log of another model")
            verb.add_argument("--seed", type=int, default=0)
            verb.add_argument("--name")
        if run is plot:
            verb.add_argument("-o", "--figure")
    return parser


if __name__ == "__main__":
    sys.exit(main())
