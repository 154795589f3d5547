"""Where a run measures: this machine, or devices of an RPC tracker."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import TuneConfig, parse_address
from ..cuda.toolkit import no_compiler
from ..errors import EnvironmentProblem, UsageError
from ..lookup import fingerprint_of
from ..records.record import Fingerprint
from ..runtime.host import first_gpu
from ..targets import Target, can_run_here, names_host, read_gpus, resolve, runs_code_of
from .measure.lab import Lab, LabOptions

_RPC = "--rpc HOST:PORT --device-key KEY"


@dataclass(frozen=True)
class Place:
    """What is built for and where it runs; records carry the fingerprint of that machine."""

    target: Target
    fingerprint: Fingerprint
    address: tuple[str, int] | None = None  # of a tracker; None: this machine
    key: str = ""

    def lab(self, options: LabOptions, seed: int) -> Lab | None:
        """The lab of remote devices; None here: the tuner makes its own."""
        if self.address is None:
            return None
        from .measure.rpc import RpcLab

        return RpcLab(self.target, options, self.address, self.key, seed=seed, fingerprint=self.fingerprint)


def place_of(config: TuneConfig, target: Target | None = None, products: str | None = None) -> Place:
    """Where to measure, for `target` or that of the options.

    `products` is the precision whose level `cpu` is where the options name none.
    With --rpc a device is asked what it is: `cpu` is then the device's level for the precision, `cuda` its GPU's.
    `EnvironmentProblem` when the target does not run there, or no device is free.
    """
    precision = config.precision or products
    if config.rpc is None or config.device_key is None:
        if target is None:
            gpus = None if config.build_only else _first_gpu(config.target)
            target = resolve(config.target, cores=config.threads, precision=precision, gpus=gpus)
        if config.build_only:
            return Place(target, fingerprint_of(target))
        check_runs_here(target)
        return Place(target, fingerprint_here(target))
    from .measure.rpc import device_behind, refuse_other_targets

    address = parse_address(config.rpc, "--rpc")
    device = device_behind(address, config.device_key, gpu=(target or _named(config.target)).spec.gpu)
    if target is None:
        if device.host is None and names_host(config.target):
            raise UsageError(
                f"--target {config.target} means the level of the device, but the one under the key "
                f"{config.device_key} does not say what it is: start its server with `halo-tvm rpc server`, "
                "or name the level, e.g. x86:avx2"
            )
        cores = config.threads or device.threads or None
        gpus = (device.gpu.arch,) if device.gpu else ()
        target = resolve(config.target, host=device.host, cores=cores, precision=precision, gpus=gpus)
    if config.threads and device.threads and config.threads != device.threads:
        raise UsageError(
            f"--threads {config.threads} was given, but the device under the key {config.device_key} runs kernels with "
            f"{device.threads} threads: start its server with `--threads {config.threads}`, or leave --threads out"
        )
    refuse_other_targets(device, target, config.device_key)
    _check_compiler(target)
    return Place(target, device.fingerprint(target), address, config.device_key)


def fingerprint_here(target: Target) -> Fingerprint:
    """Of what is measured on this machine: its own GPU where the target is for one."""
    return fingerprint_of(target, first_gpu() if target.spec.gpu else None)


def check_runs_here(target: Target) -> None:
    """`EnvironmentProblem`, with the ways forward, unless this machine measures what is built for `target`."""
    answer = can_run_here(target)
    if target.spec.gpu:
        if not answer:
            raise EnvironmentProblem(_no_gpu(target))
        check_first_gpu(target)
    elif not answer:
        raise EnvironmentProblem(
            f"tuning measures on this machine, so it needs a CPU target that runs here, but {target.name} does not: "
            f"{answer.reason}; or measure on a machine where it does: start a tracker here and a server there with "
            f"`halo-tvm rpc`, and give {_RPC}"
        )


def check_first_gpu(target: Target) -> None:
    """`EnvironmentProblem` unless candidates for a GPU can be compiled here and run on the one that measures."""
    first = first_gpu().arch  # says what is missing between the driver and TVM
    if not runs_code_of(first, target.arch):
        raise EnvironmentProblem(
            f"{target.name} is measured on the first GPU, which is one of {first} and does not run it: "
            "name another with CUDA_VISIBLE_DEVICES, or give --target cuda:LEVEL with a smaller level"
        )
    _check_compiler(target)


def _named(text: str) -> Target:
    """A target as far as the name alone says what it is."""
    return resolve("c" if names_host(text) else text, gpus=())


def _first_gpu(text: str) -> tuple[str, ...] | None:
    """What a target for GPUs that is named without a level means here; None: what the system lists."""
    if not _named(text).spec.gpu or not read_gpus():
        return None
    try:
        return (first_gpu().arch,)
    except EnvironmentProblem:  # said by `check_runs_here`
        return None


def _check_compiler(target: Target) -> None:
    """A GPU's candidates are machine code: what another compiler makes of their source is another kernel."""
    lacking = no_compiler(target.arch) if target.spec.gpu else ""
    if lacking:
        raise EnvironmentProblem(
            f"candidates for {target.name} are compiled on this machine, by NVIDIA's compiler, but {lacking}"
        )


def _no_gpu(target: Target) -> str:
    """One sentence with the ways forward."""
    found = ", ".join(f"{gpu.name} ({gpu.arch})" for gpu in read_gpus())
    here = f"has {found}" if found else "has none"
    return (
        f"tuning measures, so {target.name} needs a GPU that runs it, but this machine {here}: run this on a machine "
        f"that has one; or measure on such a machine from here, through its `halo-tvm rpc server`, with {_RPC}; or "
        "build candidates here and rank them by their rules' models, with --build-only (untuned, "
        f"`halo-tvm compile --model MODEL --target {target.name}` takes the decisions of those models)"
    )
