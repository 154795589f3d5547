"""Checkpoints of packed integers: the numbers they stand for, the integers that `int4` keeps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint
from safetensors.numpy import load_file, save_file

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.phases import lower
from halo_tvm.weight_groups import unpacked

GROUP = 32
LAYER = "model.layers.0.self_attn.o_proj"
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that lies at each place of a word
CONFIGS: dict[str, dict[str, object]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False},
    "gptq-v2": {"quant_method": "gptq", "bits": 4, "sym": False, "checkpoint_format": "gptq_v2"},
    "gptq-8": {"quant_method": "gptq", "bits": 8, "group_size": GROUP, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": True}}},
        "ignore": ["lm_head"],
    },
    "compressed-zeros": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": False}}},
    },
}


def words(numbers: np.ndarray, axis: int, bits: int = 4, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Integers packed along `axis` into int32, the first (or that of `order`) in the lowest bits."""
    per = 32 // bits
    rows = np.moveaxis(numbers, axis, 0).astype(np.uint64)
    found = np.zeros((-(-len(rows) // per), *rows.shape[1:]), np.uint64)
    for word in range(len(found)):
        for place, column in enumerate(order or range(per)):
            if word * per + column < len(rows):
                found[word] |= rows[word * per + column] << np.uint64(place * bits)
    return np.ascontiguousarray(np.moveaxis(found, 0, axis)).astype(np.uint32).view(np.int32)


def packed(kind: str, q: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of a layer: q [n, k], zero and scale [n, groups]."""
    bits = 8 if kind == "gptq-8" else 4
    if kind.startswith("gptq"):
        stored = zero if kind == "gptq-v2" else zero - 1
        return {
            "qweight": words(q.T, 0, bits),
            "qzeros": words(stored.T, 1, bits),
            "scales": scale.T.copy(),
            "g_idx": (np.arange(q.shape[1]) // GROUP).astype(np.int32),
        }
    if kind == "awq":
        return {
            "qweight": words(q.T, 1, 4, AWQ_COLUMNS),
            "qzeros": words(zero.T, 1, 4, AWQ_COLUMNS),
            "scales": scale.T.copy(),
        }
    tensors = {
        "weight_packed": words(q, 1),
        "weight_scale": scale,
        "weight_shape": np.array(q.shape, np.int64),
        "input_scale": np.ones(1, np.float32),
    }
    return tensors | ({"weight_zero_point": words(zero, 0)} if kind == "compressed-zeros" else {})


def quantised(directory: Path, kind: str) -> dict[str, np.ndarray]:
    """Pack the linears of a tiny Llama in `directory`, all but the head; the weights that they stand for."""
    write_checkpoint(directory, "llama", quantization_config=CONFIGS[kind])
    tensors, meant = load_file(directory / "model.safetensors"), {}
    symmetric, most = kind in ("gptq", "gptq-8", "compressed"), 255 if kind == "gptq-8" else 15
    rng = np.random.default_rng(1)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        n, k = tensors.pop(name).shape
        q = rng.integers(0, most + 1, (n, k))
        zero = np.full((n, k // GROUP), (most + 1) // 2) if symmetric else rng.integers(0, 16, (n, k // GROUP))
        scale = (rng.uniform(0.5, 2, zero.shape) / 64 / most * 15).astype(np.float16)
        each = np.arange(k) // GROUP
        meant[name] = (q - zero[:, each]).astype(np.float32) * scale.astype(np.float32)[:, each]
        stem = name.removesuffix("weight")
        tensors |= {stem + end: np.ascontiguousarray(x) for end, x in packed(kind, q, zero, scale).items()}
    save_file(tensors, directory / "model.safetensors")
    return meant


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
    for end in ("qweight", "g_idx"):
        tensors[f"{LAYER}.{end}"] = tensors[f"{LAYER}.{end}"]
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
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "found quant_method 'bitsandbytes'"),
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
