"""What gpu_check.py times: a step, a product, attentions, every engine in a process of its own, in turns."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import _gpu_engines as engines
import _interleaved as interleaved
import numpy as np
from _gpu_checks import LEAST_S, Clock, Restarted, failed

from halo_tvm.errors import HaloError, PeerFailed
from halo_tvm.peers.statistics import paired_interval

GOALS = {"step": ("torch", 1.5), "gemm": ("torch", 0.7), "flash64": ("torch", 0.5), "flash128": ("torch", 0.5)}
LIMITS = {"step": 0.05, "gemm": 0.02, "flash64": 0.02, "flash128": 0.02}  # relative L2 of engines' results
ROUNDS = (5, 15)
TURN_S = 0.15


def timed(
    command: Sequence[str],
    folder: Path,
    plan: dict,
    clock: Clock,
    result: dict[str, object],
    names: Sequence[str],
    checker: Restarted,
    peers: Sequence[str],
) -> list[dict[str, object]]:
    """A row for each of `names` with ours beside `peers`; of the step where its time goes, too."""
    rows = []
    for place, name in enumerate(names):
        present = "step" in plan["parts"] if name == "step" else name in plan["kernels"]
        if not present or clock.left < LEAST_S:
            result["left_out"].append(f"{name}: " + ("no time was left" if present else "it was not built"))
            continue
        try:
            rows.append(_race(command, folder, plan, clock.left / (len(names) - place), result, name, peers))
        except (HaloError, OSError) as failure:
            result["failures"].append(f"{name}: {failure}")
            rows.append(failed(name))
            continue
        if name == "step" and "step_plain" in plan["parts"]:
            case = _case(plan, name, "step_plain.halo")
            try:
                rows[-1]["profile"] = checker.ask("profile", clock.left, case=case)["rows"]
            except PeerFailed as failure:
                result["failures"].append(f"profile of the step: {failure}")
                result["wrong"].append("profile of the step")
    return rows


def _case(plan: dict, name: str, artifact: str) -> dict[str, object]:
    """What a worker prepares; every worker makes the same of it."""
    many = plan["gpu"] and not plan["small"]
    if name == "step":
        return {
            "function": name,
            "artifact": artifact,
            "token": 42,
            "number": 20 if many else 2,
            "dtype": "float16" if plan["gpu"] else "float32",
        }
    return {"function": name, "artifact": artifact, "shape": plan["kernels"][name], "number": 10 if many else 2}


def _race(
    command: Sequence[str],
    folder: Path,
    plan: dict,
    seconds: float,
    result: dict[str, object],
    name: str,
    peers: Sequence[str],
) -> dict[str, object]:
    start = time.monotonic()
    step = name == "step"
    if step:
        engines.materialise(folder)
    artifact = "step.halo" if step else "kernels.halo"
    case = _case(plan, name, artifact)
    with interleaved.started({each: [*command, each] for each in ("halo", *peers)}) as workers:
        ready = [interleaved.Entry("halo_tvm", workers["halo"], case)]
        if step and plan["gpu"] and "step_plain" in plan["parts"]:
            plain = _case(plan, name, "step_plain.halo")
            ready.append(interleaved.Entry("halo_tvm without graph", workers["halo"], plain))
        ready += [interleaved.Entry(engine, workers[engine], case) for engine in peers]
        expected = None if step else engines.sample_of(case)
        ready = _prepared(ready, seconds, start, result, name, expected)
        left = seconds - (time.monotonic() - start)
        rounds = int(left / (len(ready) * (TURN_S + 2 * interleaved.PAUSE_S)))
        rounds = max(1, min(ROUNDS[1], rounds))
        if rounds < ROUNDS[0]:
            result["left_out"].append(f"{name}: {ROUNDS[0]} rounds, there was time for {rounds}")
        samples = interleaved.race(ready, rounds, TURN_S, timeout_s=max(left, LEAST_S))
    us = {engine: [value / case["number"] for value in values] for engine, values in samples.items()}
    mine = us["halo_tvm"]
    row: dict[str, object] = {"name": name, "us": us, "rounds": rounds, "medians_us": {}, "ratios": {}}
    for engine, values in us.items():
        row["medians_us"][engine] = statistics.median(values)
        if engine != "halo_tvm":
            row["ratios"][engine] = dataclasses.asdict(paired_interval(mine, values, 0.90))
    if not step:
        row["tflops"] = {engine: _flops(plan, name) / us_ / 1e6 for engine, us_ in row["medians_us"].items()}
    peer, goal = GOALS[name]
    if plan["gpu"] and not plan["small"] and peer in row["ratios"]:
        row["goal"] = {"against": peer, "ratio": goal, "met": row["ratios"][peer]["low"] >= goal}
    return row


def _flops(plan: dict, name: str) -> int:
    shape = plan["kernels"][name]
    return (engines.Attention if "d" in shape else engines.Product)(**shape).flops


def _prepared(
    entries: Sequence[interleaved.Entry],
    seconds: float,
    start: float,
    result: dict[str, object],
    name: str,
    expected: np.ndarray | None,
) -> list[interleaved.Entry]:
    """Those that are ready in three quarters of the time: compiling torch's graph may take longer than there is.

    The first is ours: its failure is raised, as is a result that is not `expected` (None: checked elsewhere). What
    others fail at is said, and they are not timed; it is wrong where they run our library, too.
    """

    def left() -> float:
        return 0.75 * seconds - (time.monotonic() - start)

    def in_time() -> Iterator[interleaved.Entry]:
        for entry in entries:
            if entry is entries[0] or left() >= LEAST_S:
                yield entry
            else:
                result["left_out"].append(f"{name} by {entry.name}: no time was left")

    def failed(entry: interleaved.Entry, failure: HaloError) -> None:
        result["failures"].append(f"{name}: {failure}")
        if entry.worker is entries[0].worker:
            result["wrong"].append(f"{name} by {entry.name}")

    return interleaved.prepared(in_time(), LIMITS[name], expected, failed, lambda: max(left(), LEAST_S))
