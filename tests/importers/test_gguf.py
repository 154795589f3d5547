"""GGUF files: every architecture with a definition, every number format, tokenizers, and files that are damaged."""

from __future__ import annotations

import dataclasses
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halo_tvm.errors import HaloError, MissingPackage, UnsupportedModel, UsageError
from halo_tvm.importers import import_model
from halo_tvm.importers.gguf._types import TYPES
from halo_tvm.importers.gguf.architectures import architecture_of
from halo_tvm.importers.gguf.container import read_gguf
from halo_tvm.interpreter import evaluate
from halo_tvm.models import FAMILIES
from halo_tvm.models.builder import RandomWeights

gguf = pytest.importorskip("gguf")
from gguf_files import MODELS, add, byte_level_texts, finish, write_model


@pytest.mark.parametrize("architecture", MODELS)
def test_a_file_is_the_model_of_its_config_and_tensors(tmp_path: Path, architecture: str) -> None:
    """Configuration and every weight, whatever llama.cpp's converter did to the tensors."""
    path, wanted = write_model(tmp_path, architecture)
    _, found = architecture_of(read_gguf(path))
    for field in dataclasses.fields(found):
        if field.name in ("names", "pattern", "norm_plus_one"):
            continue  # how tensors are stored
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name == "mixture" and one is not None:
            one, other = (dataclasses.replace(mixture, names=(), turned=False) for mixture in (one, other))
        assert one == (pytest.approx(other, rel=1e-6) if isinstance(other, float) else other), field.name
    assert [layer.window for layer in found.pattern] == [layer.window for layer in wanted.pattern]
    kind = MODELS[architecture][0]["model_type"]
    family = next(f for f in FAMILIES.values() if kind in f.huggingface_types)
    model, original = import_model(str(path)), family.build("original", wanted, RandomWeights(3), {})
    names, theirs = (list(map(str, m.mod["main"].attrs["halo.params"])) for m in (model, original))
    assert len(names) == len(theirs)
    for name, other in zip(names, theirs):
        tensor, expected = model.params.materialise(name), original.params.materialise(other)
        turned = wanted.names.layout == "kn" and tensor.ndim == 2 and name.startswith("blk.")
        np.testing.assert_array_equal(tensor, expected.T if turned else expected, err_msg=name)


def test_a_longer_context_stretches_olmo_3_where_nothing_slides(tmp_path: Path) -> None:
    path, wanted = write_model(tmp_path, "olmo2: windows")
    _, found = architecture_of(read_gguf(path))
    assert found.pattern[0].rope != found.pattern[3].rope
    for one, other in zip(found.pattern, wanted.pattern, strict=True):
        np.testing.assert_allclose(one.rope.frequencies, other.rope.frequencies, rtol=1e-6)
        assert one.rope.factor == pytest.approx(other.rope.factor)


@pytest.mark.parametrize(
    ("architecture", "more", "message"),
    [
        (
            "llama",
            {"attention.sliding_window": 8},
            "whose layers have the windows of .* found attention.sliding_window 8",
        ),
        ("gpt-oss", {"attention.sliding_window_pattern": [True, True]}, None),
        ("gpt-oss", {"attention.sliding_window_pattern": 2}, None),
        ("phi3", {"attention.sliding_window_pattern": [True, False]}, None),
        ("phi3", {"attention.sliding_window": 0}, None),
        ("llama", {"attention.sliding_window": 64}, None),
        ("llama", {"attention.sliding_window": 8, "attention.sliding_window_pattern": [False, False]}, None),
    ],
)
def test_windows_are_computed_or_refused(
    tmp_path: Path, architecture: str, more: dict[str, object], message: str | None
) -> None:
    path, _ = write_model(tmp_path, architecture, {f"{architecture}.{key}": value for key, value in more.items()})
    if message is not None:
        with pytest.raises(UnsupportedModel, match=message):
            import_model(str(path))
        return
    _, found = architecture_of(read_gguf(path))
    said = more.get("attention.sliding_window_pattern", [False, False])
    assert [found.layer(i).window is not None for i in (0, 1)] == ([True, False] if said == 2 else said)


def test_blocks_that_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    """`block_count` has them: the tensors of the last one are none of the model's."""
    plain, _ = write_model(tmp_path, "glm4moe")
    wanted = evaluate(import_model(str(plain)), {"input_ids": np.arange(7)[None]})["logits"]
    more = {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    path, _ = write_model(tmp_path, "glm4moe", more)
    path = _with_tensor(tmp_path, read_gguf(path), "blk.2.nextn.eh_proj.weight", np.ones((64, 128), np.float32))
    found = evaluate(import_model(str(path)), {"input_ids": np.arange(7)[None]})["logits"]
    np.testing.assert_array_equal(found, wanted)
    path = _with_tensor(tmp_path, read_gguf(path), "blk.3.nextn.eh_proj.weight", np.ones((64, 128), np.float32))
    with pytest.raises(UnsupportedModel, match=r"1 unknown \(blk.3.nextn.eh_proj.weight\)"):
        import_model(str(path))


def test_rotations_scaled_by_tensors_and_metadata(tmp_path: Path) -> None:
    """Factors of Llama 3 lie in a tensor; yarn is said by metadata; both equal what config.json says."""
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3["original_max_position_embeddings"] = 32
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    read = FAMILIES["llama"].from_huggingface
    path, plain = write_model(tmp_path, "llama")
    for scaling in (llama3, yarn):
        wanted = read({**MODELS["llama"][0], "rope_scaling": scaling}).pattern[0].rope
        file = read_gguf(path)
        if scaling is llama3:
            factors = np.array(plain.pattern[0].rope.frequencies) / np.array(wanted.frequencies)
            extended = _with_tensor(tmp_path, file, "rope_freqs.weight", factors.astype(np.float32))
        else:
            more = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
            extended, _ = write_model(tmp_path, "llama", {f"llama.{key}": value for key, value in more.items()})
        _, found = architecture_of(read_gguf(extended))
        np.testing.assert_allclose(found.pattern[0].rope.frequencies, wanted.frequencies, rtol=1e-6)
        assert found.pattern[0].rope.factor == pytest.approx(wanted.factor)


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({"rope.scaling.factor": 2.0}, 2.0),
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scale_linear": 2.0, "rope.scaling.type": "none"}, 1.0),
        ({"rope.scaling.factor": 0.0, "rope.scaling.type": "linear"}, 1.0),
    ],
)
def test_a_factor_alone_is_linear(tmp_path: Path, more: dict[str, object], factor: float) -> None:
    """As llama.cpp takes it, also under its older name; 0 is none."""
    path, plain = write_model(tmp_path, "llama", {f"llama.{key}": value for key, value in more.items()})
    wanted = np.array(plain.pattern[0].rope.frequencies) / factor
    _, found = architecture_of(read_gguf(path))
    np.testing.assert_allclose(found.pattern[0].rope.frequencies, wanted, rtol=1e-6)


def _with_tensor(folder: Path, file, name: str, values: np.ndarray) -> Path:
    target = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(target, file.metadata["general.architecture"])
    for key, value in file.metadata.items():
        if key != "general.architecture":
            add(writer, key, value)
    for tensor in file.tensors.values():
        writer.add_tensor(tensor.name, tensor.kind.floats(tensor.blocks()).reshape(tensor.shape))
    writer.add_tensor(name, values)
    finish(writer)
    return target


@pytest.mark.parametrize("code", [code for code, kind in TYPES.items() if kind.floats and kind.name != "F64"])
def test_numbers_of_every_format_are_those_of_gguf(code: int) -> None:
    """Any bytes at all, scales that are no numbers among them, to the last bit."""
    blocks = np.random.default_rng(code).integers(0, 256, (65, TYPES[code].size), dtype=np.uint8)
    kind = gguf.GGMLQuantizationType(code)
    assert gguf.GGML_QUANT_SIZES[kind] == (TYPES[code].block, TYPES[code].size)
    with np.errstate(all="ignore"):
        found, wanted = TYPES[code].floats(blocks), gguf.quants.dequantize(blocks.reshape(1, -1), kind)
    np.testing.assert_array_equal(found.reshape(-1), wanted.reshape(-1))


def test_a_scale_of_one_number_belongs_to_its_weight(tmp_path: Path) -> None:
    path, _ = write_model(tmp_path, "llama")
    plain = import_model(str(path)).params.materialise("blk.0.attn_output.weight")
    scaled = _with_tensor(tmp_path, read_gguf(path), "blk.0.attn_output.scale", np.array([0.5], np.float32))
    np.testing.assert_array_equal(import_model(str(scaled)).params.materialise("blk.0.attn_output.weight"), plain / 2)
    several = _with_tensor(tmp_path, read_gguf(path), "blk.0.attn_output.scale", np.ones(2, np.float32))
    with pytest.raises(UnsupportedModel, match=r"1 unknown \(blk.0.attn_output.scale\)"):
        import_model(str(several))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantised Llama with a tokenizer."""
    folder = tmp_path_factory.mktemp("gguf")
    plain, _ = write_model(folder, "llama")
    file, path = read_gguf(plain), folder / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {**file.metadata, **byte_level_texts()}.items():
        if key != "general.architecture":
            add(writer, key, value.tolist() if isinstance(value, np.ndarray) else value)
    for tensor in file.tensors.values():
        values = tensor.kind.floats(tensor.blocks()).reshape(tensor.shape)
        kind = gguf.GGMLQuantizationType.Q8_0 if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    finish(writer)
    return path


def test_a_quantised_file_gives_its_own_numbers_and_its_texts(small: Path) -> None:
    model = import_model(str(small))
    logits = evaluate(model, {"input_ids": np.arange(7)[None]})["logits"]
    reader = {t.name: t for t in gguf.GGUFReader(small).tensors}
    stored = reader["blk.0.ffn_down.weight"]
    np.testing.assert_array_equal(
        model.params.materialise("blk.0.ffn_down.weight"), gguf.quants.dequantize(stored.data, stored.tensor_type)
    )
    assert np.isfinite(logits).all() and logits.std() > 0
    assert model.language["end"] == [1] and model.language["words"]["bos_token"] == "<s>"
    assert isinstance(model.files["tokenizer.json"], bytes)


def test_shards_are_one_model(small: Path, tmp_path: Path) -> None:
    file = read_gguf(small)
    names = list(file.tensors)
    for number, part in ((1, names[:5]), (2, names[5:])):
        writer = gguf.GGUFWriter(tmp_path / f"model-{number:05}-of-00002.gguf", "llama")
        for key, value in {**file.metadata, "split.count": 2, "split.tensors.count": len(names)}.items():
            if key != "general.architecture":
                add(writer, key, value.tolist() if isinstance(value, np.ndarray) else value)
        for name in part:
            tensor = file.tensors[name]
            raw = tensor.blocks().reshape(*tensor.shape[:-1], -1)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[tensor.kind.name])
        finish(writer)
    second = tmp_path / "model-00002-of-00002.gguf"
    model, whole = import_model(str(second)), import_model(str(small))
    for name in names:
        np.testing.assert_array_equal(model.params.materialise(name), whole.params.materialise(name))
    second.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(UnsupportedModel, match="expected 2 shards beside each other .* no file model-00002-of-00002"):
        import_model(str(tmp_path / "model-00001-of-00002.gguf"))


def _u(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _text(text: bytes) -> bytes:
    return _u(len(text)) + text


def _file(tensors: int = 0, keys: int = 0, rest: bytes = b"", version: bytes = b"\x03\0\0\0") -> bytes:
    return b"GGUF" + version + _u(tensors, keys) + rest


def _tensor(dims: tuple[int, ...], kind: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    return (
        _text(b"t")
        + struct.pack("<I", len(dims) if rank is None else rank)
        + _u(*dims)
        + struct.pack("<IQ", kind, offset)
    )


_HUGE = 1 << 63
_DAMAGED = {
    "empty": (b"", "cannot mmap an empty file"),
    "no GGUF": (b"GGML" + bytes(40), "a file that begins with GGUF"),
    "cut off": (b"GGUF\x03\0", "it is cut off"),
    "version 1": (_file(version=b"\x01\0\0\0"), "version 2 or 3, little-endian"),
    "big-endian": (_file(version=b"\0\0\0\x03"), "a big-endian file of version 3"),
    "count of tensors": (_file(_HUGE), "at most 0 tensors"),
    "count of keys": (_file(0, _HUGE), "at most 0 keys"),
    "length of a key": (_file(0, 1, _u(_HUGE) + bytes(16)), "texts of at most 4096 bytes"),
    "no Unicode": (_file(0, 1, _text(b"\xff\xfe") + bytes(16)), "texts in UTF-8"),
    "unknown type": (_file(0, 1, _text(b"k") + struct.pack("<I", 99)), "'k' of a known type .* found type 99"),
    "length of an array": (_file(0, 1, _text(b"k") + struct.pack("<IIQ", 9, 4, _HUGE)), "at most 0 numbers of 'k'"),
    "length of texts": (_file(0, 1, _text(b"k") + struct.pack("<IIQ", 9, 8, _HUGE)), "at most 0 texts of 'k'"),
    "nested arrays": (_file(0, 1, _text(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(12)), "an array of type 9"),
    "a key twice": (_file(0, 2, (_text(b"k") + struct.pack("<IB", 7, 1)) * 2 + bytes(26)), "'k' twice"),
    "alignment": (_file(0, 1, _text(b"general.alignment") + struct.pack("<II", 4, 3)), "a power of two .* found 3"),
    "rank": (_file(1, 0, _tensor((4,), rank=5) + bytes(64)), "one to four dimensions"),
    "unknown format": (_file(1, 0, _tensor((4,), 77) + bytes(64)), "found type 77"),
    "a wrapping product": (_file(1, 0, _tensor((1 << 32, 1 << 32)) + bytes(64)), "within .* bytes"),
    "a huge dimension": (_file(1, 0, _tensor((_HUGE,)) + bytes(64)), "within .* bytes"),
    "no dimension": (_file(1, 0, _tensor((0,)) + bytes(64)), "rows of whole blocks"),
    "half a block": (_file(1, 0, _tensor((33,), 8) + bytes(64)), "whole blocks of 32"),
    "an offset beyond": (_file(1, 0, _tensor((4,), 0, 1 << 40) + bytes(64)), "within .* bytes"),
    "an odd offset": (_file(1, 0, _tensor((4,), 0, 4) + bytes(64)), "aligned to 32"),
    "overlap": (
        _file(2, 0, _tensor((16,)) + _tensor((16,), 0, 32).replace(b"t", b"u", 1) + bytes(160)),
        "inside of 't'",
    ),
    "no metadata": (_file(), "expected an architecture among .*, found None"),
}


@pytest.mark.parametrize("what", _DAMAGED)
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, what: str) -> None:
    data, message = _DAMAGED[what]
    (tmp_path / "m.gguf").write_bytes(data)
    begin = time.process_time()
    with pytest.raises(UnsupportedModel, match=message) as found:
        import_model(str(tmp_path / "m.gguf"))
    assert "\n" not in str(found.value) and time.process_time() - begin < 5  # bounded, not fast: gguf 0.19 hangs


def test_experts_of_an_architecture_without_them_are_refused(tmp_path: Path) -> None:
    path, _ = write_model(tmp_path, "qwen3", {"qwen3.expert_count": 8})
    with pytest.raises(UnsupportedModel, match="expected a qwen3 model without expert_count in a GGUF file, found 8"):
        import_model(str(path))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"llama.attention.head_count": 5}, "heads as a multiple of kv_heads"),
        ({"llama.block_count": 3}, "missing .blk.2"),
        ({"llama.block_count": 1}, "unknown .blk.1"),
        ({"llama.embedding_length": 128}, "do not belong together"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "missing .blk.0.ffn_gate_exps.weight"),
        ({"llama.attention.key_length": 32}, "keys and values of one length"),
        ({"llama.attention.head_count": [4, 2]}, "head_count equal in all layers"),
        ({"llama.rope.scaling.type": "spiral"}, "rope type among"),
        ({"llama.context_length": 1 << 24}, "context_length of at most 2097152"),
        ({"llama.context_length": "many"}, "the complete metadata of a llama model"),
        ({"general.type": "adapter"}, "expected general.type model in a GGUF file, found 'adapter'"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(tmp_path: Path, more: dict[str, object], message: str) -> None:
    path, _ = write_model(tmp_path, "llama", more)
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(path))


def test_formats_that_are_not_read_are_listed(tmp_path: Path) -> None:
    data = _file(2, 0, _tensor((256,), 26) + _tensor((256,), 26, 1024).replace(b"t", b"u", 1) + bytes(4096))
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(UnsupportedModel, match=r"expected tensors of F32.* found 2 of I32"):
        import_model(str(tmp_path / "m.gguf"))


def test_codebooks_are_those_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(_file(1, 0, _tensor((256,), 16) + bytes(512)))
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    with pytest.raises(
        MissingPackage, match="tensors of IQ1, IQ2 or IQ3 needs the package 'gguf', .* run `pip install"
    ):
        import_model(str(tmp_path / "m.gguf"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_an_error_of_ours_or_none(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(small.read_bytes())
    header = min(t.begin for t in read_gguf(small).tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, header - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(whole) - 1)))
    (tmp_path / "m.gguf").write_bytes(bytes(whole[:cut]))
    try:
        import_model(str(tmp_path / "m.gguf"))
    except HaloError as refused:
        assert "\n" not in str(refused)


def test_a_tokenizer_may_be_given(small: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    model = import_model(str(small), tokenizer=str(tmp_path))
    assert model.files == {"tokenizer.json": tmp_path / "tokenizer.json"} and model.language["end"] == [1]
    with pytest.raises(UsageError, match="expected tokenizer.json in .* found none"):
        import_model(str(small), tokenizer=str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="expected a language model beside --tokenizer, found mlp"):
        import_model("mlp", tokenizer=str(tmp_path))
