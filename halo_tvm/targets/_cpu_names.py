"""CPUs by the names that LLVM, clouds and vendors give them, and the largest level that each has.

LLVM is not asked, as it comes with TVM: that takes seconds to import, and names are read without. Tests compare.
"""

from __future__ import annotations

import functools

# By manifest and level, as LLVM's -mcpu spells them; its other spellings have "_" for "-".
_LEVELS = {
    "x86": {
        "avx2": "alderlake arrowlake arrowlake-s bdver4 broadwell clearwaterforest core-avx2 gracemont grandridge "
        "haswell knl knm lunarlake meteorlake pantherlake raptorlake sierraforest skylake wildcatlake x86-64-v3 znver1 "
        "znver2 znver3",
        "avx512": "cannonlake skx skylake-avx512 x86-64-v4",
        "avx512-vnni": "cascadelake icelake-client icelake-server rocketlake tigerlake",
        "avx512-bf16": "cooperlake znver4 znver5",
        "avx512-fp16": "novalake",
        "avx512-amx": "diamondrapids emeraldrapids graniterapids graniterapids-d sapphirerapids",
    },
    "arm": {
        "neon": "a64fx apple-a10 apple-a11 apple-a12 apple-a7 carmel cortex-a34 cortex-a35 cortex-a53 cortex-a57 "
        "cortex-a72 cortex-a73 exynos-m3 falkor kryo saphira thunderx thunderx2t99 thunderx3t110 thunderxt81 "
        "thunderxt83 thunderxt88",
        "neon-dotprod": "apple-a13 apple-a14 apple-m1 cortex-a55 cortex-a65 cortex-a65ae cortex-a75 cortex-a76 "
        "cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae cortex-a78c cortex-r82 cortex-r82ae cortex-x1 cortex-x1c "
        "exynos-m4 exynos-m5 neoverse-e1 neoverse-n1 tsv110",
        "neon-i8mm": "ampere1 ampere1a ampere1b ampere1c apple-a15 apple-a16 apple-a17 apple-m2 apple-m3 apple-m4 "
        "apple-m5 c1-nano c1-premium c1-pro c1-ultra cobalt-100 cortex-a320 cortex-a510 cortex-a520 cortex-a520ae "
        "cortex-a710 cortex-a715 cortex-a720 cortex-a720ae cortex-a725 cortex-x2 cortex-x3 cortex-x4 cortex-x925 "
        "fujitsu-monaka gb10 grace neoverse-512tvb neoverse-n2 neoverse-n3 neoverse-v1 neoverse-v2 neoverse-v3 "
        "neoverse-v3ae olympus oryon-1",
    },
}
# Those of 64 bits that have less than the smallest level.
_TOO_SMALL = {
    "x86": "amdfam10 athlon-fx athlon64 athlon64-sse3 atom barcelona bdver1 bdver2 bdver3 bonnell btver1 btver2 "
    "core-avx-i core2 corei7 corei7-avx goldmont goldmont-plus ivybridge k8 k8-sse3 nehalem nocona opteron "
    "opteron-sse3 penryn sandybridge silvermont slm tremont westmere x86-64 x86-64-v2",
}
_NICKNAMES = {
    "graviton": "cortex-a72",
    "graviton2": "neoverse-n1",
    "graviton3": "neoverse-v1",
    "graviton4": "neoverse-v2",
    "ampere-altra": "neoverse-n1",
    "ampereone": "ampere1",
    **{
        f"{board}{n}": cpu
        for board in ("raspberry-pi-", "rpi")
        for n, cpu in ((3, "cortex-a53"), (4, "cortex-a72"), (5, "cortex-a76"))
    },
    **{f"zen{n}": f"znver{n}" for n in range(1, 6)},
}


def level_of_cpu(name: str) -> tuple[str, str] | None:
    """The manifest and the level of the CPU `name`, the level empty where the CPU has none; None: no CPU's name."""
    plain = name.lower().replace("_", "-")
    return _by_name().get(_NICKNAMES.get(plain, plain))


@functools.cache
def _by_name() -> dict[str, tuple[str, str]]:
    named = {
        cpu: (spec, level) for spec, levels in _LEVELS.items() for level, cpus in levels.items() for cpu in cpus.split()
    }
    return named | {cpu: (spec, "") for spec, cpus in _TOO_SMALL.items() for cpu in cpus.split()}
