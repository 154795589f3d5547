"""The directory of gpu_check.py: all its parts built, several at a time, and the plan that says what is in it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import _gpu_table as table

from halo_tvm.errors import EnvironmentProblem, HaloError, UsageError

if TYPE_CHECKING:
    from _gpu_build import Options

PLAN = "check.json"
MOST_BYTES = 64 << 20
_SCRIPT = str(Path(__file__).with_name("gpu_check.py"))


def plan_of(folder: Path) -> dict[str, object]:
    """What `build` wrote about a directory; `UsageError` where there is none."""
    if not (folder / PLAN).is_file():
        raise UsageError(f"a directory of `gpu_check.py --build` was expected, but {folder} has no {PLAN}: build one")
    return json.loads((folder / PLAN).read_text())


def build(folder: Path, options: argparse.Namespace) -> None:
    """All parts into `folder`, several at a time in processes of their own."""
    import _gpu_build as building

    from halo_tvm.targets import resolve

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / PLAN).exists():
        raise UsageError(f"a new directory was expected, but {folder} has a {PLAN}: choose another or remove it")
    made = building.Options(options.target, options.precision, options.small, options.jobs)
    names = [n for n in building.parts(made) if not options.only or any(n.startswith(o) for o in options.only)]
    start = time.monotonic()
    alone = options.jobs == 1

    def one(part: str) -> str:
        if alone:
            return built_or_why(part, folder, made)
        command = [sys.executable, _SCRIPT, "--part", part, "--build", str(folder), *_flags(options)]
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stdout.strip() or done.stderr.strip()  # the latter of a process that was ended
        return "" if done.returncode == 0 else (said.splitlines() or ["no word"])[-1][:500]

    with ThreadPoolExecutor(options.jobs) as pool:
        failures = dict(zip(names, pool.map(one, names), strict=True))
    built = [name for name in names if not failures[name]]
    if not built:
        why = next(iter(failures.values()), "no part has such a name")
        raise EnvironmentProblem(f"artifacts were expected, but nothing could be built: {why}")
    building.copy_runtime(folder)
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
        "kernels": {table.name_of(k): dataclasses.asdict(k) for k in building.timed_kernels(made)}
        if "kernels" in built
        else {},
        "seconds": round(time.monotonic() - start, 1),
    }
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


def built_or_why(part: str, folder: Path, options: Options) -> str:
    """Why a part could not be built, or nothing: one part's failure is no reason to go without the others."""
    import _gpu_build as building

    try:
        building.build_part(part, folder, options)
    except (HaloError, RuntimeError, ValueError, TypeError, LookupError, OSError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return ""


def _flags(options: argparse.Namespace) -> list[str]:
    precision = ["--precision", options.precision] if options.precision else []
    return ["--target", options.target, *precision, *(["--small"] if options.small else [])]
