#!/usr/bin/env python3
"""Do the tests notice? Makes one small fault at a time in a copy of this checkout and runs the tests that should fail.

    python scripts/mutation_check.py                  # all of _mutants.py
    python scripts/mutation_check.py --only memory    # those whose file or change holds the word

Exit code 1 when a fault survives: its tests pass in spite of it. The tests also run once without a fault.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900  # a fault may also make a test hang


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a word of the file or of the change")
    parser.add_argument("--unchanged", action="store_true", help="only run each set of tests without a fault")
    args = parser.parse_args()
    mutants = [m for m in MUTANTS if args.only in f"{m.file} {m.before} {m.after}"]
    for mutant in mutants:
        check(mutant)
    survived = broken = 0
    with tempfile.TemporaryDirectory(prefix="halo-tvm-mutants-") as directory:
        copy = Path(directory)
        for part in ("halo_tvm", "tests", "scripts", "docs", "pyproject.toml", "setup.py", "README.md"):
            source = ROOT / part
            ignored = shutil.ignore_patterns("__pycache__")
            (shutil.copytree(source, copy / part, ignore=ignored) if source.is_dir() else shutil.copy(source, copy))
        for tests in dict.fromkeys(m.tests for m in mutants):
            if run(copy, tests) != 0:
                broken += 1
                print(f"FAILS WITHOUT A FAULT   {tests}", flush=True)
        for mutant in [] if args.unchanged else mutants:
            path = copy / "halo_tvm" / mutant.file
            text = path.read_text()
            path.write_text(text.replace(mutant.before, mutant.after))
            began = time.monotonic()
            noticed = run(copy, f"{mutant.tests} -x") != 0
            path.write_text(text)
            survived += not noticed
            said = "noticed " if noticed else "SURVIVED"
            print(
                f"{said} {time.monotonic() - began:5.0f} s  {mutant.file}: {mutant.before} -> {mutant.after}",
                flush=True,
            )
    print(f"{len(mutants) - survived} of {len(mutants)} noticed")
    return 1 if survived or broken else 0


def check(mutant: Mutant) -> None:
    """End with a sentence when the code has moved on and the fault has no place any more."""
    found = (ROOT / "halo_tvm" / mutant.file).read_text().count(mutant.before)
    if found != 1:
        sys.exit(
            f"expected {mutant.before!r} once in halo_tvm/{mutant.file}, found it {found} times: correct _mutants.py"
        )


def run(copy: Path, tests: str) -> int:
    """pytest's exit code; 1 for tests that do not end."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--slow", "-p", "no:cacheprovider", *shlex.split(tests)]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
