"""What the filter over system calls and Landlock refuse, read out of what the kernel is given: on any host."""

from __future__ import annotations

import struct

import pytest

from halo_tvm import confinement
from halo_tvm.confinement import Policy

PID = 4711
NUMBERS = {  # call -> (x86_64, aarch64), from the kernel's tables
    "rt_sigqueueinfo": (129, 138),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "truncate": (76, 45),
    "shmget": (29, 194),
    "execve": (59, 221),
    "socket": (41, 198),
}
READ, CLONE, PRLIMIT, TGKILL = (0, 63), (56, 220), (302, 261), (234, 131)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def answer(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the filter says to a call, by carrying out its instructions."""
    data = struct.pack("<IIQ6Q", number, MACHINES[machine][1] if arch is None else arch, 0, *[*arguments, *[0] * 6][:6])
    rows = list(struct.iter_unpack("HBBI", confinement._program(machine, PID)))
    at = value = 0
    while True:
        operation, yes, no, operand = rows[at]
        if operation == 0x06:
            return operand
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
            at += 1
            continue
        holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
        at += 1 + (yes if holds else no)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_what_reaches_beyond_the_process(machine: str) -> None:
    column = MACHINES[machine][0]
    denied, allowed = confinement._DENIED, confinement._ALLOWED
    assert {name: answer(machine, n[column]) for name, n in NUMBERS.items()} == dict.fromkeys(NUMBERS, denied)
    assert answer(machine, READ[column]) == allowed
    assert answer(machine, TGKILL[column], PID) == allowed and answer(machine, TGKILL[column], PID + 1) == denied
    assert answer(machine, PRLIMIT[column], 0) == allowed and answer(machine, PRLIMIT[column], 1) == denied
    assert answer(machine, CLONE[column], 0x10000) == allowed and answer(machine, CLONE[column], 0) == denied
    assert answer(machine, READ[column], arch=0x40000003) == confinement._KILLED  # 32-bit numbers of calls


class Kernel:
    """A libc whose Landlock is of version `abi`; it notes what it is asked for."""

    def __init__(self, abi: int) -> None:
        self.abi, self.handled, self.rules = abi, 0, []

    def syscall(self, number: int, first: object, second: object, *rest: object) -> int:
        if number == 444 and first is None:
            return self.abi
        if number == 444:
            self.handled = struct.unpack_from("Q", first)[0]
            return 3
        if number == 445:
            self.rules.append(struct.unpack("=Qi", rest[0])[0])
        return 0


@pytest.mark.parametrize("abi", range(1, 7))
def test_landlock_of_every_version_is_asked_for_all_that_it_knows(
    abi: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement.os, "close", lambda handle: None)
    monkeypatch.setattr(confinement.os, "open", lambda path, flags: 9)
    kernel = Kernel(abi)
    assert f"Landlock {abi}" in confinement._restrict_files(kernel, Policy(str(tmp_path), ()))
    write, truncate = 1 << 1, 1 << 14
    assert kernel.handled & write and bool(kernel.handled & truncate) == (abi >= 3)
    assert bool(kernel.handled & 1 << 13) == (abi >= 2) and bool(kernel.handled & 1 << 15) == (abi >= 5)
    *others, null, home = kernel.rules
    assert not any(rights & (write | truncate) for rights in others), "only its own directory may be written to"
    assert null & write and home & write and bool(home & truncate) == (abi >= 3)
