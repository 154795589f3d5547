#!/usr/bin/env python3
"""How close the search comes to the best decision there is, and how fast: exhaustive tables, curves, a figure.

    python scripts/tuning_study.py exhaustive --out study            # every decision: may take an hour
    python scripts/tuning_study.py search --out study --start median --budget 5m
    python scripts/tuning_study.py search --out study --stages metaschedule --budget 15m
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
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean

import _checkout  # noqa: F401  before halo_tvm
from _study import BATCH, Study, decision_of, measured, text_of, text_of_fields

from halo_tvm.config import STAGES
from halo_tvm.lookup import fingerprint_of
from halo_tvm.records.decision import decision_to_plain
from halo_tvm.records.record import MEASURED, parse_line
from halo_tvm.records.store import lines
from halo_tvm.report.tuned import IMPROVED
from halo_tvm.targets import read_host
from halo_tvm.tuning.budget import parse_budget
from halo_tvm.tuning.options import TuneOptions
from halo_tvm.tuning.progress import Progress
from halo_tvm.tuning.search.efforts import effort_named
from halo_tvm.tuning.task import Tasks
from halo_tvm.tuning.tuner import Tuner

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
            left = [d for d in task.space if text_of(d) not in table]
            print(f"{task.readable}: {len(task.space)} decisions, {len(left)} to measure", flush=True)
            began = time.monotonic()
            lab.open(task)
            batches = [left[at : at + BATCH] for at in range(0, len(left), BATCH)]
            ordered = [lab.order(batches[0])] if batches else []
            for at, batch in enumerate(batches):
                if at + 1 < len(batches):
                    ordered.append(lab.order(batches[at + 1]))  # built while this batch races
                study.add(task, measured(lab, task, dict(zip(ordered[at], batch)), default_us))
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
    asked = options.stages or ["all"]
    name = options.name or "-".join([*asked, options.start, *(["neighbour"] if options.neighbour else [])])
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
    effort = effort_named("full")
    stages = tuple(s for s in options.stages or effort.stages if s != "analytic" or not spoiled)
    tune = TuneOptions(
        model=f"study {options.model}",
        budget_s=parse_budget(options.budget),
        effort=effort,
        directory=directory,
        read=tuple(read),
        threads=study.target.cores,
        memory_bytes=8 << 30,
        l3_bytes=read_host().l3_bytes,
        stages=stages,
        seed=options.seed,
    )
    starts = {task.key: study.start(task, options.start) for task, _ in chosen}
    tasks = Tasks(tuple(task for task, _ in chosen), ())
    progress = Progress(len(tasks.tasks), tune.budget_s)
    began = datetime.now(UTC)
    fingerprint = fingerprint_of(study.target)
    result = Tuner(tasks, study.target, fingerprint, tune, progress, starts=starts if spoiled else None).run()
    print(result)
    trials = _trials(directory, began)
    # What a run leaves behind: the committed decision, else the one it began with.
    found = {task.key: decision_to_plain(starts[task.key]) for task, _ in chosen}
    found |= {t.key: dict(t.decision) for t in result.tasks if t.outcome == IMPROVED}
    if spoiled:  # it does not know the default: its best trial counts
        committed = {t.key for t in result.tasks if t.outcome == IMPROVED}
        found |= {t.key: _reached(t.key, trials) or found[t.key] for t in result.tasks if t.key not in committed}
    (study.folder / f"search-{name}.json").write_text(
        json.dumps(
            {
                "name": name,
                "start": options.start,
                "budget_s": tune.budget_s,
                "starts": {key: decision_to_plain(decision) for key, decision in starts.items()},
                "seconds": result.seconds,
                "excluded": excluded,
                "found": found,
                "trials": trials,
                "rank_correlation": result.rank_correlation,
            }
        )
    )
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
            best = text_of_fields(study.best(task)["best"])
            named = {"default": text_of(task.default), "best": best}
            named |= {n: text_of(study.start(task, n)) for n in ("median", "worst")}
            named |= {one["name"]: text_of_fields(one["found"][task.key]) for one in searches}
            stood = [d for one in searches for _, d in standing(one, task.key)]
            others = [d for d in dict.fromkeys([*named.values(), *stood]) if d not in (best, text_of(task.default))]
            lab.open(task)
            speeds = {best: 1.0}
            for at in range(0, max(1, len(others)), BATCH - 1):
                batch = [d for d in (best, *others[at : at + BATCH - 1]) if d != text_of(task.default)]
                decisions = [decision_of(task, d) for d in batch]
                found = measured(
                    lab, task, dict(zip(lab.order(decisions), decisions)), default_us, JUDGED_ROUNDS, final=True
                )
                found[text_of(task.default)] = 1.0
                top = found[best]
                speeds |= {d: s / top for d, s in found.items() if isinstance(s, float)}
            judged[task.key] = speeds
            rows[task.readable] = {n: speeds.get(d, 0.0) for n, d in named.items()}
            print(task.readable, {n: round(v, 3) for n, v in rows[task.readable].items()}, flush=True)
    means = {n: geometric_mean([max(1e-3, row[n]) for row in rows.values()]) for n in next(iter(rows.values()))}
    print("geometric mean", {n: round(v, 3) for n, v in means.items()})
    (study.folder / "judged.json").write_text(json.dumps({"tasks": rows, "geomean": means, "speeds": judged}, indent=1))
    return 0


def standing(one: dict, key: str) -> list[tuple[float, str]]:
    """(seconds, decision) of a search whenever another decision of that task took the lead by its own measurement."""
    best = 1.0 if one["start"] == "default" else 0.0
    found = [(0.0, text_of_fields(one["starts"][key]))]
    for seconds, workload, decision, speedup in sorted(one["trials"], key=lambda t: t[0]):
        if workload == key and speedup > best:
            best = speedup
            found.append((seconds, text_of_fields(decision)))
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
            qualities.append(geometric_mean(list(now.values())))
    return times, qualities


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
            verb.add_argument(
                "--start",
                choices=("default", "median", "worst"),
                default="default",
                help="median, worst: the table's decision; no analytic ranking",
            )
            verb.add_argument("--stages", nargs="*", choices=STAGES, help="default: those of a full search")
            verb.add_argument("--budget", default="5m")
            verb.add_argument("--neighbour", metavar="LOG", help="a tuning log of another model")
            verb.add_argument("--seed", type=int, default=0)
            verb.add_argument("--name")
        if run is plot:
            verb.add_argument("-o", "--figure")
    return parser


if __name__ == "__main__":
    sys.exit(main())
