"""What a target manifest declares, and what a resolved target offers to rules and passes."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import UsageError
from .gpu_levels import GpuLevel

if TYPE_CHECKING:  # importing TVM takes seconds, and listing targets needs none of it
    import tvm

TARGETS: dict[str, TargetSpec] = {}


@dataclass(frozen=True)
class Isa:
    """One instruction-set level of a target, ordered in the manifest from the smallest to the largest."""

    name: str  # as in artifacts and tuning logs: "avx2", "avx512", "avx512-vnni", "sm_80"
    mcpu: str
    mattr: tuple[str, ...]  # LLVM features on top of mcpu
    requires: frozenset[str]  # /proc/cpuinfo flags a host must have to run it
    vector_bits: int
    vector_registers: int
    precisions: tuple[str, ...] = ()  # besides fp32, those at least as fast as it
    half_arithmetic: bool = False  # multiply-adds on float16, of twice as many lanes as float32
    byte_dot: str = ""  # what multiplies bytes and adds up: "vpdpbusd", "vpmaddwd"; empty: plain arithmetic
    bf16_dot: bool = False  # multiplies pairs of bfloat16 and adds up in 16 lanes of float32: vdpbf16ps
    tiles: bool = False  # registers of two dimensions for products of bytes and of bfloat16: AMX
    taken_for: tuple[str, ...] = ()  # precisions for which `cpu` takes it; empty: all. By name it is taken for any
    not_beside: frozenset[str] = frozenset()  # flags of hosts on which `cpu` does not take it
    keys: tuple[tuple[str, object], ...] = ()  # further keys of TVM's target at this level
    gpu: GpuLevel | None = None  # limits of a GPU's level; None: a CPU

    @property
    def narrow_dtypes(self) -> tuple[str, ...]:
        """Types of 16 bits that rules multiply faster than float32."""
        faster = {"bfloat16": self.bf16_dot or self.tiles, "float16": self.half_arithmetic}
        return tuple(dtype for dtype, is_faster in faster.items() if is_faster)


@dataclass(frozen=True)
class TargetSpec:
    """A frozen manifest: what to compile for, which rules in which order, how to link."""

    name: str  # as in --target: "x86", "arm", "cuda", "c"
    description: str
    kind: str  # TVM's target kind
    machine: str  # second part of the tuning log's key: "x86_64", "aarch64", "gpu", ...
    isas: tuple[Isa, ...]
    rules: tuple[str, ...]  # names of schedule rules; the first that does not decline wins
    runs_on: frozenset[str]  # machine names of hosts that can run it (platform.machine()); empty: any
    linker: str | None = None  # compiler driver for export_library on other machines; None: the host's
    linker_package: str = ""  # Debian package that holds `linker`
    link_options: tuple[str, ...] = ()
    triple: str | None = None
    cross_triple: str | None = None  # the same, told on other machines only
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    lacks: frozenset[str] = frozenset()  # types of elements that TVM generates no code for
    precision: str = "fp32"  # of products with weights, where none is asked for
    own_launcher: bool = False  # libraries bring the code of `launcher/` along
    rounds_constants: bool = False  # TVM writes seven digits of each
    gpu: bool = False  # kernels run on an NVIDIA GPU, called by an LLVM host
    extra: dict[str, object] = field(default_factory=dict, hash=False)  # further keys of TVM's target

    def __post_init__(self) -> None:
        assert self.isas, f"target {self.name} names no ISA level"
        assert self.rules, f"target {self.name} names no schedule rule"
        assert self.name not in TARGETS, f"target {self.name} is defined twice"
        TARGETS[self.name] = self

    def largest_level(self, flags: frozenset[str], precision: str) -> Isa | None:
        """The largest level that a CPU with `flags` has among those meant for `precision`."""
        for isa in reversed(self.isas):
            meant = (not isa.taken_for or precision in isa.taken_for) and not isa.not_beside & flags
            if meant and isa.requires <= flags:
                return isa
        return None

    @property
    def is_source(self) -> bool:
        """Whether TVM writes source code for it, which another compiler reads."""
        return self.kind != "llvm"


@dataclass(frozen=True)
class Target:
    """A manifest with its ISA level chosen: the only thing rules, passes and the build look at."""

    spec: TargetSpec
    isa: Isa
    cores: int  # the cores tuning and analytic defaults assume; kernels run with any number
    own_keys: tuple[tuple[str, object], ...] = ()  # of TVM's target, where JSON or a tag says other than the manifest

    @property
    def name(self) -> str:
        """As `--target` spells it, e.g. "x86:avx512-vnni"; JSON when it has keys of its own."""
        if self.own_keys:
            level = {"mcpu": self.isa.mcpu, "mattr": self.isa.mattr, "mtriple": self.spec.triple}
            said = {key: value for key, value in level.items() if value}
            return json.dumps({"kind": self.spec.kind, **dict(self.isa.keys), **said, **dict(self.own_keys)})
        return f"{self.spec.name}:{self.isa.name}" if len(self.spec.isas) > 1 else self.spec.name

    @property
    def lanes_f32(self) -> int:
        """float32 lanes of one vector register."""
        return self.isa.vector_bits // 32

    @property
    def key(self) -> str:
        """Directory of the tuning log and name in manifests, e.g. "llvm-x86_64-avx512-vnni"."""
        return f"{self.spec.kind}-{self.spec.machine}-{self.isa.name}"

    @property
    def machines(self) -> tuple[str, ...]:
        """Machine names its libraries run on: what the host's own compiler links runs on machines like the host."""
        return tuple(sorted(self.spec.runs_on or {platform.machine()}))

    @property
    def linker(self) -> str | None:
        """The compiler driver that links its libraries; None for the host's own."""
        return None if self._at_home else self.spec.linker

    @property
    def triple(self) -> str | None:
        """What LLVM is told of the machine; None: it is one like this."""
        return self.spec.triple or (None if self._at_home else self.spec.cross_triple)

    @property
    def _at_home(self) -> bool:
        """Whether this machine is one of those that the target is for."""
        return not self.spec.runs_on or platform.machine() in self.spec.runs_on

    @property
    def arch(self) -> str:
        """What the device compiler is told, e.g. "sm_90a"; empty for a CPU."""
        return str({**dict(self.isa.keys), **dict(self.own_keys)}.get("arch", ""))

    @cached_property
    def tvm(self) -> tvm.target.Target:
        """The target as TVM knows it."""
        import tvm

        keys: dict[str, object] = {
            "kind": self.spec.kind,
            **self.spec.extra,
            **dict(self.isa.keys),
            **dict(self.own_keys),
        }
        if self.isa.mcpu:
            keys["mcpu"] = self.isa.mcpu
        if self.isa.mattr:
            keys["mattr"] = list(self.isa.mattr)
        if self.triple:
            keys["mtriple"] = self.triple
        if self.spec.gpu:
            keys["host"] = {"kind": "llvm"}
        try:
            return tvm.target.Target(keys)
        except ValueError as reason:
            if not self.own_keys:
                raise
            raise UsageError(
                f"keys that TVM knows were expected in the target, but {self.name} is refused "
                f"({str(reason).strip().splitlines()[-1]}): correct the JSON"
            ) from reason

    def export_options(self) -> dict[str, object]:
        """Keyword arguments with which `export_library` links for this target."""
        from tvm.support import cc

        arguments: dict[str, object] = {"options": list(self.spec.link_options)} if self.spec.link_options else {}
        if self.linker:
            arguments["fcompile"] = cc.cross_compiler(self.linker)
        return arguments
