"""Where a run measures: this machine, or devices of an RPC tracker."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import TuneConfig, parse_address
from ..errors import EnvironmentProblem, UsageError
from ..lookup import fingerprint_of
from ..records.record import Fingerprint
from ..targets import Target, can_run_here, read_gpus, resolve
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
        from .measure.rpc import make_rpc_lab

        return make_rpc_lab(self.target, options, self.address, self.key, seed=seed, fingerprint=self.fingerprint)


def place_of(config: TuneConfig, target: Target | None = None) -> Place:
    """Where to measure, for `target` or that of the options.

    With --rpc a device is asked what it is: `cpu` is then the device's level for the precision.
    `EnvironmentProblem` when the target does not run there, or no device is free.
    """
    if config.rpc is None or config.device_key is None:
        target = target or resolve(config.target, cores=config.threads, precision=config.precision)
        if not config.build_only:
            check_runs_here(target)
        return Place(target, fingerprint_of(target))
    from .measure.rpc import device_behind, refuse_other_targets

    address = parse_address(config.rpc, "--rpc")
    if target is None and (named := _gpu_target(config.target)):
        raise EnvironmentProblem(_unmeasured_gpu(named))
    device = device_behind(address, config.device_key)
    if target is None:
        if device.host is None and config.target == "cpu":
            raise UsageError(
                f"--target cpu means the level of the device, but the one under the key {config.device_key} does not "
                "say what it is: start its server with `halo-tvm rpc server`, or name the level, e.g. x86:avx2"
            )
        cores = config.threads or device.threads or None
        target = resolve(config.target, host=device.host, cores=cores, precision=config.precision)
    if config.threads and device.threads and config.threads != device.threads:
        raise UsageError(
            f"--threads {config.threads} was given, but the device under the key {config.device_key} runs kernels with "
            f"{device.threads} threads: start its server with `--threads {config.threads}`, or leave --threads out"
        )
    refuse_other_targets(device, target, config.device_key)
    return Place(target, device.fingerprint(target), address, config.device_key)


def check_runs_here(target: Target) -> None:
    """`EnvironmentProblem`, with the ways forward, unless this machine measures what is built for `target`."""
    answer = can_run_here(target)
    if target.spec.gpu:
        raise EnvironmentProblem(_unmeasured_gpu(target) if answer else _no_gpu(target))
    if not answer:
        raise EnvironmentProblem(
            f"tuning measures on this machine, so it needs a CPU target that runs here, but {target.name} does not: "
            f"{answer.reason}; or measure on a machine where it does: start a tracker here and a server there with "
            f"`halo-tvm rpc`, and give {_RPC}"
        )


def _gpu_target(text: str) -> Target | None:
    """The target that `text` names when it is one for GPUs, whatever the device is."""
    if text == "cpu":
        return None
    target = resolve(text)
    return target if target.spec.gpu else None


def _no_gpu(target: Target) -> str:
    found = ", ".join(f"{gpu.name} ({gpu.arch})" for gpu in read_gpus())
    here = f"has {found}" if found else "has none"
    return (
        f"tuning measures, so {target.name} needs a GPU that runs it, but this machine {here}, and GPUs are not "
        f"measured yet: {_ways(target)}"
    )


def _unmeasured_gpu(target: Target) -> str:
    return (
        f"tuning measures, which it does on CPUs so far, but {target.name} is for GPUs, which are not measured yet, "
        f"neither with a GPU here nor through --rpc: {_ways(target)}"
    )


def _ways(target: Target) -> str:
    return (
        "build candidates and rank them by their rules' models, with --build-only; or compile without tuning, with the "
        f"decisions that those models take: `halo-tvm compile --model MODEL --target {target.name}`; or tune for this "
        f"machine's CPU, with --target cpu (planned: to measure on a machine with a GPU, or with {_RPC})"
    )
