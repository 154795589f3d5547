"""Portable C source, compiled by the host's own compiler: any machine, no LLVM, no vector rules."""

from ._target import Isa, TargetSpec

C = TargetSpec(
    name="c",
    description="portable C source, compiled by the system's compiler",
    kind="c",
    machine="any",
    # The C compiler vectorises for its baseline; rules see 128 bits, which every 64-bit machine has.
    isas=(Isa("portable", "", (), frozenset(), vector_bits=128, vector_registers=16),),
    rules=("fallback",),
    runs_on=frozenset(),
    # TVM reads the bits of a number through a pointer of another type, and spells infinity so.
    link_options=("-O3", "-fno-strict-aliasing", "-Dinff=__builtin_inff()", "-Dinf=__builtin_inf()"),
    rounds_constants=True,
    lacks=frozenset({"float16"}),  # TVM writes `half`, which is no type of C
)
