"""Records and targets for the tests of the log, and a process that writes them."""

import os
import subprocess
import sys
from dataclasses import replace

from halo_tvm.records import Fingerprint, Record, Size, TuningLog

ISAS = ("small", "middle", "large")


def fingerprint(isa="middle", cores=2):
    return Fingerprint("llvm", "x86_64", isa, ISAS, cores, 32 << 10, 1 << 20, 32 << 20)


def record(workload="w0", *, isa="middle", cores=2, low=1.1, tile=8, version=1, outcome="improved", **changes):
    made = Record(
        workload=workload,
        readable="linear[m,8]",
        rule="toy",
        rule_version=version,
        decision={"tile": tile},
        outcome=outcome,
        target=fingerprint(isa, cores).facts(),
        versions={"halo_tvm": "0"},
        sizes=(Size((8,), 1.0),),
        candidate_us=((1.0, 1.1),),
        default_us=((1.2, 1.3),),
        speedup=low + 0.1,
        speedup_low=low,
        timestamp="2026-01-01T00:00:00Z",
    )
    return replace(made, **changes)


def file_of(directory, isa="middle"):
    return directory / f"llvm-x86_64-{isa}" / "records.jsonl"


def open_log(directory, **target):
    return TuningLog.open([directory], fingerprint(**target))


HERE = os.path.dirname(os.path.abspath(__file__))
WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from log_lines import fingerprint, record
from halo_tvm.records.log import commit
for i in range(int(sys.argv[4])):
    name, long = f"{sys.argv[3]}-{i}", "x" * 5000
    trials = [record(name, message=long, outcome="measured"), record(name, tile=4, message=long, outcome="crash")]
    commit(Path(sys.argv[2]), fingerprint(), [record(name, message=long), *trials])
    print(i, flush=True)
"""


def writer(directory, name, count):
    """A process that commits a winner and two trials `count` times, and prints the number of each."""
    command = [sys.executable, "-c", WRITER, HERE, str(directory), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
