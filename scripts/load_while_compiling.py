"""Load an artifact again and again while another process compiles to the same path: every load must be whole.

    python scripts/load_while_compiling.py --loads 1000

Models of two seeds take turns at the path. A load is whole when its outputs are those of one of the two. The tests
have a short form, in which the artifact is replaced at each moment of one load.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

import halo_tvm
from halo_tvm.config import CompileConfig
from halo_tvm.errors import HaloError

MODEL = "mlp"


def compile_seed(path: Path, seed: int) -> None:
    halo_tvm.compile_model(CompileConfig(model=MODEL, output=str(path), seed=seed))


def compile_in_turns(path: Path, stop: Event) -> None:
    compiled = 0
    while not stop.is_set():
        compiled += 1
        compile_seed(path, compiled % 2)
    print(f"{compiled} compiles")


def outputs_of(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with halo_tvm.load(str(path), threads=1) as module:
        found = module(**inputs)
    return found[0] if isinstance(found, tuple) else found


def what_a_load_found(path: Path, inputs: dict[str, np.ndarray], wanted: list[np.ndarray]) -> str:
    try:
        found = outputs_of(path, inputs)
    except HaloError as error:
        return str(error)
    return next((f"seed {i}" for i, y in enumerate(wanted) if np.array_equal(found, y)), "outputs of neither")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, wanted = Path(folder) / "x.halo", []
        for seed in (0, 1):
            compile_seed(path, seed)
            with halo_tvm.load(str(path)) as module:
                inputs = module.example_inputs(seed=7)
            wanted.append(outputs_of(path, inputs))
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        compiler = context.Process(target=compile_in_turns, args=(path, stop))
        compiler.start()
        found = Counter(what_a_load_found(path, inputs, wanted) for _ in range(options.loads))
        stop.set()
        compiler.join()
    for what, count in found.most_common():
        print(f"{count:6d} {what}")
    return int(set(found) != {"seed 0", "seed 1"})


if __name__ == "__main__":
    sys.exit(main())
