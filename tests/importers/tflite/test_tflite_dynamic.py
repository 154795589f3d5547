"""Float activations by weights in bytes: XNNPACK's numbers, which rounds each row or image on a grid of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="the reference: pip install halo_tvm[tflite]")

from tflite_files import GraphFile

from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process

SAME, VALID = 0, 1
# Kernel, steps, dilations, padding of a convolution of 7 x 8 pixels.
WINDOWS = {
    "pixels": ((1, 1), (1, 1), (1, 1), VALID),
    "every other pixel": ((1, 1), (2, 2), (1, 1), SAME),
    "window": ((3, 2), (1, 1), (1, 1), SAME),
    "steps": ((3, 3), (2, 3), (1, 1), SAME),
    "within": ((3, 3), (2, 1), (1, 1), VALID),
    "dilated": ((2, 3), (1, 1), (2, 2), SAME),
}


def compared(g: GraphFile, out: int, file: Path, *shape: int) -> None:
    """Elements far from 0, so that a grid has a zero of its own, and an image or row of nothing but zeros."""
    file.write_bytes(g.write([out]))
    model = import_model(str(file))
    x = (np.random.default_rng(1).standard_normal(shape) * 2 + 3).astype(np.float32)
    x[-1] = 0
    found, wanted = compile_in_process(model)(x0=x), model.engine({"x0": x})["y0"]
    np.testing.assert_allclose(np.asarray(found["y0"]), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("asymmetric", [False, True])
def test_products_of_rows(asymmetric, tmp_path: Path):
    g, r = GraphFile(), np.random.default_rng(0)
    x = g.input((5, 40))
    w = g.const(r.integers(-127, 128, (6, 40)), "int8", (r.uniform(0.01, 0.02, 6), (0,) * 6, 0))
    options = {"asymmetricQuantizeInputs": asymmetric}
    (out,) = g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor((5, 6))], "FullyConnectedOptions", **options)
    compared(g, out, tmp_path / "rows.tflite", 5, 40)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.sampled(3)
def test_convolutions(name, tmp_path: Path):
    (height, width), steps, dilations, padding = WINDOWS[name]
    g, r = GraphFile(), np.random.default_rng(0)
    x = g.input((3, 7, 8, 4))
    weights = r.integers(-127, 128, (6, height, width, 4))
    w = g.const(weights, "int8", (r.uniform(0.01, 0.02, 6), (0,) * 6, 0))
    reach = [d * (k - 1) for d, k in zip(dilations, (height, width))]
    sizes = [
        -(-size // step) if padding == SAME else (size - over - 1) // step + 1
        for size, step, over in zip((7, 8), steps, reach)
    ]
    options = {"strideH": steps[0], "strideW": steps[1], "padding": padding}
    options |= {"dilationHFactor": dilations[0], "dilationWFactor": dilations[1]}
    inputs, out = [x, w, g.const(r.standard_normal(6))], g.tensor((3, *sizes, 6))
    g.op("CONV_2D", inputs, [out], "Conv2DOptions", **options)
    compared(g, out, tmp_path / "windows.tflite", 3, 7, 8, 4)
