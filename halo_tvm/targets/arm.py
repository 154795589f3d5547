"""64-bit ARM on Linux: NEON, with dot products and int8 matrix products as further levels."""

from ._target import Isa, TargetSpec

_NARROW = ("int8", "int4")
_NEON = frozenset({"asimd"})
_DOTPROD = _NEON | {"asimddp", "asimdhp"}

ARM = TargetSpec(
    name="arm",
    description="64-bit ARM CPUs under Linux",
    kind="llvm",
    own_launcher=True,
    machine="aarch64",
    isas=(
        Isa("neon", "generic", ("+neon",), _NEON, vector_bits=128, vector_registers=32),
        Isa(
            "neon-dotprod",
            "generic",
            ("+v8.2a", "+neon", "+dotprod", "+fullfp16"),
            _DOTPROD,
            vector_bits=128,
            vector_registers=32,
            precisions=_NARROW,
            byte_dot="sdot",
        ),
        Isa(
            "neon-i8mm",
            "generic",
            ("+v8.6a", "+neon", "+dotprod", "+fullfp16", "+i8mm"),
            _DOTPROD | {"i8mm"},
            vector_bits=128,
            vector_registers=32,
            precisions=_NARROW,
            byte_dot="usdot",
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
    runs_on=frozenset({"aarch64", "arm64"}),
    linker="aarch64-linux-gnu-g++",
    linker_package="g++-aarch64-linux-gnu",
    triple="aarch64-linux-gnu",
    l1_bytes=64 << 10,
    l2_bytes=512 << 10,
)
