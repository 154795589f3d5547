"""What a target manifest declares, and what a resolved target offers to rules and passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import tvm

TARGETS: dict[str, TargetSpec] = {}


@dataclass(frozen=True)
class Isa:
    """One instruction-set level of a target, ordered in the manifest from the smallest to the largest."""

    name: str  # as in artifacts and tuning logs: "avx2", "avx512", "avx512-vnni"
    mcpu: str
    mattr: tuple[str, ...]  # LLVM features on top of mcpu
    requires: frozenset[str]  # /proc/cpuinfo flags a host must have to run it
    vector_bits: int
    vector_registers: int


@dataclass(frozen=True)
class TargetSpec:
    """A frozen manifest: what to compile for, which rules in which order, how to link."""

    name: str  # as in --target: "x86", "arm", "cuda", "c"
    description: str
    kind: str  # TVM's target kind
    machine: str  # second part of the tuning log's key: "x86_64", "aarch64", "gpu", ...
    isas: tuple[Isa, ...]
    rules: tuple[str, ...]  # names of schedule rules; the first that does not decline wins
    runs_on: frozenset[str]  # machine names of hosts that can run it (platform.machine())
    linker: str | None = None  # compiler driver for export_library; None: the host's
    link_options: tuple[str, ...] = ()
    triple: str | None = None
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    extra: dict[str, object] = field(default_factory=dict, hash=False)  # further keys of TVM's target

    def __post_init__(self) -> None:
        assert self.isas, f"target {self.name} names no ISA level"
        assert self.rules, f"target {self.name} names no schedule rule"
        assert self.name not in TARGETS, f"target {self.name} is defined twice"
        TARGETS[self.name] = self


@dataclass(frozen=True)
class Target:
    """A manifest with its ISA level chosen: the only thing rules, passes and the build look at."""

    spec: TargetSpec
    isa: Isa
    cores: int  # the cores tuning and analytic defaults assume; kernels run with any number

    @property
    def lanes_f32(self) -> int:
        """float32 lanes of one vector register."""
        return self.isa.vector_bits // 32

    @property
    def key(self) -> str:
        """Directory of the tuning log and name in manifests, e.g. "llvm-x86_64-avx512-vnni"."""
        return f"{self.spec.kind}-{self.spec.machine}-{self.isa.name}"

    @cached_property
    def tvm(self) -> tvm.target.Target:
        """The target as TVM knows it."""
        keys: dict[str, object] = {"kind": self.spec.kind, **self.spec.extra}
        if self.isa.mcpu:
            keys["mcpu"] = self.isa.mcpu
        if self.isa.mattr:
            keys["mattr"] = list(self.isa.mattr)
        if self.spec.triple:
            keys["mtriple"] = self.spec.triple
        return tvm.target.Target(keys)
