"""Short-time transforms of sounds, as preprocessors of speech models are written."""

from __future__ import annotations

import numpy as np
import onnx

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

NET = """
    <ir_version: 9, opset_import: ["" : 17]>
    net (float[b, n] x) => (float[b, f, 9, 2] y)
    <int64[4] front = {0, 3, 0, 0}, int64[4] behind = {0, 0, 0, 9}, int64 step = {4}, int64 width = {16}>
    {
        p = Pad (x, front)
        q = Pad (p, behind)
        y = STFT (q, step, , width)
    }
"""


def test_a_signal_of_two_dimensions_that_is_padded_twice() -> None:
    """Functions in one group spell the padded length n + 3 + 9 and n + 12, of which TVM makes no function."""
    program = compile_in_process(import_proto(onnx.parser.parse_model(NET), name="net"))
    x = np.random.default_rng(0).standard_normal((2, 50)).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (3, 9))), 16, axis=1)[:, ::4]
    wanted = np.fft.rfft(frames.astype(np.float64))
    np.testing.assert_allclose(np.asarray(program(x=x)["y"]), np.stack([wanted.real, wanted.imag], -1), atol=1e-5)
