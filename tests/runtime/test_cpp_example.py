"""The program of examples/cpp: an artifact loaded and run by TVM's runtime and FFI from C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tiny
import tvm
import tvm_ffi

from halo_tvm.runtime import load

SOURCE = Path(__file__).parents[2] / "examples" / "cpp" / "run_artifact.cc"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    tvm_root, ffi_root = (Path(package.__file__).parent for package in (tvm, tvm_ffi))
    libraries = [str(tvm_root / "lib"), str(ffi_root / "lib")]
    built = tmp_path_factory.mktemp("cpp") / "run_artifact"
    words = ["g++", "-std=c++17", "-Wall", "-Werror", str(SOURCE), "-o", str(built), f"-I{ffi_root / 'include'}"]
    words += [f"-L{path}" for path in libraries]
    words += ["-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi", f"-Wl,-rpath,{':'.join(libraries)}"]
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
    return built


def test_outputs_are_those_of_the_session(program: Path, tmp_path: Path) -> None:
    artifact = tiny.write_tiny(tmp_path / "t.halo")
    with load(artifact, threads=1) as module:
        inputs = module.example_inputs(sizes={"batch": 3})
        expected = module(**inputs)
        names = [spec.name for spec in module.output_specs]
    words = []
    for name, array in inputs.items():
        array.tofile(tmp_path / f"{name}.in")
        words += ["x".join(map(str, array.shape)), f"{name}.in"]
    done = subprocess.run(
        [str(program), str(artifact), "1", *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"y: 3 {tiny.N}"
    for name, array in zip(names, expected, strict=True):
        found = np.fromfile(tmp_path / f"{name}.bin", array.dtype).reshape(array.shape)
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "found 0 words"),
        (["nothing", "1"], "expected the file nothing/manifest.json"),
        (["t.halo", "1", f"3x{tiny.K}", "x"], "for each of 3 inputs, found 2 words"),
        (["t.halo", "1", "3x7", "x", "3", "x", "3x1", "x"], "expected 84 bytes of 3x7 in x, found 4"),
    ],
)
def test_mistakes_are_said(program: Path, tmp_path: Path, words: list[str], said: str) -> None:
    tiny.write_tiny(tmp_path / "t.halo")
    (tmp_path / "x").write_bytes(b"1234")
    done = subprocess.run([str(program), *words], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1 and said in done.stderr
