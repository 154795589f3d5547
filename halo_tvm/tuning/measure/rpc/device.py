"""What a device says of itself: data of a stranger, of which only what has the right shape is believed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ....lookup import fingerprint_of
from ....records.record import Fingerprint
from ....targets import Gpu, Host, Target, runs_code_of

_MOST_CORES = 1 << 16
_MOST_BYTES = 1 << 40  # of a cache
_MOST_FLAGS = 4096
_ARCH = re.compile(r"sm_[1-9][0-9]{1,2}[af]?")


@dataclass(frozen=True)
class Device:
    """A machine that measures. Zero, an empty text and no flags stand for what is not known."""

    threads: int  # kernels run with so many
    machine: str  # "x86_64", "aarch64"
    model: str
    flags: frozenset[str]  # names as its /proc/cpuinfo prints them
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    gpu: Gpu | None = None  # the one that measures; asked for only where a target needs it
    without_gpu: str = ""  # why there is none

    @property
    def host(self) -> Host | None:
        """As the machine it is, for `targets.resolve`; None when it did not say."""
        if not (self.machine and self.flags):
            return None
        return Host(
            self.machine, self.model, self.flags, max(1, self.threads), self.l1_bytes, self.l2_bytes, self.l3_bytes
        )

    def refusal(self, target: Target) -> str:
        """Why what is built for `target` cannot run there; empty when it can, or when that is not known."""
        spec = target.spec
        if spec.gpu:
            return self._refusal_of_gpu(target)
        if spec.runs_on and self.machine and self.machine not in spec.runs_on:
            return f"{spec.name} runs on {' or '.join(sorted(spec.runs_on))}, and the device is {self.machine}"
        lacking = sorted(target.isa.requires - self.flags) if self.flags else []
        return f"{target.name} needs CPU features that the device lacks ({', '.join(lacking)})" if lacking else ""

    def _refusal_of_gpu(self, target: Target) -> str:
        if self.gpu is None and self.without_gpu:
            return f"the device has no GPU that measures ({self.without_gpu})"
        if self.gpu is None:
            return "the device does not say that it has a GPU: start its server with `halo-tvm rpc server`"
        if not runs_code_of(self.gpu.arch, target.arch):
            needed = f"{target.name} needs a GPU of {target.arch} or a later one like it"
            return f"{needed}, and the device's is {self.gpu.arch}"
        return ""

    def fingerprint(self, target: Target) -> Fingerprint:
        """The facts that records measured there are compared by: the device's, else those of the target."""
        if target.spec.gpu:
            return fingerprint_of(target, self.gpu)
        return Fingerprint(
            kind=target.spec.kind,
            machine=target.spec.machine,
            isa=target.isa.name,
            isas=tuple(isa.name for isa in target.spec.isas),
            cores=self.threads or target.cores,
            l1_bytes=self.l1_bytes or target.spec.l1_bytes,
            l2_bytes=self.l2_bytes or target.spec.l2_bytes,
            l3_bytes=self.l3_bytes,
        )


def device_of(answers: Mapping[str, object]) -> Device:
    """The device whose answers these are: `threads`, LLVM's `triple`, and our server's own JSON `described`, and
    `gpu` where that was asked for."""
    said = _object(answers.get("described"))
    triple = _text(answers.get("triple"))
    flags = said.get("flags")
    flags = flags if isinstance(flags, list) and len(flags) <= _MOST_FLAGS else []
    gpu = _object(answers.get("gpu"))
    return Device(
        threads=_count(answers.get("threads"), _MOST_CORES),
        machine=_text(said.get("machine")) or triple.partition("-")[0],
        model=_text(said.get("model")),
        flags=frozenset(flag for flag in flags if isinstance(flag, str)),
        l1_bytes=_count(said.get("l1_bytes"), _MOST_BYTES),
        l2_bytes=_count(said.get("l2_bytes"), _MOST_BYTES),
        l3_bytes=_count(said.get("l3_bytes"), _MOST_BYTES),
        gpu=_gpu_of(gpu),
        without_gpu=_text(gpu.get("without")),
    )


def _gpu_of(said: Mapping[str, object]) -> Gpu | None:
    arch = _text(said.get("arch"))
    if not _ARCH.fullmatch(arch):
        return None
    return Gpu("", arch, _count(said.get("multiprocessors"), _MOST_CORES), _count(said.get("l2_bytes"), _MOST_BYTES))


def _object(text: object) -> Mapping[str, object]:
    if not isinstance(text, str):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) < 200 else ""


def _count(value: object, most: int) -> int:
    """A number from 0 to `most`, else 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0
    return int(value) if 0 <= value <= most else 0
