"""The process that reads MetaSchedule's workloads: lines on its input, an answer to each on its output.

Started by `import_metaschedule` through `halo_tvm.confinement`, because TVM's reader may end the process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from ..confinement import Policy, limit_memory

# What TVM's reader and our own reading of a stranger's function may raise; TVM's errors are RuntimeErrors.
_UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def main(policy: Policy, held: Mapping[str, str]) -> None:
    """Answer every line; whatever TVM prints does not get among the answers."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import tvm  # noqa: F401  # before memory is limited

    limit_memory(policy.memory_bytes)
    for line in sys.stdin.buffer:
        try:
            answer = _described(line)
        except _UNREADABLE as error:
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"[:300]}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


def _described(line: bytes) -> dict[str, object]:
    """What a record keeps of the workload in one line of MetaSchedule's file."""
    from tvm import tirx
    from tvm.s_tir import meta_schedule as ms

    from .workload import describe, family_of, workload_key

    value = json.loads(line)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(part, str) for part in value):
        raise ValueError("a hash and a module were expected")
    functions = [f for _, f in ms.database.Workload.from_json(value).mod.functions_items()]
    if len(functions) != 1 or not isinstance(functions[0], tirx.PrimFunc):
        raise ValueError(f"one PrimFunc was expected, found {len(functions)} functions")
    family, extents = family_of(functions[0])
    key, readable = workload_key(functions[0]), describe(functions[0])
    return {"workload": key, "readable": readable, "family": family, "extents": list(extents)}
