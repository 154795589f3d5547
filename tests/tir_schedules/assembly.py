"""What the k loops of a built kernel consist of, read from its assembly."""

from __future__ import annotations

import re
from collections import Counter

import tvm


def inner_loops(text: str) -> list[list[str]]:
    """Runs of lines from a label to the jump back to it, with no label between."""
    loops: list[list[str]] = []
    label, lines = "", []
    for line in text.splitlines():
        found = re.match(r"(\.LBB\w+):", line)
        if found:
            label, lines = found.group(1), []
            continue
        lines.append(line)
        if label and re.match(rf"\s*j[a-z]+\s+{re.escape(label)}\b", line):
            loops.append(lines)
            lines = []
    return loops


def k_loops(executable: tvm.runtime.Executable, multiplication: str) -> list[Counter[str]]:
    """For each inner loop that multiplies: how often each kind of instruction occurs in it, the busiest loop first.

    Kinds: the `multiplication` itself, "load" (a whole vector), "broadcast", "stack" (a spill or a reload),
    "prefetch", "branch".
    """
    found = []
    for loop in inner_loops(executable.mod.inspect_source("asm")):
        counts: Counter[str] = Counter()
        for line in loop:
            words = line.split()
            if not words or words[0].startswith(("#", ".")):
                continue
            name, operands = words[0], " ".join(words[1:])
            counts[multiplication] += name.startswith(multiplication)
            counts["stack"] += "%rsp" in operands
            # "mov (memory), register"; an operand in memory may also be read by the instruction that uses it.
            counts["load"] += "mov" in name and re.search(r"\(.*\), %[xyz]mm\d+$", operands) is not None
            counts["broadcast"] += "vpbroadcast" in name or "vbroadcast" in name or "{1to" in operands
            counts["prefetch"] += name.startswith("prefetch")
            counts["branch"] += re.match(r"j[a-z]+$", name) is not None
        if counts[multiplication]:
            found.append(counts)
    return sorted(found, key=lambda counts: -counts[multiplication])
