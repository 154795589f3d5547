"""A host that has what docs/runtime.md asks for and no more: what runs there, and what says which package it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from halo_tvm.errors import MissingPackage

NEEDED = ("halo_tvm", "numpy", "numpy.libs", "tvm_ffi", "typing_extensions.py", "ml_dtypes")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name in NEEDED:
        found = find_spec(name.removesuffix(".py").removesuffix(".libs"))
        assert found is not None and found.origin is not None
        path = Path(found.origin) if name.endswith(".py") else Path(found.origin).parent
        path = path.with_name(name)
        if path.exists():  # not every platform's NumPy has libraries beside it
            (folder / name).symlink_to(path)
    library = Path(str(find_spec("tvm").origin)).with_name("lib") / "libtvm_runtime.so"
    (folder / "tvm" / "lib").mkdir(parents=True)
    (folder / "tvm" / "lib" / library.name).symlink_to(library)
    return folder


def halo_tvm(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-S", "-m", "halo_tvm", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.mark.parametrize("verb", ["validate", "inspect", "bench", "profile"])
@pytest.mark.sampled(1)
def test_artifacts_are_served(site: Path, artifact: Path, verb: str) -> None:
    quick = {"bench": ("--rounds", "5"), "profile": ("--rounds", "2")}
    done = halo_tvm(site, verb, str(artifact), *quick.get(verb, ()))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "gpt2" in done.stdout


@pytest.mark.parametrize(
    "words",
    [("compile", "--model", "mlp", "-o", "mlp.halo"), ("tune", "--model", "mlp"), ("operators",)],
    ids=lambda words: words[0],
)
def test_what_needs_the_compiler_says_so(site: Path, words: tuple[str, ...]) -> None:
    done = halo_tvm(site, *words)
    assert done.returncode == MissingPackage.exit_code
    needed = f"halo-tvm {words[0]} needs the package 'apache-tvm', which is not installed: run `pip install halo_tvm`"
    assert done.stderr.strip() == f"halo-tvm: error: {needed}"
