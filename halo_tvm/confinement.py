"""A process that gives up its rights before it meets a file that nobody vouches for.

`python -m halo_tvm.confinement MODULE POLICY` confines itself as POLICY (JSON) says, then imports MODULE and
calls its `main()`. Only the standard library is loaded before that: a thread that is older than
the confinement would not be bound by it.

What is given up, each where the kernel offers it, each reported by name: writing outside one directory and
reading outside given ones (Landlock), the network (a namespace of its own), starting programs, processes,
sockets and changes to files' metadata (a system call filter), capabilities, memory, processor time, file sizes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

# Without both of these a hostile file could reach the user's files or the network.
NEEDED = ("files", "calls")

_MEMORY_FLOOR = 2 << 30

_SET_NO_NEW_PRIVS = 38
_NEW_NETWORK = 0x40000000
_THREAD = 0x10000  # the flag of clone() that makes a thread, not a process
_DENIED = 0x00050000 | 1  # EPERM
_MISSING = 0x00050000 | 38  # ENOSYS: the C library falls back to an older call that can be judged
_KILLED = 0x80000000
_ALLOWED = 0x7FFF0000
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CAPSET = {"x86_64": 126, "aarch64": 91}

# Calls that are refused, by their numbers on x86_64 and on aarch64 (None: the machine has no such call).
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "bind": (49, 200),
    "listen": (50, 201),
    "socketpair": (53, 199),
    "accept4": (288, 242),
    "sendmmsg": (307, 269),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "truncate": (76, 45),  # Landlock holds it from its third version on only
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "msgget": (68, 186),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_CLONE, _CLONE3, _PRLIMIT, _TGKILL = (56, 220), 435, (302, 261), (234, 131)


@dataclass(frozen=True)
class Policy:
    """What a confined process keeps."""

    directory: str  # the only place it may write to
    readable: tuple[str, ...]  # files and directories it may read, beside the interpreter's own
    memory_bytes: int = _MEMORY_FLOOR  # on top of what the imports take
    cpu_seconds: int = 1200
    file_bytes: int = 64 << 30  # largest file it may write
    open_files: int = 256

    def text(self) -> str:
        """As the command line carries it."""
        return json.dumps(asdict(self))


def confine(policy: Policy) -> dict[str, str]:
    """Confine this process for good; the restrictions that hold by name, each with a sentence fragment.

    Restrictions this kernel lacks are absent from the answer: the caller decides whether it goes on without.
    """
    if sys.platform != "linux":
        return {}
    libc = ctypes.CDLL(None, use_errno=True)
    held = {"limits": _limit(policy)}
    if libc.unshare(_NEW_NETWORK) == 0:
        held["network"] = "a network namespace without devices"
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        held["privileges"] = "no new privileges"
        _try(held, "files", _restrict_files(libc, policy))
        _try(held, "capabilities", _drop_capabilities(libc))
        _try(held, "calls", _filter_calls(libc))
    return held


def limit_memory(extra_bytes: int) -> None:
    """Let the address space grow by `extra_bytes` from here on; called when everything is imported."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as stream:
        now = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra_bytes, now + extra_bytes))


def _try(held: dict[str, str], name: str, answer: str) -> None:
    if answer:
        held[name] = answer


def _limit(policy: Policy) -> str:
    import resource

    wanted = {
        resource.RLIMIT_CPU: policy.cpu_seconds,
        resource.RLIMIT_FSIZE: policy.file_bytes,
        resource.RLIMIT_NOFILE: policy.open_files,
        resource.RLIMIT_NPROC: 4096,  # counts every process of the user; the filter is what stops new ones
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        _soft, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    return f"{policy.cpu_seconds} s of processor time, bounded memory, files and threads"


def _restrict_files(libc: ctypes.CDLL, policy: Policy) -> str:
    """Landlock: read the interpreter, its packages and `readable`; write only `directory`, plain files only."""
    abi = libc.syscall(444, None, 0, 1)
    if abi < 1:
        return ""
    execute, write, read, read_dir, truncate = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14
    remove, make = 3 << 4, 1 << 7 | 1 << 8  # files and directories: no links, devices, pipes or sockets
    every = (1 << 13) - 1  # everything the first version knows
    every |= (1 << 13 if abi >= 2 else 0) | (truncate if abi >= 3 else 0) | (1 << 15 if abi >= 5 else 0)
    network = 3 if abi >= 4 else 0  # bind and connect of TCP
    attributes = struct.pack("QQQ", every, network, 3 if abi >= 6 else 0)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = libc.syscall(444, attributes, len(attributes), 0)
    if ruleset < 0:
        return ""
    for path in [*_interpreter(), *policy.readable]:
        _allow(libc, ruleset, path, (execute | read | read_dir) & every)
    _allow(libc, ruleset, "/dev/null", (read | write) & every)
    _allow(libc, ruleset, policy.directory, (read | read_dir | write | remove | make | truncate) & every)
    done = libc.syscall(446, ruleset, 0) == 0
    os.close(ruleset)
    return f"Landlock {abi}: writes only to a directory of its own, reads only the model and installed packages" * done


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a place this system does not have needs no permission
    if not os.path.isdir(path):
        rights &= 1 | 1 << 1 | 1 << 2 | 1 << 14
    libc.syscall(445, ruleset, 1, struct.pack("=Qi", rights, handle), 0)
    os.close(handle)


def _interpreter() -> Iterable[str]:
    """Where Python, its packages and the system's libraries lie."""
    system = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/proc", "/sys"]
    places = {*system, sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    return sorted(places | {path for path in sys.path if os.path.exists(path)})


def _drop_capabilities(libc: ctypes.CDLL) -> str:
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        return ""
    header = struct.pack("Ii", 0x20080522, 0)  # version 3, this thread
    return "none" * (libc.syscall(number, header, struct.pack("6I", *[0] * 6)) == 0)


def _filter_calls(libc: ctypes.CDLL) -> str:
    """A filter over system calls, for every thread: no programs, processes, sockets, signals, mounts."""
    machine = os.uname().machine
    if machine not in _AUDIT:
        return ""
    program = _program(machine, os.getpid())
    code = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    if libc.syscall(_SECCOMP[machine], 1, 1, header) != 0:  # a filter, for all threads
        return ""
    return "a system call filter: no programs, processes, sockets, signals or changes of metadata"


def _program(machine: str, pid: int) -> bytes:
    """The filter's instructions for the process `pid`: (operation, jump if true, jump if false, operand)."""
    column = 0 if machine == "x86_64" else 1
    load, equal, at_least, any_bit, leave = 0x20, 0x15, 0x35, 0x45, 0x06
    number, arch, argument = 0, 4, lambda i: 16 + 8 * i
    out: list[tuple[int, int, int, int]] = [
        (load, 0, 0, arch),
        (equal, 1, 0, _AUDIT[machine]),
        (leave, 0, 0, _KILLED),
        (load, 0, 0, number),
        (at_least, 0, 1, 0x40000000),
        (leave, 0, 0, _DENIED),  # another numbering of the same calls
        (equal, 0, 1, _CLONE3),
        (leave, 0, 0, _MISSING),
        (equal, 0, 4, _CLONE[column]),
        (load, 0, 0, argument(0)),
        (any_bit, 1, 0, _THREAD),
        (leave, 0, 0, _DENIED),
        (leave, 0, 0, _ALLOWED),
        (equal, 0, 4, _PRLIMIT[column]),
        (load, 0, 0, argument(0)),
        (equal, 1, 0, 0),  # its own limits, only lower
        (leave, 0, 0, _DENIED),
        (leave, 0, 0, _ALLOWED),
        (equal, 0, 4, _TGKILL[column]),
        (load, 0, 0, argument(0)),
        (equal, 1, 0, pid),  # its own threads: so `abort` ends it
        (leave, 0, 0, _DENIED),
        (leave, 0, 0, _ALLOWED),
    ]
    for numbers in _REFUSED.values():
        if numbers[column] is not None:
            out += [(equal, 0, 1, numbers[column]), (leave, 0, 0, _DENIED)]
    out.append((leave, 0, 0, _ALLOWED))
    return b"".join(struct.pack("HBBI", *row) for row in out)


def main(argv: list[str]) -> None:
    """`MODULE POLICY`: confine, then hand over to MODULE's `main(policy, held)`."""
    module, text = argv
    fields: Mapping[str, object] = json.loads(text)
    policy = Policy(**{**fields, "readable": tuple(fields["readable"])})  # type: ignore[arg-type]
    held = confine(policy)
    importlib.import_module(module).main(policy, held)


if __name__ == "__main__":
    main(sys.argv[1:])
