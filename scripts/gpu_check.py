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
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import _checkout
import _gpu_checks as checks
import _gpu_engines as engines
import _gpu_race as race
import _gpu_table as table
from _gpu_directory import build, built_or_why, plan_of

from halo_tvm.errors import EnvironmentProblem, HaloError, ValidationFailed


def run(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Everything of the directory `folder`; the result is fit for JSON."""
    plan = plan_of(folder)
    device = "cuda" if plan["gpu"] else "cpu"
    if plan["gpu"]:
        check_gpu(folder)
    clock = checks.Clock(60 * options.minutes)
    result: dict[str, object] = {"schema": 2, "plan": plan, "sections": {}, "left_out": [], "failures": [], "wrong": []}
    result["wrong"] += [f"{name} (not built)" for name in plan["failed"]]
    command = [sys.executable, engines.__file__, "--artifacts", str(folder), "--device", device, "--worker"]
    peers = tuple(options.engines)
    checker = checks.Restarted([*command, "check"])
    try:
        result["about"] = about = _about(checker, device)
        if peers and about["torch"] is None:
            result["left_out"].append(f"times beside torch: {about['without_torch']}")
            peers = ()
        for section, work in {
            "operators": lambda: checks.operators(checker, folder, plan, clock, result),
            "models": lambda: checks.models(checker, folder, plan, clock, result),
            "step": lambda: race.timed(command, folder, plan, clock, result, ("step",), checker, peers),
            "gemm": lambda: race.timed(command, folder, plan, clock, result, ("gemm",), checker, peers),
            "flash": lambda: race.timed(command, folder, plan, clock, result, ("flash64", "flash128"), checker, peers),
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
        f"import sys; sys.path[:0] = {[str(_checkout.ROOT)]!r}; sys.path += {runtime!r}\n"
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


def _about(checker: checks.Restarted, device: str) -> dict[str, object]:
    found: dict[str, object] = {"python": sys.version.split()[0], "runtime": checker.ask("about", 120, case=None)}
    code = (
        f"import sys, json; sys.path[:0] = {[str(_checkout.ROOT), str(_checkout.ROOT / 'scripts')]!r}\n"
        f"import _gpu_engines; print(json.dumps(_gpu_engines.about_torch({device!r})))"
    )
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
        found["gpu"] = (
            dict(zip(names, (part.strip() for part in asked.stdout.splitlines()[0].split(","))))
            if asked.returncode == 0 and asked.stdout.strip()
            else None
        )
    from halo_tvm import __version__

    found["halo_tvm"] = __version__
    return found


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
        why = built_or_why(options.part, options.build, made)
        print(why)
        return 1 if why else 0
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
