"""Say what this machine can build and run, and what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..ceilings import HostProfile, read_profile
from ..ceilings.measure import measure_apart
from ..config import PRECISIONS, DoctorConfig
from ..cuda.toolkit import find_tool
from ..errors import EnvironmentProblem, HaloError
from ..plugins import load_plugins
from ..targets import (
    FULL,
    TARGETS,
    Host,
    Target,
    can_build_here,
    can_run_here,
    read_gpus,
    read_host,
    resolve,
    usable_cpus,
)
from ._show import print_json, size, table

CONFIG = DoctorConfig

# Distribution -> the extra of ours that brings it, and what it is for.
OPTIONAL = {
    "torch": ("torch", "PyTorch models, and the peer torch"),
    "transformers": ("hf", "Hugging Face configurations"),
    "tokenizers": ("hf", "text in, text out"),
    "tensorflow-cpu": ("tensorflow", "TensorFlow SavedModels"),
    "ai-edge-litert": ("tflite", "the reference of TFLite files"),
    "jax": ("jax", "JAX functions, files of Keras, and the peer jax"),
    "keras": ("keras", ".keras and .h5 files"),
    "openvino": ("bench", "the peer openvino"),
    "nncf": ("bench", "openvino's int8 models"),
    "tornado": ("rpc", "measuring on other machines"),
    "pytest": ("test", "the tests"),
}
COMPILERS = ("g++", "clang", "aarch64-linux-gnu-g++")
CUDA_TOOLS = ("nvcc", "cuobjdump")
# A rate of a host's profile -> its column.
CEILINGS = {
    "fma_gflops": "fp32 GFLOP/s",
    "bf16_gflops": "bf16 GFLOP/s",
    "int8_gops": "int8 GOP/s",
    "l2_gbps": "read L2 GB/s",
    "l3_gbps": "L3 GB/s",
    "dram_gbps": "DRAM GB/s",
}

_SELF_CHECK_S = 120
_NO_ANSWER = f"gave no answer within {_SELF_CHECK_S} s"
# Run by itself, because with another tvm-ffi than the pinned one it ends the process, not the call.
_SELF_CHECK = """
import tvm
from tvm.script import tirx as T
@T.prim_func
def double(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = x[i] * T.float32(2)
module = tvm.IRModule({"double": double})
tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(module)), module)
"""


def run(config: DoctorConfig) -> int:
    """Print the findings; the exit code is that of `EnvironmentProblem` when the package cannot work here."""
    try:
        from tvm import relax  # noqa: F401
    except (ImportError, OSError) as error:
        raise EnvironmentProblem(
            f"apache-tvm must import, but {error}: install halo_tvm again, which brings the pinned pair"
        ) from error
    from ..records import host_profile

    host = read_host()
    found: dict[str, object] = {"software": _software(), "host": _host(host), "targets": _targets(host)}
    problems = _problems(found)
    path = host_profile()
    if config.measure and not problems:
        measure_apart(host.cores).save(path)
    profile, why_not = read_profile(path)
    found["profile"] = profile and profile.as_json()
    found["problems"] = problems
    if config.json:
        print_json(found)
    else:
        _print(found, profile, why_not, path)
    return EnvironmentProblem.exit_code if problems else 0


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _software() -> dict[str, object]:
    from .._compat import PINNED_TVM, PINNED_TVM_FFI
    from ..records import home, log_dirs

    try:
        plugins, plugin_problem = list(load_plugins()), None
    except HaloError as error:
        plugins, plugin_problem = [], str(error)
    return {
        "halo_tvm": __version__,
        "python": platform.python_version(),
        "apache-tvm": {"found": _version("apache-tvm"), "pinned": PINNED_TVM},
        "apache-tvm-ffi": {"found": _version("apache-tvm-ffi"), "pinned": PINNED_TVM_FFI},
        "self_check": _self_check(),
        "optional": {name: _version(name) for name in OPTIONAL},
        "compilers": {
            **{name: shutil.which(name) for name in COMPILERS},
            **{name: find_tool(name) for name in CUDA_TOOLS},
        },
        "home": str(home()),
        "tuning_logs": [{"directory": str(d), "exists": d.is_dir()} for d in log_dirs()],
        "plugins": plugins,
        "plugin_problem": plugin_problem,
    }


def _self_check() -> str | None:
    """None when TVM saves and loads a function in a process of its own, else what happened."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "self_check.py"  # a file, because TVMScript reads its own source
        script.write_text(_SELF_CHECK)
        try:
            done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=_SELF_CHECK_S)
        except subprocess.TimeoutExpired:
            return _NO_ANSWER
    if done.returncode == 0:
        return None
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    return f"ended by signal {-done.returncode}" if done.returncode < 0 else f"failed ({last[0]})"


def _host(host: Host) -> dict[str, object]:
    try:
        levels = {p: resolve("cpu", host=host, precision=p).isa.name for p in PRECISIONS}
    except EnvironmentProblem as error:
        levels = dict.fromkeys(PRECISIONS, f"none: {error}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "cpu": host.model,
        "machine": host.machine,
        "isa": levels[FULL],
        "isa_for": {p: level for p, level in levels.items() if level != levels[FULL]},
        "cores": host.cores,
        "cpus": len(usable_cpus()),
        "memory_bytes": memory,
        "l1_bytes": host.l1_bytes,
        "l2_bytes": host.l2_bytes,
        "l3_bytes": host.l3_bytes,
        "gpus": [{"name": gpu.name, "arch": gpu.arch} for gpu in read_gpus()],
    }


def _targets(host: Host) -> dict[str, dict[str, object]]:
    rows = {}
    for spec in TARGETS.values():
        target = Target(spec, spec.isas[0], host.cores)
        build, runs = can_build_here(target), can_run_here(target, host)
        rows[spec.name] = {"build": build.ok, "build_note": build.reason, "run": runs.ok, "run_note": runs.reason}
    return rows


def _problems(found: dict[str, object]) -> list[str]:
    software = found["software"]
    problems = []
    for name in ("apache-tvm", "apache-tvm-ffi"):
        pair = software[name]
        if pair["found"] != pair["pinned"]:
            has = f"version {pair['found']}" if pair["found"] else "none"
            problems.append(
                f"{name} must be version {pair['pinned']}, but found {has}: run `pip install {name}=={pair['pinned']}`"
            )
    if software["self_check"]:
        busy = software["self_check"] == _NO_ANSWER and not problems  # of the pinned versions, only time is missing
        advice = "the machine is too busy, run doctor again when it is not" if busy else "install the pinned pair"
        problems.append(f"TVM must save and load a function, but its process {software['self_check']}: {advice}")
    if software["plugin_problem"]:
        problems.append(software["plugin_problem"])
    if not any(row["build"] and row["run"] for row in found["targets"].values()):
        problems.append("at least one target must build and run here, but none does: see the notes of the targets")
    return problems


def _print(found: dict[str, object], profile: HostProfile | None, why_not: str, path: Path) -> None:
    software, host = found["software"], found["host"]
    pinned = {n: software[n] for n in ("apache-tvm", "apache-tvm-ffi")}
    rows = [("halo_tvm", software["halo_tvm"]), ("python", software["python"])]
    rows += [
        (
            n,
            f"{p['found'] or 'not installed'} "
            f"({'as pinned' if p['found'] == p['pinned'] else 'pinned: ' + p['pinned']})",
        )
        for n, p in pinned.items()
    ]
    rows.append(("self-check", software["self_check"] or "passed: saves and loads a function"))
    rows += [(name, where or "not found") for name, where in software["compilers"].items()]
    for name, version in software["optional"].items():
        extra, use = OPTIONAL[name]
        rows.append(
            (name, f"{version} ({use})" if version else f"not installed: pip install 'halo_tvm[{extra}]' for {use}")
        )
    rows.append(("plug-ins", ", ".join(software["plugins"]) or "none"))
    print(table(("software", ""), rows))
    caches = " / ".join(size(host[f"l{level}_bytes"]) if host[f"l{level}_bytes"] else "?" for level in (1, 2, 3))
    gpus = ", ".join(f"{gpu['name']} ({gpu['arch']})" for gpu in host["gpus"]) or "none"
    levels = [host["isa"], *(f"for {p}: {level}" for p, level in host["isa_for"].items())]
    print(
        "\n"
        + table(
            ("host", ""),
            [
                ("cpu", f"{host['cpu']} ({host['machine']})"),
                ("ISA level of `cpu`", "; ".join(levels)),
                ("threads by default", f"{host['cores']} on {host['cpus']} CPUs"),
                ("memory", size(host["memory_bytes"])),
                ("L1 / L2 / L3", caches),
                ("NVIDIA GPUs", gpus),
            ],
        )
    )
    print(
        "\n"
        + table(
            ("target", "builds here", "runs here", "note"),
            [
                (
                    name,
                    "yes" if row["build"] else "no",
                    "yes" if row["run"] else "no",
                    "; ".join(filter(None, (row["build_note"], row["run_note"]))),
                )
                for name, row in found["targets"].items()
            ],
        )
    )
    print(
        "\n"
        + table(
            ("tuning logs", ""),
            [(log["directory"], "" if log["exists"] else "(not there yet)") for log in software["tuning_logs"]],
        )
    )
    print(f"\nmeasured {profile.measured_at} on {profile.cpu} ({path}):" if profile else f"\nno ceilings: {why_not}")
    if profile:
        rows = [
            (n, *(f"{r[name]:.0f}" if name in r else "-" for name in CEILINGS)) for n, r in profile.by_threads.items()
        ]
        print(table(("threads", *CEILINGS.values()), rows))
    for problem in found["problems"]:
        print(f"problem: {problem}")
