"""What the inner loops of a built kernel consist of, read from its assembly."""

from __future__ import annotations

import re
from collections import Counter

import tvm


def inner_loops(text: str) -> list[list[str]]:
    """The instructions from a label to the jump back to it, with no label between."""
    loops: list[list[str]] = []
    label, lines = "", []
    for line in map(str.strip, text.splitlines()):
        found = re.match(r"(\.LBB\w+):", line)
        if found:
            label, lines = found.group(1), []
        elif line and not line.startswith(("#", ".", "//")):
            lines.append(line)
            if label and re.match(rf"(j[a-z]+|b\.[a-z]+|cbn?z\s+\w+,)\s+{re.escape(label)}\b", line):
                loops.append(lines)
                lines = []
    return loops


def k_loops(executable: tvm.runtime.Executable, multiplication: str) -> list[Counter[str]]:
    """For each inner loop that multiplies: how often each kind of instruction occurs in it, the busiest loop first.

    Kinds: the `multiplication` itself, "load" (a whole vector), "broadcast", "stack" (a spill or a reload), "vector"
    (one of a vector), "prefetch", "branch", and "all" of them with what is of no kind.
    """
    found = []
    text = executable.mod.inspect_source("asm")
    # %rbp holds data unless some function makes it the address of its frame.
    stack = re.compile(r"%r[sb]p" if "%rsp, %rbp" in text else "%rsp")
    for loop in inner_loops(text):
        counts: Counter[str] = Counter(all=len(loop))
        for line in loop:
            name, *operands = line.split(maxsplit=1)
            operands = " ".join(operands)
            on_stack = stack.search(operands) is not None
            counts[multiplication] += name.startswith(multiplication)
            counts["stack"] += on_stack
            counts["vector"] += on_stack and "mm" in operands
            # "mov (memory), register"; an operand in memory may also be read by the instruction that uses it.
            counts["load"] += "mov" in name and re.search(r"\(.*\), %[xyz]mm\d+$", operands) is not None
            counts["broadcast"] += "vpbroadcast" in name or "vbroadcast" in name or "{1to" in operands
            counts["prefetch"] += name.startswith("prefetch")
            counts["branch"] += re.match(r"j[a-z]+$", name) is not None
        if counts[multiplication]:
            found.append(counts)
    return sorted(found, key=lambda counts: -counts[multiplication])
