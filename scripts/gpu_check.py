"""Is everything that is compiled for a GPU right there, and how fast is it beside torch? Seven minutes after building.

    python scripts/gpu_check.py                                  # build here, then check and time here
    python scripts/gpu_check.py --build DIR --target cuda:sm_90  # only build: needs no GPU; at most 64 MiB
    python scripts/gpu_check.py --artifacts DIR                  # only run: needs the runtime, not the compiler
    python scripts/gpu_check.py --target cpu --small             # tries the script itself where there is no GPU

Checked: every case of every operator against its NumPy reference (on a GPU in 16 bits, too), small GPT-2, BERT and
Llama models and GPT-2's step of one token against theirs. Timed: that step against torch eager and torch.compile, a
product of 4096 x 4096 x 4096 in float16 against cuBLAS through torch.matmul, causal attention of 4096 tokens against
scaled_dot_product_attention: every engine in a process of its own, in turns, medians, ratios paired by round with 90 %
intervals. --json and --markdown say where results go. Each section has a share of --minutes, and what does not fit is
said. A directory of --build has TVM's runtime libraries with it; tvm_ffi, NumPy and CUDA 13's runtime library are the
machine's, and what is there of torch (else our times stand alone) and ml_dtypes (else bfloat16 is left out). Exit code
0: all of ours is right; 3: something is wrong; 5: no GPU, or nothing could be built.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
for _folder in (ROOT, ROOT / "scripts"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import _gpu_engines as engines  # noqa: E402 - the checkout comes first
import _gpu_table as table  # noqa: E402
import _interleaved as interleaved  # noqa: E402

from halo_tvm.errors import EnvironmentProblem, HaloError, PeerFailed, UsageError, ValidationFailed  # noqa: E402
from halo_tvm.peers.client import Peer  # noqa: E402
from halo_tvm.peers.statistics import paired_interval, relative_l2  # noqa: E402

MOST_BYTES = 64 << 20
PLAN = "check.json"
SHARES = {"operators": 3, "models": 2, "step": 5, "gemm": 2, "flash": 4}
GOALS = {"step": ("torch", 1.5), "gemm": ("torch", 0.7), "flash64": ("torch", 0.5), "flash128": ("torch", 0.5)}
LIMITS = {"step": 0.05, "gemm": 0.02, "flash64": 0.02, "flash128": 0.02}  # relative L2 of engines' results
ROUNDS = (5, 15)
TURN_S = 0.15
LEAST_S = 3.0  # below that a section is not begun


class Clock:
    """Sections one after another, each with its share of what is left."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.sections = dict(SHARES)
        self.until = self.end

    def begin(self, section: str) -> None:
        left = self.end - time.monotonic()
        self.until = time.monotonic() + left * self.sections[section] / sum(self.sections.values())
        del self.sections[section]

    @property
    def left(self) -> float:
        """Seconds of this section."""
        return self.until - time.monotonic()


class Restarted:
    """The worker that checks: a fault of the GPU ends its process, and the next case gets another."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._peer: Peer | None = None

    def ask(self, command: str, seconds: float, **fields: object) -> dict[str, object]:
        if self._peer is None:
            self._peer = Peer("halo_tvm", self._command)
        try:
            return self._peer.ask(command, timeout_s=max(seconds, 1.0), **fields)
        except PeerFailed as failure:
            if not failure.missing:
                self.close()  # gone, silent, or without a device: after an error of CUDA a process has none any more
            raise

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None


# ---- building ----


def build(folder: Path, options: argparse.Namespace) -> None:
    """All parts into `folder`, several at a time in processes of their own."""
    import _gpu_build as building

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / PLAN).exists():
        raise UsageError(f"a new directory was expected, but {folder} has a {PLAN}: choose another or remove it")
    made = building.Options(options.target, options.precision, options.small, options.jobs)
    names = [n for n in building.parts(made) if not options.only or any(n.startswith(o) for o in options.only)]
    start = time.monotonic()
    alone = options.jobs == 1

    def one(part: str) -> str:
        if alone:
            return _guarded(lambda: building.build_part(part, folder, made))
        command = [sys.executable, __file__, "--part", part, "--build", str(folder), *_flags(options)]
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no word"])[-1][:500]

    with ThreadPoolExecutor(options.jobs) as pool:
        failures = dict(zip(names, pool.map(one, names), strict=True))
    built = [name for name in names if not failures[name]]
    if not built:
        why = next(iter(failures.values()), "no part has such a name")
        raise EnvironmentProblem(f"artifacts were expected, but nothing could be built: {why}")
    building.copy_runtime(folder)
    from halo_tvm.targets import resolve

    target = resolve(options.target)
    plan = {
        "schema": 1,
        "target": target.name,
        "gpu": target.spec.gpu,
        "rules_of_target": list(target.spec.rules),
        "precision": options.precision or "the target's own",
        "small": options.small,
        "parts": built,
        "failed": {name: text for name, text in failures.items() if text},
        "rules": building.rules_of(folder, built),
        "kernels": {
            table.name_of(k): dataclasses.asdict(k) for k in building.timed_kernels(made)
        } if "kernels" in built else {},
        "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip
    (folder / PLAN).write_text(json.dumps(plan, indent=1))
    size = building.size_bytes(folder)
    made_in = f"{len(built)} parts of {len(names)} in {plan['seconds']:.0f} s"
    print(f"{folder}: {made_in}, {size / 2**20:.1f} MiB", flush=True)
    for name, text in plan["failed"].items():
        print(f"not built: {name}: {text}", file=sys.stderr)
    if size > MOST_BYTES:
        raise EnvironmentProblem(
            f"at most {MOST_BYTES >> 20} MiB were expected, but {folder} has {size / 2**20:.1f}: use --only"
        )


def _guarded(step: Callable[[], None]) -> str:
    """Why a part could not be built: one part's failure is no reason to go without the others."""
    try:
        step()
    except (HaloError, RuntimeError, ValueError, TypeError, LookupError, OSError) as error:
        return f"{type(error).__name__}: {str(error).strip()}"[:500]
    return ""


def _flags(options: argparse.Namespace) -> list[str]:
    precision = ["--precision", options.precision] if options.precision else []
    return ["--target", options.target, *precision, *(["--small"] if options.small else [])]


# ---- running ----


def run(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Everything of the directory `folder`; the result is fit for JSON."""
    plan = json.loads(_plan(folder).read_text())
    device = "cuda" if plan["gpu"] else "cpu"
    if plan["gpu"]:
        check_gpu(folder)
    clock = Clock(60 * options.minutes)
    result: dict[str, object] = {"schema": 2, "plan": plan, "sections": {}, "left_out": [], "failures": [], "wrong": []}
    result["wrong"] += [f"{name} (not built)" for name in plan["failed"]]
    command = [sys.executable, engines.__file__, "--artifacts", str(folder), "--device", device, "--worker"]
    peers = tuple(options.engines)
    checker = Restarted([*command, "check"])
    try:
        result["about"] = about = _about(checker, device)
        if peers and about["torch"] is None:
            result["left_out"].append(f"times beside torch: {about['without_torch']}")
            peers = ()
        for section, work in {
            "operators": lambda: _operators(checker, folder, plan, clock, result),
            "models": lambda: _models(checker, folder, plan, clock, result),
            "step": lambda: _timed(command, folder, plan, clock, result, ("step",), checker, peers),
            "gemm": lambda: _timed(command, folder, plan, clock, result, ("gemm",), checker, peers),
            "flash": lambda: _timed(command, folder, plan, clock, result, ("flash64", "flash128"), checker, peers),
        }.items():
            clock.begin(section)
            start = time.monotonic()
            result["sections"][section] = rows = work()
            wrong = [row["name"] for row in rows if row.get("passed") is False]
            result["wrong"] += wrong
            said = f"{section}: {len(rows)} results, {len(wrong) or 'none'} wrong, {time.monotonic() - start:.0f} s"
            print(said, file=sys.stderr, flush=True)
        served = {rule for rules in plan["rules"].values() for rule in rules}
        result["rules_without_a_case"] = [rule for rule in plan["rules_of_target"] if rule not in served]
    finally:
        checker.close()
        if options.json:  # also of what an error or Ctrl-C ended
            options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def check_gpu(folder: Path) -> None:
    """`EnvironmentProblem` unless our runtime finds a GPU, asked in a process of its own."""
    runtime = [str(folder / "runtime")] if (folder / "runtime").is_dir() else []
    code = (
        f"import sys; sys.path[:0] = {[str(ROOT)]!r}; sys.path += {runtime!r}\n"
        "from halo_tvm.errors import HaloError\n"
        "from halo_tvm.runtime.host import load_cuda_runtime\n"
        "try:\n    load_cuda_runtime()\n"
        "except HaloError as error:\n    print(error); sys.exit(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    if done.returncode:
        said = done.stdout.strip() or (
            f"the runtime was expected to load, but {(done.stderr.strip().splitlines() or ['it ended'])[-1]}: pip "
            "install numpy and the pinned apache-tvm-ffi (setup.py)"
        )
        raise EnvironmentProblem(said)


def _plan(folder: Path) -> Path:
    if not (folder / PLAN).is_file():
        raise UsageError(f"a directory of `gpu_check.py --build` was expected, but {folder} has no {PLAN}: build one")
    return folder / PLAN


def _about(checker: Restarted, device: str) -> dict[str, object]:
    found: dict[str, object] = {"python": sys.version.split()[0], "runtime": checker.ask("about", 120, case=None)}
    code = f"import sys, json; sys.path[:0] = {[str(ROOT), str(ROOT / 'scripts')]!r}\n" \
        f"import _gpu_engines; print(json.dumps(_gpu_engines.about_torch({device!r})))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    found["torch"] = json.loads(done.stdout) if done.returncode == 0 else None
    if done.returncode:
        found["without_torch"] = (done.stderr.strip().splitlines() or ["no word"])[-1][:500]
    tool = shutil.which("nvidia-smi")
    pci = found["runtime"]["pci"]  # the tool's own order is not CUDA's
    if device == "cuda" and tool and pci:
        query = "name,driver_version,memory.total,clocks.max.sm"
        command = [tool, "-i", pci, f"--query-gpu={query}", "--format=csv,noheader"]
        asked = subprocess.run(command, capture_output=True, text=True)
        names = ("name", "driver", "memory", "clock")
        found["gpu"] = dict(zip(names, (part.strip() for part in asked.stdout.splitlines()[0].split(",")))) \
            if asked.returncode == 0 and asked.stdout.strip() else None  # fmt: skip
    from halo_tvm import __version__

    found["halo_tvm"] = __version__
    return found


def _operators(
    checker: Restarted, folder: Path, plan: dict, clock: Clock, result: dict[str, object]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for part in (name for name in plan["parts"] if name.startswith("operators/")):
        manifest = json.loads((folder / f"{part}.halo" / "manifest.json").read_text())
        for function in sorted(manifest["functions"], key=lambda name: int(name.removeprefix("case"))):
            name = f"{part.removeprefix('operators/')} {function}"
            if clock.left < LEAST_S:
                result["left_out"].append(f"{name}: no time was left")
                continue
            case = {"artifact": f"{part}.halo", "function": function}
            rows += _checked(checker, "function", name, case, clock, result)
    return rows


def _models(
    checker: Restarted, folder: Path, plan: dict, clock: Clock, result: dict[str, object]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for part in (name for name in plan["parts"] if name.startswith("models/") or name.startswith("step")):
        if clock.left < LEAST_S:
            result["left_out"].append(f"{part}: no time was left")
            continue
        if part.startswith("step"):
            try:
                engines.materialise(folder)
            except (HaloError, OSError) as error:
                result["failures"].append(f"{part}: its weights could not be written: {error}")
                rows.append(_failed(part))
                continue
        rows += _checked(checker, "model", part, {"artifact": f"{part}.halo"}, clock, result)
    return rows


def _checked(
    checker: Restarted, command: str, name: str, case: dict[str, object], clock: Clock, result: dict[str, object]
) -> list[dict[str, object]]:
    try:
        rows = checker.ask(command, clock.left, case=case)["rows"]
    except PeerFailed as failure:
        if failure.missing:
            result["left_out"].append(f"{name}: {failure}")
            return []
        result["failures"].append(f"{name}: {failure}")
        return [_failed(name)]
    return [{**row, "name": name} for row in rows]


def _failed(name: str) -> dict[str, object]:
    return {"name": name, "passed": False, "max_abs_error": None, "bound": None, "dtype": ""}


def _timed(
    command: Sequence[str], folder: Path, plan: dict, clock: Clock, result: dict[str, object],
    names: Sequence[str], checker: Restarted, peers: Sequence[str],
) -> list[dict[str, object]]:  # fmt: skip
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
            rows.append(_failed(name))
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
        return {"function": name, "artifact": artifact, "token": 42, "number": 20 if many else 2,
                "dtype": "float16" if plan["gpu"] else "float32"}  # fmt: skip
    return {"function": name, "artifact": artifact, "shape": plan["kernels"][name], "number": 10 if many else 2}


def _race(
    command: Sequence[str], folder: Path, plan: dict, seconds: float, result: dict[str, object], name: str,
    peers: Sequence[str],
) -> dict[str, object]:  # fmt: skip
    start = time.monotonic()
    step = name == "step"
    if step:
        engines.materialise(folder)
    artifact = "step.halo" if step else "kernels.halo"
    case = _case(plan, name, artifact)
    with _started(command, ("halo", *peers)) as workers:
        ready = [interleaved.Entry("halo_tvm", workers["halo"], case)]
        if step and plan["gpu"] and "step_plain" in plan["parts"]:
            plain = _case(plan, name, "step_plain.halo")
            ready.append(interleaved.Entry("halo_tvm without graph", workers["halo"], plain))
        ready += [interleaved.Entry(engine, workers[engine], case) for engine in peers]
        expected = None if step else engines.sample_of(case)
        ready = _prepared(ready, LIMITS[name], seconds, start, result, name, expected)
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


@contextmanager
def _started(command: Sequence[str], names: Sequence[str]) -> Iterator[dict[str, Peer]]:
    peers = {name: Peer(name, [*command, name]) for name in names}
    try:
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def _prepared(
    entries: Sequence[interleaved.Entry], limit: float, seconds: float, start: float, result: dict[str, object],
    name: str, expected: np.ndarray | None,
) -> list[interleaved.Entry]:  # fmt: skip
    """Those that are ready in three quarters of the time: compiling torch's graph may take longer than there is.

    The first is ours: its failure is raised, as is a result that is not `expected` (None: checked elsewhere). What
    others fail at is said, and they are not timed; it is wrong where they run our library, too.
    """
    ready: list[interleaved.Entry] = []
    for entry in entries:
        left = 0.75 * seconds - (time.monotonic() - start)
        if ready and left < LEAST_S:
            result["left_out"].append(f"{name} by {entry.name}: no time was left")
            continue
        try:
            found = np.array(entry.worker.ask("prepare", timeout_s=max(left, LEAST_S), case=entry.case)["sample"])
        except PeerFailed as failure:
            if not ready:
                raise
            said = str(failure)
        else:
            expected = found if expected is None else expected
            error = relative_l2(expected, found)
            if error <= limit:
                ready.append(entry)
                continue
            said = f"{entry.name} was expected to give the result within {limit:g}, found {error:.1e} beside it"
            if not ready:
                raise ValidationFailed(said)
        result["failures"].append(f"{name}: {said}")
        if entry.worker is ready[0].worker:
            result["wrong"].append(f"{name} by {entry.name}")
    return ready


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--precision", help="of models; default: the target's own")
    parser.add_argument("--build", type=Path, metavar="DIR", help="only build, into DIR")
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help="only run what --build wrote into DIR")
    parser.add_argument("--minutes", type=float, default=7.0, help="for all that runs, building not counted")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="*", default=(), metavar="PART", help="parts that begin so: operators/linear")
    parser.add_argument("--small", action="store_true", help="small sizes: tries the script, times mean nothing")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="parts built at a time")
    known = list(engines.TORCH)
    parser.add_argument("--engines", nargs="*", default=known, choices=known, metavar="NAME")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        return _main(options)
    except HaloError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return error.exit_code


def _main(options: argparse.Namespace) -> int:
    if options.part:
        import _gpu_build as building

        made = building.Options(options.target, options.precision, options.small)
        building.build_part(options.part, options.build, made)
        return 0
    if options.build:
        build(options.build, options)
        return 0
    if options.artifacts:
        return _report(run(options.artifacts.absolute(), options), options)
    from halo_tvm.targets import can_run_here, resolve

    runnable = can_run_here(resolve(options.target))
    if not runnable:
        raise EnvironmentProblem(
            f"{options.target} cannot be checked here: {runnable.reason}; --build DIR makes here what such a machine "
            "runs with --artifacts DIR"
        )
    with tempfile.TemporaryDirectory(prefix="halo-tvm-gpu-") as scratch:
        build(Path(scratch) / "artifacts", options)
        return _report(run(Path(scratch) / "artifacts", options), options)


def _report(result: dict[str, object], options: argparse.Namespace) -> int:
    """Write and print the result; the exit code."""
    text = table.markdown(result)
    print(text, end="")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    wrong = result["wrong"]
    if wrong:
        raise ValidationFailed(
            f"results within their bounds were expected, but {len(wrong)} are not: {', '.join(wrong[:8])}: see the "
            "table, and report it with --json"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
