"""Load, run and close artifacts again and again: within 2 s the process is as it was before.

    python scripts/load_and_close.py --cycles 300

A net is loaded and closed, and a language model. Compared are threads, open descriptors, mapped files, files in the
directory for temporary ones, and memory, after ten cycles and after all. The tests have a short form.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import halo_tvm
from halo_tvm.config import CompileConfig

FIRST = 10  # cycles after which whatever is made once is there
WITHIN_S = 2.0
MEMORY_MB = 16  # what allocators keep varies by a few
State = dict[str, int]


def state() -> State:
    """What this process has now."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as stream:
        mapped = sum("/" in line for line in stream)
    with open("/proc/self/statm", encoding="ascii") as stream:
        resident = int(stream.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mapped files": mapped,
        "temporary files": len(os.listdir(tempfile.gettempdir())),
        "MB": resident,
    }


def more(before: State, after: State) -> list[str]:
    """What `after` has more of than `before`, in words."""
    allowed = {"MB": MEMORY_MB}
    return [f"{after[k]} {k}, {n} before" for k, n in before.items() if after[k] > n + allowed.get(k, 0)]


def cycles(cycle: Callable[[], None], count: int, within_s: float = WITHIN_S) -> tuple[State, State]:
    """What there was after the first cycles, and what there is `within_s` after the last, or once it is no more."""
    for _ in range(FIRST):
        cycle()
    gc.collect()
    time.sleep(WITHIN_S)
    before = state()
    for _ in range(count):
        cycle()
    gc.collect()
    deadline = time.monotonic() + within_s
    while more(before, state()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return before, state()


def net(path: Path) -> Callable[[], None]:
    """One load, run and close of an artifact."""

    def cycle() -> None:
        with halo_tvm.load(str(path)) as module:
            module(**module.example_inputs())

    return cycle


def language_model(path: Path) -> Callable[[], None]:
    """One load, answer and close of a language model."""

    def cycle() -> None:
        with halo_tvm.LanguageModel.load(path, context=64) as model:
            model.prefill(range(4))
            model.decode(4)

    return cycle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=300)
    options = parser.parse_args()
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]
    from checkpoints import write_checkpoint

    left = []
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = str(Path(folder) / "temporary")
        os.mkdir(tempfile.tempdir)
        sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
        tiny = write_checkpoint(Path(folder) / "tiny", "llama", vocab_size=64, intermediate_size=48, **sizes)
        for name, model, cycle in (("mlp", "mlp", net), ("language model", str(tiny), language_model)):
            path = Path(folder) / f"{name}.halo"
            halo_tvm.compile_model(CompileConfig(model=model, output=str(path), records=False))
            before, after = cycles(cycle(path), options.cycles)
            print(f"{name}, {options.cycles} cycles: before {before}, after {after}")
            left += more(before, after)
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
