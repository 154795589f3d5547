"""Checkpoints of packed integers: the numbers they stand for, the integers that `int4` keeps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint
from packed_files import CONFIGS, GROUP, LAYER, quantised, words
from safetensors.numpy import load_file, save_file

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.phases import lower
from halo_tvm.weight_groups import unpacked


@pytest.mark.parametrize("kind", CONFIGS)
def test_numbers_are_those_of_the_integers(tmp_path: Path, kind: str) -> None:
    meant = quantised(tmp_path, kind)
    model = import_model(str(tmp_path))
    assert meant and all(np.array_equal(model.params.materialise(name), weight) for name, weight in meant.items())


@pytest.mark.parametrize(("kind", "label"), [("gptq", "i4g32/"), ("awq", "i4g32m/"), ("compressed-zeros", "i4g32m/")])
def test_int4_keeps_the_integers(tmp_path: Path, kind: str, label: str) -> None:
    meant = quantised(tmp_path, kind)
    model = import_model(str(tmp_path))
    _, reports = lower(model, Compilation.of(CompileConfig("model", precision="int4", target="x86:avx2")))
    report = reports.optimise.quantise
    assert report.methods == {"kept": 8, "rounded": 1}, "the head alone is made integers here"
    assert sum(count for name, count in report.formats.items() if name.startswith(label)) == 8
    name = f"{LAYER}.weight"
    (integers,) = (p for p in model.params.recipes if p.startswith(f"{name}|{label}k"))
    form = f"{name}|{label.rstrip('/')}"
    least = model.params.materialise(f"{form}/least") if "m" in label else None
    grid = model.params.materialise(f"{form}/scale"), least
    kept = unpacked(model.params.materialise(integers), *grid, bits=4, n=64).T
    step = np.repeat(np.abs(grid[0]).transpose(0, 2, 1).reshape(-1, 2)[:64], GROUP, axis=1).astype(np.float64)
    assert np.abs((kept - meant[name]) / step).max() < (0.01 if "m" in label else 1e-9), "float16 least values"


def test_an_order_of_groups_is_followed(tmp_path: Path) -> None:
    """GPTQ with desc_act: numbers are right; no scheme has such groups."""
    meant = quantised(tmp_path, "gptq")
    tensors = load_file(tmp_path / "model.safetensors")
    order = np.random.default_rng(2).permutation(64)
    q = np.stack([tensors[f"{LAYER}.qweight"].view(np.uint32) >> (4 * i) & 15 for i in range(8)], 1).reshape(64, -1)
    tensors[f"{LAYER}.qweight"] = words(q[order], 0)
    tensors[f"{LAYER}.g_idx"] = tensors[f"{LAYER}.g_idx"][order]
    save_file(tensors, tmp_path / "model.safetensors")
    model = import_model(str(tmp_path))
    assert np.array_equal(model.params.materialise(f"{LAYER}.weight"), meant[f"{LAYER}.weight"][:, order])
    assert model.params.grid(f"{LAYER}.weight") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "found quant_method 'bitsandbytes'"),
        ({"quant_method": "hqq", "bits": 4}, "found quant_method 'hqq', bits 4"),
        ({"quant_method": "gptq", "bits": 3}, "found quant_method 'gptq', bits 3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'"),
        ("gptq", "that is not quantised, or gptq"),
    ],
)
def test_other_methods_are_refused(tmp_path: Path, change: object, message: str) -> None:
    write_checkpoint(tmp_path, "llama", quantization_config=change)
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(tmp_path))


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    quantised(tmp_path, "gptq")
    good = load_file(tmp_path / "model.safetensors")
    for end, tensor, message in (
        ("scales", np.ones((3, 64), np.float16), "qzeros of shape"),
        ("scales", np.ones(64, np.float16), r"scales of shape \[64\]"),
        ("qweight", np.ones((4, 64), np.int32), "g_idx of shape"),
        ("g_idx", np.full(64, 7, np.int32), "g_idx from 7 to 7, of 2 groups"),
        ("qweight", np.ones((8, 64), np.float32), "qweight of float32"),
        ("qzeros", None, "no qzeros"),
    ):
        tensors = {**good, f"{LAYER}.{end}": tensor}
        save_file({n: t for n, t in tensors.items() if t is not None}, tmp_path / "model.safetensors")
        with pytest.raises(UnsupportedModel, match=message):
            import_model(str(tmp_path)).params.materialise(f"{LAYER}.weight")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    with pytest.raises(UnsupportedModel, match=r"8 missing|missing \("):
        import_model(str(tmp_path))
