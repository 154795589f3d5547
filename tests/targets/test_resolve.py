"""`--target` text becomes a target, or one sentence that says why not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from halo_tvm.config import PRECISIONS, CompileConfig, TuneConfig
from halo_tvm.errors import EnvironmentProblem, UnknownName, UsageError
from halo_tvm.targets import (
    TARGETS,
    Gpu,
    Host,
    Target,
    _available,
    _host,
    _resolve,
    can_build_here,
    can_run_here,
    check_precision,
    known_names,
    read_gpus,
    read_host,
    resolve,
    runs_code_of,
)
from halo_tvm.targets.gpu_levels import shared_bytes

AVX2 = {"avx2", "fma", "f16c", "bmi2"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def make_host(flags: set[str], machine: str = "x86_64") -> Host:
    return Host(machine, "a CPU", frozenset(flags), cores=3, l1_bytes=0, l2_bytes=0, l3_bytes=0)


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        (AVX2, "avx2"),
        (AVX512, "avx512"),
        (AVX512 | {"avx512_vnni"}, "avx512-vnni"),
        (AVX512 | {"avx512_vnni", "avx512_bf16", "avx512_fp16"}, "avx512-vnni"),
        (AVX2 | {"avx512f", "avx512_vnni"}, "avx2"),
    ],
)
def test_cpu_is_the_largest_level_of_the_host_that_float32_needs(flags: set[str], isa: str) -> None:
    target = resolve("cpu", host=make_host(flags))
    assert (target.spec.name, target.isa.name, target.cores) == ("x86", isa, 3)
    assert target.key == f"llvm-x86_64-{isa}"


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ({"avx512_vnni"}, {"bf16": "vnni", "int8": "vnni", "fp16": "vnni"}),
        ({"avx512_bf16"}, {"bf16": "", "int8": "", "fp16": ""}),
        ({"avx512_vnni", "avx512_bf16"}, {"bf16": "bf16", "int8": "bf16", "fp16": "vnni"}),
        # half arithmetic comes with slow products of bfloat16
        ({"avx512_vnni", "avx512_bf16", "avx512_fp16"}, {"bf16": "vnni", "int8": "vnni", "fp16": "fp16"}),
        ({"avx512_vnni", "avx512_fp16"}, {"bf16": "vnni", "int8": "vnni", "fp16": "vnni"}),
        (
            {"avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"},
            {"fp32": "vnni", "bf16": "amx", "int8": "amx", "fp16": "fp16"},
        ),
    ],
)
def test_cpu_is_the_level_for_the_precision(flags: set[str], levels: dict[str, str]) -> None:
    host = make_host(AVX512 | flags)
    found = {precision: resolve("cpu", host=host, precision=precision).isa.name for precision in levels}
    assert found == {precision: f"avx512-{level}".rstrip("-") for precision, level in levels.items()}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_named_level_is_obeyed(precision: str) -> None:
    fast = make_host(AVX512 | {"avx512_vnni", "avx512_bf16", "avx512_fp16"})
    for isa in TARGETS["x86"].isas:
        assert resolve(f"x86:{isa.name}", host=fast, precision=precision).isa is isa


@pytest.mark.parametrize(("precision", "isa"), [("fp32", "avx512-vnni"), ("bf16", "avx512-bf16")])
def test_compiling_and_tuning_ask_for_their_precision(precision: str, isa: str, monkeypatch) -> None:
    from halo_tvm.compilation import Compilation
    from halo_tvm.tuning import place

    host = make_host(AVX512 | {"avx512_vnni", "avx512_bf16"})
    for module in (_resolve, _available):
        monkeypatch.setattr(module, "read_host", lambda: host)
    assert Compilation.of(CompileConfig(model="mlp", precision=precision)).target.isa.name == isa
    assert place.place_of(TuneConfig(model=("mlp",), precision=precision)).target.isa.name == isa


def test_fp16_without_half_arithmetic_is_refused_as_before() -> None:
    host = make_host(AVX512 | {"avx512_vnni", "avx512_bf16"})
    with pytest.raises(UsageError, match="x86:avx512-vnni computes fp16 slower than fp32: .* --force-precision"):
        check_precision(resolve("cpu", host=host, precision="fp16"), "fp16")


def test_levels_of_one_precision_are_those_that_serve_it() -> None:
    for spec in TARGETS.values():
        assert not spec.isas[0].taken_for and not spec.isas[0].not_beside, f"{spec.name}: no host would be sure of it"
        for isa in spec.isas:
            assert set(isa.taken_for) <= set(isa.precisions), isa


def test_cpu_on_arm() -> None:
    assert resolve("cpu", host=make_host({"asimd", "asimddp", "asimdhp"}, "aarch64")).name == "arm:neon-dotprod"


def test_cpu_without_a_fitting_level_names_the_missing_features() -> None:
    with pytest.raises(EnvironmentProblem, match=r"host lacks \(bmi2, f16c, fma\): use --target c"):
        resolve("cpu", host=make_host({"avx2"}))
    with pytest.raises(EnvironmentProblem, match="this one is 'riscv64'"):
        resolve("cpu", host=make_host(set(), "riscv64"))
    unread = make_host(set(), "arm64")
    with pytest.raises(EnvironmentProblem, match="does not say what its CPU has, as Linux does .*: use --target c"):
        resolve("cpu", host=unread)
    assert "does not say what its CPU has" in can_run_here(resolve("arm"), unread).reason


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x86", "x86:avx2"),
        ("x86:avx512", "x86:avx512"),
        ("x86-64-v3", "x86:avx2"),
        ("x86-64-v4", "x86:avx512"),
        (" c ", "c"),
        ("arm", "arm:neon"),
        ("arm:neon-i8mm", "arm:neon-i8mm"),
        ("cuda:sm_90", "cuda:sm_90"),
        ("aarch64", "arm:neon"),
        ("x86_64", "x86:avx2"),
        ("raspberry-pi-5", "arm:neon-dotprod"),
        ("apple-m2", "arm:neon-i8mm"),
        ("zen4", "x86:avx512-vnni"),
    ],
)
def test_exact_names(text: str, name: str) -> None:
    assert resolve(text).name == name


def test_native_is_the_host() -> None:
    host = make_host(AVX512 | {"avx512_vnni"})
    assert resolve("native", host=host) == resolve("cpu", host=host)


def test_every_known_name_resolves_and_reaches_tvm() -> None:
    host = make_host(AVX512)
    for name in known_names():
        target = resolve(name, host=host)
        assert target.tvm.kind.name == target.spec.kind, name


def test_unknown_names_list_what_is_known() -> None:
    with pytest.raises(UnknownName, match=r"unknown target 'x68': known are .*x86.*did you mean 'x86'\?"):
        resolve("x68")
    for level in ("avx1024", "avx-vnni", "sse4.2"):
        with pytest.raises(UsageError, match=rf"unknown level of target x86 '{level}': known are avx2, .*--target c$"):
            resolve(f"x86:{level}")
    assert "did you mean" not in str(pytest.raises(UnknownName, resolve, "avx-vnni").value)
    with pytest.raises(UsageError, match="names several"):
        resolve("x86:avx2,x86:avx512")


def test_cuda_is_this_machines_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_resolve, "read_gpus", lambda: (Gpu("a GPU", "sm_89"),))
    assert resolve("cuda").isa.name == "sm_89"
    monkeypatch.setattr(_resolve, "read_gpus", lambda: ())
    assert resolve("cuda").isa.name == "sm_80"


def test_can_run_is_told_apart_from_can_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_available, "read_gpus", lambda: ())
    monkeypatch.setattr(_available.shutil, "which", lambda name: "/bin/g++" if name == "g++" else None)
    monkeypatch.setattr(_available, "no_compiler", lambda arch: f"no nvcc for {arch}")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    host = make_host(AVX2)
    arm, cuda, x86 = resolve("arm"), resolve("cuda:sm_80"), resolve("x86:avx512")
    assert "apt-get install g++-aarch64-linux-gnu" in can_build_here(arm).reason
    assert not can_build_here(arm)
    assert "this host is x86_64" in can_run_here(arm, host).reason
    assert can_build_here(cuda)
    assert "CUDA source, which is compiled when they are loaded: no nvcc for sm_80" in can_build_here(cuda).reason
    assert "no NVIDIA GPU" in can_run_here(cuda, host).reason
    assert can_build_here(x86)
    assert "avx512f" in can_run_here(x86, host).reason
    assert can_run_here(resolve("x86:avx2"), host)
    assert can_run_here(resolve("c"), make_host(set(), "riscv64"))


def test_x86_on_another_machine_needs_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not resolve("x86").linker and "mtriple" not in resolve("x86").tvm.export(), "caches are keyed by it"
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(_available.shutil, "which", lambda name: "/bin/g++" if name == "g++" else None)
    x86 = resolve("x86")
    refused = can_build_here(x86)
    assert not refused and "x86_64-linux-gnu-g++" in refused.reason and "install g++-x86-64-linux-gnu" in refused.reason
    assert x86.tvm.export()["mtriple"] == "x86_64-linux-gnu"
    assert resolve(x86.name) == x86


def test_an_arm_cpu_has_what_the_kernel_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an emulator /proc/cpuinfo tells of the machine that emulates."""
    granted = {16: 1 << 1 | 1 << 10 | 1 << 20, 26: 1 << 13}
    library = SimpleNamespace(getauxval=lambda key: granted[key])
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    assert read_host().flags == {"asimd", "asimdhp", "asimddp", "i8mm"}
    assert resolve("cpu", precision="int8").name == "arm:neon-i8mm"


def test_gpu_of_another_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_available, "read_gpus", lambda: (Gpu("a GPU", "sm_86"),))
    assert can_run_here(resolve("cuda:sm_80"))
    assert "a GPU (sm_86, 99 KiB)" in can_run_here(resolve("cuda:sm_90")).reason
    monkeypatch.setattr(_available, "read_gpus", lambda: (Gpu("a GPU", "sm_120"),))
    assert can_run_here(resolve("cuda:sm_89"))  # from the PTX in the library
    refused = can_run_here(resolve("cuda:sm_90"))
    assert not refused and "needs a GPU of sm_90 or newer, and 227 KiB of shared memory in a block" in refused.reason
    monkeypatch.setattr(_resolve, "read_gpus", lambda: (Gpu("a GPU", "sm_120"),))
    assert resolve("cuda").isa.name == "sm_89"
    monkeypatch.setattr(_available, "read_gpus", lambda: (Gpu("a GPU", "sm_103"),))
    assert can_run_here(resolve("cuda:sm_90"))
    assert not can_run_here(resolve('{"kind": "cuda", "arch": "sm_90a"}'))  # code of its own, no PTX for others


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"kind": "cuda", "arch": "sm_90"}', "cuda:sm_90"),
        ('{"kind": "cuda", "arch": "sm_86", "host": {"kind": "llvm"}, "thread_warp_size": 32}', "cuda:sm_86"),
        ('{"kind": "cuda"}', "cuda:sm_80"),
        ("nvidia/geforce-rtx-3090", "cuda:sm_86"),
        ('{"tag": "nvidia/geforce-rtx-3090"}', "cuda:sm_86"),
        ('{"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512vnni"]}', "x86:avx512-vnni"),
        ('{"kind": "llvm", "mcpu": "generic", "mattr": ["+neon"], "mtriple": "aarch64-linux-gnu"}', "arm:neon"),
        ('{"kind": "llvm", "mcpu": "skylake-avx512", "mattr": ["+avx512vnni"]}', "x86:avx512-vnni"),
        ('{"kind": "llvm", "mcpu": "znver4", "mattr": ["-avx512f"]}', "x86:avx2"),
        ('{"kind": "llvm", "mcpu": "cortex-a76", "mtriple": "aarch64-unknown-linux-gnu"}', "arm:neon-dotprod"),
        ("arm/rk3399", "arm:neon"),
        ('{"kind": "c"}', "c"),
    ],
)
def test_tvm_names(text: str, name: str) -> None:
    assert resolve(text).name == name


@pytest.mark.parametrize(
    ("text", "level", "arch"),
    [
        ('{"kind": "cuda", "arch": "sm_90a", "max_threads_per_block": 512}', "sm_90", "sm_90a"),
        ("nvidia/nvidia-h100", "sm_90", "sm_90a"),
        ("nvidia/jetson-agx-orin-64gb", "sm_80", "sm_87"),
    ],
)
def test_keys_of_its_own_reach_tvm(text: str, level: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "jetson" in text:
        with pytest.raises(UsageError, match="leave out the host"):
            resolve(text)
        return
    target = resolve(text)
    assert (target.isa.name, target.arch, target.tvm.export()["arch"]) == (level, arch, arch)
    assert resolve(target.name) == target and hash(target)
    if "max_threads" in text:
        assert target.tvm.export()["max_threads_per_block"] == 512


@pytest.mark.parametrize(
    "text",
    [
        *(f"{spec.name}:{isa.name}" for spec in TARGETS.values() for isa in spec.isas if len(spec.isas) > 1),
        *(
            json.dumps({"kind": "llvm", "mcpu": isa.mcpu, "mattr": isa.mattr, "num-cores": 64})
            for spec in (TARGETS["x86"], TARGETS["arm"])
            for isa in spec.isas
        ),
        '{"kind": "llvm", "mcpu": "sapphirerapids", "opt-level": 2}',
        "raspberry-pi/4b-aarch64",
        "aws/cpu/c5.large",
    ],
)
def test_the_name_of_a_target_is_that_target(text: str) -> None:
    """Processes that tune and load are told the name alone."""
    target = resolve(text)
    assert resolve(target.name) == target and hash(target)
    assert resolve(target.name).tvm.export() == target.tvm.export()
    said = target.tvm.export().get("num-cores")
    assert said is None or target.cores == said


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"kind": "cuda", "arch": "sm_75"}', UnknownName, "unknown arch of target cuda 'sm_75': known are .*sm_80"),
        ('{"kind": "cuda"', UsageError, "a target in JSON was expected"),
        ('{"arch": "sm_90"}', UsageError, "names its kind"),
        ('{"kind": "opencl"}', UsageError, "targets of kind c, cuda, llvm are served"),
        ('{"kind": "llvm", "mcpu": "znver9"}', UsageError, "LLVM's name was expected .*, found 'znver9'"),
        ('{"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "x86_64-linux-gnu"}', UsageError, "found 'cortex-a72'"),
        ('{"kind": "llvm", "mcpu": "apple-m1", "mtriple": "arm64-apple-macos"}', UsageError, "has the mtriple arm64"),
        ('{"kind": "llvm", "mcpu": "znver3", "num-cores": "4"}', UsageError, "num-cores is a number from 1 on"),
        ("nvidia/nvidia-a1000", UnknownName, "unknown tag of TVM's targets.*did you mean 'nvidia/nvidia-a100'"),
        ('{"kind": "cuda", "arch": "sm_90", "bogus": 1}', UsageError, "correct the JSON"),
    ],
)
def test_refused_tvm_names(text: str, error: type[UsageError], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(text).tvm  # noqa: B018


# What a block may have with the opt-in: the vendor's table of technical specifications per compute capability.
SHARED_KIB = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227}


@pytest.mark.parametrize("arch", SHARED_KIB)
@pytest.mark.parametrize("gpu", SHARED_KIB)
def test_a_library_fits_every_gpu_that_it_is_said_to_run_on(gpu: str, arch: str) -> None:
    assert set(SHARED_KIB) == {isa.name for isa in TARGETS["cuda"].isas}
    level = resolve(f"cuda:{arch}").isa.gpu
    fits = level.shared_bytes_per_block <= SHARED_KIB[gpu] << 10
    assert runs_code_of(gpu, arch) == (fits and int(gpu[3:]) >= int(arch[3:]))
    assert shared_bytes(gpu) == SHARED_KIB[gpu] << 10
    assert runs_code_of(gpu, "sm_80"), "the level of a machine without a GPU is for all of them"


def test_resident_blocks() -> None:
    """Against the vendor's published tables of occupancy."""
    a100, h100, ada = (resolve(f"cuda:{arch}").isa.gpu for arch in ("sm_80", "sm_90", "sm_89"))
    assert a100.resident_blocks(threads=256, registers=32) == 8  # by threads: full
    assert a100.resident_blocks(threads=256, registers=64) == 4  # by registers
    assert a100.resident_blocks(threads=128, registers=32, shared_bytes=40 << 10) == 4  # by shared memory
    assert a100.resident_blocks(threads=128, registers=32, shared_bytes=99 << 10) == 1
    assert a100.resident_blocks(threads=128, registers=32, shared_bytes=100 << 10) == 0  # a block's own limit
    assert a100.blocks_at_once(threads=256, registers=64) == 4 * 108
    assert a100.blocks_at_once(threads=128, registers=32, shared_bytes=100 << 10) == 108  # one of each, for models
    assert h100.resident_blocks(threads=384, registers=168, shared_bytes=200 << 10) == 1
    assert ada.resident_blocks(threads=32, registers=16) == 24  # by blocks


def test_host_reads_cpuinfo() -> None:
    text = "".join(f"processor\t: {n}\nmodel name\t: Some CPU\nflags\t\t: avx2 fma\n\n" for n in range(2))
    assert (read_host(text).model, read_host(text).flags) == ("Some CPU", {"avx2", "fma"})
    assert read_host("Features\t: asimd fp\n").flags == {"asimd", "fp"}
    assert read_host().cores >= 1


def test_caches(tmp_path) -> None:
    for index, (level, kind, text) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "1G")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in (("level", level), ("type", kind), ("size", text)):
            (folder / name).write_text(f"{value}\n")
    assert _host._read_caches(tmp_path) == {1: 48 << 10, 2: 2 << 20, 3: 1 << 30}
    assert _host._read_caches(tmp_path / "none") == {}


def test_levels_grow() -> None:
    for spec in TARGETS.values():
        for smaller, larger in zip(spec.isas, spec.isas[1:]):
            assert smaller.requires <= larger.requires, (smaller, larger)
            assert smaller.vector_bits <= larger.vector_bits
        assert len({isa.name for isa in spec.isas}) == len(spec.isas)
        assert Target(spec, spec.isas[0], 1).key.startswith(f"{spec.kind}-{spec.machine}-")


@pytest.mark.parametrize(
    ("visible", "found"),
    [(None, ("all", "sm_86")), ("1", ("all", "sm_86")), ("", None), ("-1", None), ("GPU-3,GPU-4", ("GPU-3", "sm_90"))],
)
def test_gpus_are_those_that_cuda_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None, found: tuple[str, str] | None
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nif [ "$3" = -i ]; then echo "$4, 9.0"; else echo "all, 8.6"; fi\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [(gpu.name, gpu.arch) for gpu in read_gpus()] == ([found] if found else [])


def test_registers_that_the_system_refuses_are_no_feature_of_the_host(monkeypatch) -> None:
    """A sandbox may keep AMX's registers from a process, whatever /proc/cpuinfo says."""
    monkeypatch.setattr(_host, "_may_use_tiles", lambda: False)
    assert not {"amx_tile", "amx_int8", "amx_bf16"} & read_host().flags
    assert "amx_tile" in read_host("flags : amx_tile avx2").flags, "what is told of another machine is believed"
