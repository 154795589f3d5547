"""64-bit x86: AVX2, AVX-512 and AMX levels, linked with the host's compiler."""

from ._target import Isa, TargetSpec

_NARROW = ("bf16", "int8", "int4")  # fp16 is for levels with half arithmetic

_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi2"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

X86 = TargetSpec(
    name="x86",
    description="64-bit x86 CPUs with AVX2, AVX-512 or AMX",
    kind="llvm",
    own_launcher=True,
    machine="x86_64",
    isas=(
        Isa(
            "avx2",
            "x86-64-v3",
            (),
            _AVX2,
            vector_bits=256,
            vector_registers=16,
            precisions=_NARROW,
            byte_dot="vpmaddwd",
        ),
        Isa(
            "avx512",
            "x86-64-v4",
            (),
            _AVX512,
            vector_bits=512,
            vector_registers=32,
            precisions=_NARROW,
            byte_dot="vpmaddwd",
        ),
        Isa(
            "avx512-vnni",
            "x86-64-v4",
            ("+avx512vnni",),
            _AVX512 | {"avx512_vnni"},
            vector_bits=512,
            vector_registers=32,
            precisions=_NARROW,
            byte_dot="vpdpbusd",
        ),
        Isa(
            "avx512-bf16",
            "x86-64-v4",
            ("+avx512vnni", "+avx512bf16"),
            _AVX512 | {"avx512_vnni", "avx512_bf16"},
            vector_bits=512,
            vector_registers=32,
            precisions=_NARROW,
            byte_dot="vpdpbusd",
            bf16_dot=True,
            # float32 has nothing of it: without it, its artifacts run on more hosts and its tuning records count.
            taken_for=_NARROW,
            # CPUs with half arithmetic were measured to run vdpbf16ps at half the rate of float32.
            not_beside=frozenset({"avx512_fp16"}),
        ),
        Isa(
            "avx512-fp16",
            "x86-64-v4",
            ("+avx512vnni", "+avx512bf16", "+avx512fp16"),
            # bf16: levels grow, and all CPUs with fp16 have it.
            _AVX512 | {"avx512_vnni", "avx512_bf16", "avx512_fp16"},
            vector_bits=512,
            vector_registers=32,
            precisions=(*_NARROW, "fp16"),
            half_arithmetic=True,
            byte_dot="vpdpbusd",
            taken_for=("fp16",),
        ),
        Isa(
            "avx512-amx",
            "x86-64-v4",
            ("+avx512vnni", "+avx512bf16", "+avx512fp16", "+amx-tile", "+amx-int8", "+amx-bf16"),
            _AVX512 | {"avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"},
            vector_bits=512,
            vector_registers=32,
            precisions=(*_NARROW, "fp16"),
            half_arithmetic=True,
            byte_dot="vpdpbusd",
            tiles=True,
            taken_for=("bf16", "int8", "int4"),
        ),
    ),
    rules=(
        "decode_attention",
        "flash_attention",
        "recurrence",
        "state_loop",
        "gemm",
        "experts",
        "batched_matmul",
        "convolution_winograd",
        "convolution",
        "channelwise",
        "row_reduction",
        "elementwise",
        "search",
        "fallback",
    ),
    runs_on=frozenset({"x86_64", "AMD64"}),
    linker="x86_64-linux-gnu-g++",
    linker_package="g++-x86-64-linux-gnu",
    # At home LLVM finds it by itself, and caches are keyed by what it is told.
    cross_triple="x86_64-linux-gnu",
)
