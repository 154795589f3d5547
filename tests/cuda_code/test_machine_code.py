"""Machine code without a GPU: what the assembler says, how code gets into a library, what TVM's loader makes of it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from checkpoints import write_checkpoint
from reversing import reverse

from halo_tvm.artifact import Manifest, read_manifest
from halo_tvm.cli.inspect import describe
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.cuda import machine_code, toolkit
from halo_tvm.cuda._ptxas import read_log
from halo_tvm.cuda.embedding import find_machine_code, replace_source
from halo_tvm.cuda.launches import DynamicShared
from halo_tvm.cuda.machine_code import compile_source
from halo_tvm.cuda.sass import instructions
from halo_tvm.cuda.toolkit import find_nvcc, find_tool, no_compiler
from halo_tvm.errors import ArtifactCorrupt, UnsupportedModel
from halo_tvm.targets import resolve

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: install NVIDIA's CUDA toolkit 13")
needs_cuobjdump = pytest.mark.skipif(
    find_tool("cuobjdump") is None, reason="no cuobjdump: pip install nvidia-cuda-cuobjdump"
)

SOURCE = """
extern "C" __global__ void __launch_bounds__(64) indexed(float* x) {
  __shared__ float kept[32];
  float many[64];
  for (int i = 0; i < 64; ++i) many[int(x[i]) & 63] = x[i * 64 + threadIdx.x];
  kept[threadIdx.x % 32] = many[int(x[1]) & 63];
  __syncthreads();
  x[threadIdx.x] = kept[31 - threadIdx.x % 32];
}
extern "C" __global__ void plain(float* x) { x[0] = 1; }
"""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models with symbolic lengths, one per family, each for another GPU."""
    root = tmp_path_factory.mktemp("artifacts")
    made = {}
    for kind, arch in (("gpt2", "sm_90"), ("bert", "sm_80"), ("llama", "sm_100")):
        source = write_checkpoint(root / kind, kind)
        made[arch] = root / f"{kind}.halo"
        options = {"target": f"cuda:{arch}", "precision": "fp16", "validate": False}
        config = CompileConfig(model=str(source), output=str(made[arch]), **options)
        compile_model(config)
    return made


def test_a_log_is_read() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'late' for 'sm_90'
ptxas info    : Function properties for late
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 24 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Compiling entry function 'early' for 'sm_90'
ptxas info    : Function properties for early
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 356 bytes cmem[0]
"""
    early, late = read_log(log, "__global__ void __launch_bounds__(384, 1) late(float* x) {", {"late": 99})
    assert (early.name, early.registers, early.threads, early.shared_bytes, early.spill_load_bytes) == (
        "early",
        8,
        0,
        0,
        0,
    )
    assert (late.threads, late.registers, late.barriers, late.shared_bytes) == (384, 168, 2, 2048)
    assert (late.stack_bytes, late.spill_store_bytes, late.spill_load_bytes) == (24, 8, 12)
    assert late.dynamic_shared_bytes == 99


@needs_nvcc
def test_kernels_are_told_by_the_assembler() -> None:
    made = compile_source(SOURCE, "sm_80", find_nvcc())
    indexed, plain = made.kernels
    assert (plain.name, plain.stack_bytes, plain.shared_bytes, plain.barriers) == ("plain", 0, 0, 0)
    assert (indexed.threads, indexed.shared_bytes, indexed.barriers) == (64, 128, 1)
    assert indexed.stack_bytes == 256, "an array that is indexed by values lives in memory"
    with pytest.raises(UnsupportedModel, match='nvcc .* compiles for sm_80.*identifier "nothing" is undefined'):
        compile_source("__global__ void k() { nothing(); }", "sm_80", find_nvcc())


def test_tools_are_found_among_python_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\ncase "$1" in --version) echo "release 12.1,";; *) echo "sm_80 sm_90";; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr(toolkit, "_TOOLKIT", tmp_path / "none")
    monkeypatch.setattr(toolkit.site, "getsitepackages", lambda: [str(tmp_path)])
    assert find_tool("nvcc") == str(tool)
    assert find_tool("ptxas") is None
    assert no_compiler("sm_90a") == ""
    assert "nvcc 12.1 does not compile for sm_100" in no_compiler("sm_100")
    monkeypatch.setattr(toolkit.site, "getsitepackages", list)
    assert "nvcc is not on this machine" in no_compiler("sm_90")


def test_source_is_replaced_in_its_place_only() -> None:
    def sized(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    def module(form: bytes, code: bytes) -> bytes:
        return sized(b"cuda") + sized(sized(form) + b"table" + sized(code))

    tree = struct.pack("<Q", 1) + bytes(8) + struct.pack("<Q", 2) + bytes(16)
    rest = sized(b"vm") + sized(b"one two") + sized(b"_lib") + module(b"cuda", b"two") + module(b"ptx", b"one")
    body = tree + module(b"cuda", b"one") + rest
    expected = tree + module(b"fatbin", b"MACHINE") + rest
    replaced = replace_source(sized(body), {"one": b"MACHINE"})
    assert replaced == sized(expected)


@pytest.mark.parametrize("behind", [0, 9, 10, 30])
def test_a_magic_number_by_chance_is_no_code(behind: int, tmp_path: Path) -> None:
    (tmp_path / "model.so").write_bytes(bytes(5) + struct.pack("<IH", 0xBA55ED50, 1) + b"\xff" * behind)
    assert find_machine_code(tmp_path / "model.so") == []


def test_dynamic_shared_memory_is_seen() -> None:
    shared = DynamicShared()
    target = resolve("cuda:sm_80")
    func = reverse(64, 256, "shared.dyn").with_attr("global_symbol", "reverse")
    with target.tvm, tvm.transform.PassContext(instruments=[shared]):
        tvm.tirx.build(tvm.IRModule({"reverse": func}), target=target.tvm)
    assert shared.bytes_of == {"reverse_kernel": 1024}


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.sampled(1, 1)
def test_a_library_holds_machine_code(artifacts: dict[str, Path], arch: str) -> None:
    manifest = read_manifest(artifacts[arch])
    device = manifest.reports["build"]["device"]
    assert (device["form"], device["arch"], device["reason"]) == ("fatbin", arch, "")
    assert manifest.variants[0].device_code == "fatbin"
    kernels = {kernel["name"]: kernel for kernel in device["kernels"]}
    assert len(kernels) >= len(manifest.reports["schedule"]["functions"])
    assert all(0 < kernel["registers"] <= 232 and 32 <= kernel["threads"] <= 1024 for kernel in kernels.values())
    assert not any(kernel["spill_store_bytes"] for kernel in kernels.values())
    shown = describe(manifest)
    assert f"machine code and PTX for {arch}, by nvcc" in shown
    assert all(name in shown for name in kernels)
    content = (artifacts[arch] / "model.so").read_bytes()
    assert b"blockIdx.x)" not in content, "the source is not shipped beside its code"


@needs_nvcc
@needs_cuobjdump
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_products_are_on_tensor_cores(artifacts: dict[str, Path], arch: str) -> None:
    """Both of attention, and those of linears, beside which are kernels for one row and for rounding."""
    (code,) = find_machine_code(artifacts[arch] / "model.so")
    kinds: dict[str, list[set[str]]] = {}
    for name, found in instructions(code).items():
        kinds.setdefault(name.split("_kernel")[0], []).append({key.split(".")[0] for key in found})
    for what in ("attention", "linear"):
        served = {name: kernels for name, kernels in kinds.items() if what in name}
        assert served, sorted(kinds)
        for name, kernels in served.items():
            assert any({"HMMA", "LDGSTS"} <= kernel for kernel in kernels), name


@needs_nvcc
@needs_cuobjdump
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_cuobjdump_sees_code_for_that_gpu(artifacts: dict[str, Path], arch: str, tmp_path: Path) -> None:
    (code,) = find_machine_code(artifacts[arch] / "model.so")
    (tmp_path / "kernels.fatbin").write_bytes(code)
    check_code(tmp_path / "kernels.fatbin", arch, read_manifest(artifacts[arch]))


def check_code(fatbin: Path, arch: str, manifest: Manifest) -> None:
    """One piece of machine code and one of PTX, both for `arch`, with every kernel of the manifest's table."""
    command = [find_tool("cuobjdump"), "--list-elf", "--list-ptx", str(fatbin)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [word for word in listed if word.endswith((".cubin", ".ptx"))] == [
        f"kernels.1.{arch}.cubin",
        f"kernels.1.{arch}.ptx",
    ]
    command = [find_tool("cuobjdump"), "--dump-resource-usage", str(fatbin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True)
    said = usage.stdout + usage.stderr
    for kernel in manifest.reports["build"]["device"]["kernels"]:
        after = said.partition(f"Function {kernel['name']}:")[2]
        assert after, f"{kernel['name']} is not in the code"
        assert f"REG:{kernel['registers']} " in after.splitlines()[1]


@pytest.mark.slow
@pytest.mark.sweep  # the tiny one is looked at above
@needs_nvcc
@needs_cuobjdump
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_gpt2(arch: str, tmp_path: Path) -> None:
    output = tmp_path / "gpt2.halo"
    compile_model(CompileConfig(model="gpt2", target=f"cuda:{arch}", output=str(output), validate=False))
    (code,) = find_machine_code(output / "model.so")
    (tmp_path / "kernels.fatbin").write_bytes(code)
    check_code(tmp_path / "kernels.fatbin", arch, read_manifest(output))


@pytest.mark.slow
def test_without_a_compiler_the_source_is_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "find_nvcc", lambda: None)
    monkeypatch.setattr(machine_code, "no_compiler", lambda arch: "nvcc is not on this machine")
    source = write_checkpoint(tmp_path / "gpt2", "gpt2")
    options = {"target": "cuda:sm_86", "output": str(tmp_path / "x.halo"), "validate": False}
    result = compile_model(CompileConfig(model=str(source), **options))
    assert "source for sm_86: nvcc is not on this machine" in str(result)
    manifest = read_manifest(tmp_path / "x.halo")
    assert manifest.variants[0].device_code == "source"
    assert manifest.reports["build"]["device"]["kernels"] == []
    assert "compiled when the library is loaded: nvcc is not on this machine" in describe(manifest)
    assert b"__global__" in (tmp_path / "x.halo" / "model.so").read_bytes()
    assert not find_machine_code(tmp_path / "x.halo" / "model.so")


def test_a_manifest_that_lies_about_its_code_is_refused(artifacts: dict[str, Path]) -> None:
    manifest = read_manifest(artifacts["sm_90"])
    data = json.loads(manifest.encode())
    data["variants"][0]["device_code"] = "magic"
    with pytest.raises(ArtifactCorrupt, match="device_code: expected 'fatbin' or 'source', found 'magic'"):
        Manifest.decode(reseal(data))


def reseal(data: dict[str, object]) -> bytes:
    """`data` as a manifest with a checksum that is right."""
    import hashlib

    data["checksum"] = "0" * 64
    blank = (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
    return blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode())


_LOAD = """
import sys, tvm
found, pending = {}, [tvm.runtime.load_module(sys.argv[1])]
while pending:
    module = pending.pop()
    found[module.kind] = module
    pending += list(module.imports)
assert all(found["cuda"].implements_function(name) for name in sys.argv[2:])
print("kernels", len(sys.argv[2:]))
"""


@needs_nvcc
@pytest.mark.slow
def test_the_loader_takes_it(artifacts: dict[str, Path], tmp_path: Path) -> None:
    """TVM's GPU runtime, with a driver library that answers every call with "no device"."""
    runtime = next((Path(tvm.__file__).parent / "lib").glob("libtvm_runtime_cuda.so"), None)
    cudart = next(Path(find_nvcc().path).resolve().parent.parent.glob("lib*/libcudart.so.13"), None) or next(
        toolkit._TOOLKIT.parent.glob("lib*/libcudart.so.13"), None
    )
    if runtime is None or cudart is None or shutil.which("nm") is None:
        pytest.skip("TVM's GPU runtime needs libcudart.so.13, and the stub nm")
    listed = subprocess.run(["nm", "-D", "--undefined-only", runtime], capture_output=True, text=True, check=True)
    calls = sorted({word for word in listed.stdout.split() if word.startswith("cu") and word[2:3].isupper()})
    (tmp_path / "stub.c").write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in calls))
    stub = tmp_path / "libcuda.so.1"
    subprocess.run(
        ["g++", "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, tmp_path / "stub.c"], check=True
    )
    kernels = [k["name"] for k in read_manifest(artifacts["sm_90"]).reports["build"]["device"]["kernels"]]
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(artifacts["sm_90"] / "model.so"), *kernels],
        env={**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{cudart.parent}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == f"kernels {len(kernels)}", done.stderr[-2000:]
