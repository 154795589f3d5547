"""LoRA and DoRA adapters: merged into their base as PEFT merges them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint
from safetensors.numpy import load_file, save_file

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model

FRONT = "base_model.model."
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
RNG = np.random.default_rng(5)


def pair(n: int, k: int, rank: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """A [rank, k] and B [n, rank] of float32."""
    return tuple(RNG.standard_normal(shape).astype(np.float32) for shape in ((rank, k), (n, rank)))  # type: ignore[return-value]


def adapter(
    folder: Path, tensors: dict[str, np.ndarray], kind: str = "llama", changes: dict[str, object] | None = None
) -> Path:
    """An adapter beside its base of tiny random weights."""
    base, made = folder / "base", folder / "lora"
    for path in (base, made):
        path.mkdir()
    write_checkpoint(base, kind, **({"tie_word_embeddings": False} if kind == "llama" else {}))
    save_file({FRONT + name: tensor for name, tensor in tensors.items()}, made / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": str(base), **(changes or {})}
    (made / "adapter_config.json").write_text(json.dumps(config))
    return made


def read(folder: Path, *names: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The weights `names` with the adapter, and those of the base alone."""
    model, base = (import_model(str(path)) for path in (folder, folder.parent / "base"))
    assert model.source["sha256"] != base.source["sha256"]
    return [model.params.materialise(n) for n in names], [base.params.materialise(n) for n in names]


def test_changes_are_merged(tmp_path: Path) -> None:
    """s = alpha / r, alpha of a module by its pattern; a head that is there whole; all else as it was."""
    (a, b), (c, d) = pair(64, 64), pair(64, 96, 2)
    head = RNG.standard_normal((131, 64)).astype(np.float32)
    tensors = {f"{Q}.lora_A.weight": a, f"{Q}.lora_B.weight": b, "lm_head.weight": head}
    tensors |= {f"{DOWN}.lora_A.weight": c, f"{DOWN}.lora_B.weight": d}
    folder = adapter(tmp_path, tensors, changes={"alpha_pattern": {"layers.1.mlp.down_proj": 3}})
    (folder / "config.json").write_text("{}")  # trainers leave one there
    names = (f"{Q}.weight", f"{DOWN}.weight", "lm_head.weight", "model.layers.0.self_attn.k_proj.weight")
    (q, down, made, key), (q0, down0, _, key0) = read(folder, *names)
    np.testing.assert_allclose(q, q0 + 2.0 * b @ a, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(down, down0 + 1.5 * d @ c, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(made, head)
    np.testing.assert_array_equal(key, key0)


def test_magnitudes_of_dora_and_stable_ranks(tmp_path: Path) -> None:
    (a, b), magnitude = pair(64, 64), RNG.uniform(0.5, 2, 64).astype(np.float32)
    tensors = {f"{Q}.lora_A.weight": a, f"{Q}.lora_B.weight": b, f"{Q}.lora_magnitude_vector": magnitude}
    folder = adapter(tmp_path, tensors, changes={"use_dora": True, "use_rslora": True})
    (q,), (base,) = read(folder, f"{Q}.weight")
    made = base.astype(np.float64) + 8 / 2 * b.astype(np.float64) @ a
    wanted = made * (magnitude / np.linalg.norm(made, axis=1))[:, None]
    np.testing.assert_allclose(q, wanted, rtol=1e-5, atol=1e-6)


def test_weights_that_lie_the_other_way(tmp_path: Path) -> None:
    """GPT-2 stores [k, n]; its names have a prefix in adapters."""
    a, b = pair(64, 64)
    name = "h.0.attn.c_proj"
    tensors = {f"transformer.{name}.lora_A.weight": a, f"transformer.{name}.lora_B.weight": b}
    (made,), (base,) = read(adapter(tmp_path, tensors, "gpt2"), f"{name}.weight")
    np.testing.assert_allclose(made, base + 2.0 * (b @ a).T, rtol=1e-6, atol=1e-6)


def test_a_base_of_integers(tmp_path: Path) -> None:
    """The changes of an adapter do not lie on the grid of the base's integers."""
    from packed_files import LAYER, quantised

    a, b = pair(64, 64)
    folder = adapter(tmp_path, {f"{LAYER}.lora_A.weight": a, f"{LAYER}.lora_B.weight": b})
    meant = quantised(tmp_path / "base", "awq")[f"{LAYER}.weight"]
    model = import_model(str(folder))
    np.testing.assert_allclose(model.params.materialise(f"{LAYER}.weight"), meant + 2.0 * b @ a, rtol=1e-5, atol=1e-5)
    assert model.params.grid(f"{LAYER}.weight") is None and model.params.grid(f"{Q}.weight") is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "expected a LoRA adapter with peft_type 'LORA', found 'IA3'"),
        ({"init_lora_weights": "pissa_niter_4"}, "leave the base as it is, found 'pissa_niter_4'"),
        ({"bias": "all"}, "bias 'none', found 'all'"),
        ({"lora_alpha": "much"}, "lora_alpha as a number, found 'much'"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "names of modules as alpha_pattern"),
        ({"base_model_name_or_path": "/no/such/place"}, "found no directory there"),
        ({"base_model_name_or_path": None}, "with base_model_name_or_path, found None"),
    ],
)
def test_other_adapters_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    a, b = pair(64, 64)
    folder = adapter(tmp_path, {f"{Q}.lora_A.weight": a, f"{Q}.lora_B.weight": b}, changes=changes)
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(folder))


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    a, b = pair(64, 64)
    folder = adapter(tmp_path, {f"{Q}.lora_A.weight": a, f"{Q}.lora_B.weight": b})
    file = folder / "adapter_model.safetensors"
    good = load_file(file)
    embedding = {f"{FRONT}model.embed_tokens.lora_embedding_{p}": x for p, x in zip("AB", pair(64, 131))}
    for tensors, message in (
        ({f"{FRONT}{Q}.lora_A.weight": a[:, :8]}, "to fit a weight \\[64, 64\\] of the base, found \\[4, 8\\]"),
        ({f"{FRONT}{Q}.lora_B.weight": b[:, :1]}, "to fit a weight"),
        ({f"{FRONT}model.layers.9.mlp.up_proj.lora_A.weight": a}, r"found 1 others \(base_model.model.model.layers.9"),
        ({f"{FRONT}lm_head.weight": a}, r"lm_head.weight to fit a weight \[131, 64\]"),
        ({**embedding, f"{FRONT}model.embed_tokens.lora_embedding_A": a}, "to fit a weight"),
    ):
        save_file({**good, **tensors}, file)
        with pytest.raises(UnsupportedModel, match=message):
            import_model(str(folder))
    config = json.loads((folder.parent / "base/config.json").read_text())
    (folder.parent / "base/config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    base = load_file(folder.parent / "base/model.safetensors")
    save_file({n: t for n, t in base.items() if n != "lm_head.weight"}, folder.parent / "base/model.safetensors")
    save_file({**good, **embedding}, file)
    with pytest.raises(UnsupportedModel, match="a head of its own beside a changed embedding"):
        import_model(str(folder))
