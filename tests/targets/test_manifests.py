"""Every manifest names rules that exist, and builds a function for every level it can build here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te

from halo_tvm.targets import TARGETS, Target, can_build_here, can_run_here, resolve
from halo_tvm.tir_schedules import RULES

LEVELS = [
    f"{spec.name}:{isa.name}" if len(spec.isas) > 1 else spec.name for spec in TARGETS.values() for isa in spec.isas
]
AARCH64 = 183  # e_machine of an ELF file
SHAPE = (4, 96)


def module() -> tvm.IRModule:
    """main(x) = x * 2 + 1 as one call of a PrimFunc."""
    x = te.placeholder(SHAPE, name="x")
    y = te.compute(SHAPE, lambda i, j: x[i, j] * 2.0 + 1.0, name="y")
    bb = relax.BlockBuilder()
    gvar = bb.add_func(te.create_prim_func([x, y]).with_attr("global_symbol", "double_plus_one"), "double_plus_one")
    var = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with bb.function("main", [var]):
        with bb.dataflow():
            out = bb.emit_output(relax.call_tir(gvar, [var], relax.TensorType(SHAPE, "float32")))
        bb.emit_func_output(out)
    return bb.finalize()


def schedule(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Each function by the first rule of the manifest that takes it; GPUs may use TVM's own while ours is missing."""
    from halo_tvm.errors import Declined

    rules = [RULES[name] for name in target.spec.rules if name in RULES]
    if not rules:
        assert target.spec.gpu, f"{target.name}: none of {target.spec.rules} exists"
        with target.tvm:
            return s_tir.dlight.ApplyDefaultSchedule(s_tir.dlight.gpu.Fallback())(mod)
    for gvar, func in mod.functions_items():
        if not isinstance(func, tvm.tirx.PrimFunc):
            continue
        for rule in rules:
            try:
                done = rule.apply(func, target, rule.default(func, target))
            except Declined:
                continue
            mod.update_func(gvar, done.with_attr("global_symbol", func.attrs["global_symbol"]))
            break
        else:
            pytest.fail(f"no rule of {target.name} takes an element-wise function")
    return mod


def build(target: Target) -> relax.VMExecutable:
    mod = schedule(module(), target)
    with target.tvm:
        return relax.build(mod, target=target.tvm)


@pytest.mark.parametrize("level", LEVELS)
def test_builds(level: str, tmp_path: Path) -> None:
    target = resolve(level)
    answer = can_build_here(target)
    if not answer:
        pytest.skip(answer.reason)
    executable = build(target)
    library = tmp_path / "model.so"
    executable.export_library(str(library), **target.export_options())
    assert library.read_bytes()[:4] == b"\x7fELF"
    if can_run_here(target) and not target.spec.gpu:
        x = np.arange(np.prod(SHAPE), dtype="float32").reshape(SHAPE)
        vm = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
        np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), x * 2 + 1)


@pytest.mark.arm
@pytest.mark.parametrize("isa", [isa.name for isa in TARGETS["arm"].isas])
def test_arm_library_is_for_arm(isa: str, tmp_path: Path) -> None:
    target = resolve(f"arm:{isa}")
    library = tmp_path / "model.so"
    build(target).export_library(str(library), **target.export_options())
    assert int.from_bytes(library.read_bytes()[18:20], "little") == AARCH64


def test_c_source_is_portable() -> None:
    kinds = {}
    pending = [build(resolve("c")).mod]
    while pending:
        mod = pending.pop()
        kinds[mod.kind] = mod
        pending += list(mod.imports)
    assert "llvm" not in kinds
    assert "double_plus_one" in kinds["c"].inspect_source("c")


@pytest.mark.parametrize("isa", [isa.name for isa in TARGETS["cuda"].isas])
def test_cuda_source_is_embedded(isa: str) -> None:
    kinds = {}
    pending = [build(resolve(f"cuda:{isa}")).mod]
    while pending:
        mod = pending.pop()
        kinds[mod.kind] = mod
        pending += list(mod.imports)
    assert "__global__" in kinds["cuda"].inspect_source("cuda")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_cuda_source_compiles(tmp_path: Path) -> None:
    """What the receiving machine will do when it loads the library."""
    pending = [build(resolve("cuda:sm_90")).mod]
    while pending:
        mod = pending.pop()
        if mod.kind == "cuda":
            (tmp_path / "kernels.cu").write_text(mod.inspect_source("cuda"))
        pending += list(mod.imports)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-o", str(tmp_path / "kernels.cubin"), str(tmp_path / "kernels.cu")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_vector_width_reaches_the_code() -> None:
    """AVX-512 code uses 512-bit registers where AVX2 code must not."""
    listing = {}
    for level in ("x86:avx2", "x86:avx512"):
        pending = [build(resolve(level)).mod]
        while pending:
            mod = pending.pop()
            if mod.kind == "llvm":
                listing[level] = mod.inspect_source("asm")
            pending += list(mod.imports)
    assert "%ymm" in listing["x86:avx2"] and "%zmm" not in listing["x86:avx2"]
    assert "%zmm" in listing["x86:avx512"]


def test_rules_exist() -> None:
    missing = {name: [rule for rule in spec.rules if rule not in RULES] for name, spec in TARGETS.items()}
    assert not any(missing.values()), f"manifests name rules that no file defines: {missing}"


def test_fallback_is_last() -> None:
    for spec in TARGETS.values():
        assert spec.rules[-1].startswith("fallback"), f"{spec.name}: every function must find a rule"
