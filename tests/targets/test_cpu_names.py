"""The table of CPUs says of each what LLVM does, and forgets none that a level serves."""

from __future__ import annotations

import pytest
import tvm
from tvm.target import codegen

from halo_tvm.errors import UsageError
from halo_tvm.targets import TARGETS, resolve
from halo_tvm.targets._cpu_names import _NICKNAMES, level_of_cpu
from halo_tvm.targets._tvm_keys import llvm_feature

MACHINES = {"x86": "x86_64-linux-gnu", "arm": "aarch64-linux-gnu"}
OF_ALL = "generic"


def features(name: str, mcpu: str, mattr: tuple[str, ...] = ()) -> set[str]:
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "mattr": list(mattr), "mtriple": MACHINES[name]})
    return set(map(str, codegen.llvm_get_cpu_features(target)))


@pytest.mark.parametrize("name", MACHINES)
def test_levels_are_those_of_llvms_features(name: str) -> None:
    any_of_it = tvm.target.Target({"kind": "llvm", "mcpu": OF_ALL, "mtriple": MACHINES[name]})
    # LLVM's second spellings for compilers ("core_4th_gen_avx") are no CPU's name, those of 32 bits no target's.
    cpus = {str(cpu) for cpu in codegen.llvm_get_cpu_archlist(any_of_it) if "_" not in str(cpu)} - {OF_ALL}
    served = 0
    for cpu in sorted(cpus):
        has = features(name, cpu)
        if name == "x86" and "64bit" not in has:
            continue
        levels = [isa.name for isa in TARGETS[name].isas if {llvm_feature(flag) for flag in isa.requires} <= has]
        assert level_of_cpu(cpu) == (name, levels[-1] if levels else ""), cpu
        served += bool(levels)
    assert served > 30


@pytest.mark.parametrize("name", MACHINES)
def test_features_are_named_as_llvm_names_them(name: str) -> None:
    for isa in TARGETS[name].isas:
        assert {llvm_feature(flag) for flag in isa.requires} <= features(name, isa.mcpu, isa.mattr), isa


def test_nicknames_are_of_cpus_that_are_known() -> None:
    for nickname in _NICKNAMES:
        assert level_of_cpu(nickname), nickname
    assert level_of_cpu("Raspberry_Pi_4") == ("arm", "neon")
    assert level_of_cpu("anything") is None


@pytest.mark.parametrize(
    ("cpu", "levels"),
    [
        ("znver4", {"fp32": "vnni", "bf16": "bf16"}),
        ("sapphirerapids", {"fp32": "vnni", "fp16": "fp16", "int8": "amx"}),
        ("novalake", {"bf16": "vnni", "fp16": "fp16"}),  # half arithmetic comes with slow products of bfloat16
    ],
)
def test_the_name_of_a_cpu_is_what_cpu_is_on_it(cpu: str, levels: dict[str, str]) -> None:
    for text in (cpu, f'{{"kind": "llvm", "mcpu": "{cpu}"}}'):
        found = {precision: resolve(text, precision=precision).name for precision in levels}
        assert found == {precision: f"x86:avx512-{level}" for precision, level in levels.items()}


@pytest.mark.parametrize("text", ["nehalem", "x86-64-v2", '{"kind": "llvm", "mtriple": "x86_64-linux-gnu"}'])
def test_a_cpu_below_the_smallest_level_is_led_to_c(text: str) -> None:
    with pytest.raises(UsageError, match=r"target x86 needs a CPU with avx2, bmi2, f16c, fma, and .*: use --target c"):
        resolve(text)
