"""libxsmm on the MLP: its JIT kernels on tiles of 64 x 64, weights packed once, bias and ReLU on the warm tile.

The library as Debian packs it is static and has no GEMM for large matrices of its own, so a few lines of C
loop over the tiles; they are compiled when the model is loaded.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..errors import MissingPackage, PeerFailed
from .protocol import LoadRequest, serve

TILE = 64
INSTALL = "apt-get install libxsmm-dev g++"
DRIVER = """
#include <libxsmm.h>
/* y[rows, n] = relu(x[rows, k] * w + b), w packed as [n / 64][k][64]; column-major to libxsmm, so transposed. */
extern "C" void layer(const float* x, const float* w, const float* b, float* y, int rows, int n, int k, int threads) {
  const int tile = 64;
  const float alpha = 1, beta = 0;
  const int flags = LIBXSMM_GEMM_FLAG_NONE;
  const libxsmm_blasint lda = tile, ldb = k, ldc = n;
  const int full = rows / tile * tile;
  const libxsmm_smmfunction whole = libxsmm_smmdispatch(tile, tile, k, &lda, &ldb, &ldc, &alpha, &beta, &flags, 0);
  const libxsmm_smmfunction rest =
      full == rows ? whole : libxsmm_smmdispatch(tile, rows - full, k, &lda, &ldb, &ldc, &alpha, &beta, &flags, 0);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
  for (int j = 0; j < n / tile; ++j)
    for (int i = 0; i < rows; i += tile) {
      float* out = y + (size_t)i * n + j * tile;
      (i < full ? whole : rest)(w + (size_t)j * k * tile, x + (size_t)i * k, out);
      for (int r = 0; r < (i < full ? tile : rows - full); ++r)
        for (int c = 0; c < tile; ++c) {
          const float v = out[(size_t)r * n + c] + b[j * tile + c];
          out[(size_t)r * n + c] = v > 0 ? v : 0;
        }
    }
}
"""


class Libxsmm:
    """The built-in MLP only: widths that are multiples of the tile."""

    version = "1.17"

    def load(self, request: LoadRequest) -> None:
        from safetensors.numpy import load_file

        description = json.loads((Path(request.model) / "model.json").read_text(encoding="utf-8"))
        width = description["config"].get("width", 0)
        if description["family"] != "mlp" or width % TILE:
            raise PeerFailed(
                f"expected the built-in mlp with a width that is a multiple of {TILE}, found "
                f"{description['family']!r}: libxsmm is a library of matrix products; use --vs onnxruntime"
            )
        self.layers, self.width, self.threads = description["config"]["layers"], width, request.threads
        self.input, self.output = description["inputs"][0], description["outputs"][0]
        self.library = _driver()
        tensors = load_file(str(Path(request.model) / "weights.safetensors"))
        self.weights = [_aligned(_packed(tensors[f"layers.{i}.weight"])) for i in range(self.layers)]
        self.biases = [_aligned(tensors[f"layers.{i}.bias"]) for i in range(self.layers)]

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        return self._runner(inputs)[0]

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        run, result = self._runner(inputs)
        run()
        return {self.output: result.copy()}

    def _runner(self, inputs: Mapping[str, np.ndarray]) -> tuple[Callable[[], None], np.ndarray]:
        x = _aligned(np.ascontiguousarray(inputs[self.input], np.float32))
        arrays = [x, *(_aligned(np.zeros_like(x)) for _ in range(self.layers))]

        def run() -> None:
            for i in range(self.layers):
                pointers = (a.ctypes.data for a in (arrays[i], self.weights[i], self.biases[i], arrays[i + 1]))
                self.library.layer(*map(ctypes.c_void_p, pointers), len(x), self.width, self.width, self.threads)

        return run, arrays[-1]


def _driver() -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None or not (Path("/usr/lib/libxsmm.a").exists() and Path("/usr/include/libxsmm.h").exists()):
        raise MissingPackage("libxsmm", "the peer libxsmm", INSTALL)
    with tempfile.TemporaryDirectory(prefix="halo-libxsmm-") as folder:
        source, library = Path(folder) / "driver.cc", Path(folder) / "driver.so"
        source.write_text(DRIVER, encoding="utf-8")
        archives = ["-Wl,--whole-archive", "/usr/lib/libxsmm.a", "-Wl,--no-whole-archive", "/usr/lib/libxsmmnoblas.a"]
        command = [compiler, "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(library)]
        done = subprocess.run(
            [*command, *archives, "-ldl", "-lpthread", "-lm"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PeerFailed(f"expected libxsmm's driver to compile, found {done.stderr[-200:]!r}: {INSTALL}")
        return ctypes.CDLL(str(library))


def _packed(weight: np.ndarray) -> np.ndarray:
    """[n, k] -> [n / 64, k, 64]"""
    n, k = weight.shape
    return weight.reshape(n // TILE, TILE, k).transpose(0, 2, 1)


def _aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy that starts at a cache line."""
    buffer = np.zeros(array.size + 16, np.float32)
    start = -buffer.ctypes.data % 64 // 4
    copy = buffer[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


if __name__ == "__main__":
    serve(Libxsmm())
