"""Whisper from a directory that transformers wrote: sound in, the same numbers and words as transformers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from halo_tvm import CompileConfig, LanguageModel, compile_model
from halo_tvm.cli import main
from halo_tvm.errors import InputError, UsageError
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate
from halo_tvm.runtime.language.sound import resampled, samples_of, spectra

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FRAMES = 100  # one second instead of thirty
WORDS = {
    "lang_to_id": {"<|en|>": 110, "<|de|>": 111, "<|fr|>": 112},
    "task_to_id": {"transcribe": 113, "translate": 114},
    "no_timestamps_token_id": 115,
    "is_multilingual": True,
    "begin_suppress_tokens": [5, 7, 12],
    "suppress_tokens": [9, 110, 111, 112, 113, 114],
}


def sound(seconds: float, rate: int = 16000) -> np.ndarray:
    at = np.arange(int(seconds * rate)) / rate
    return (0.4 * np.sin(2 * np.pi * 440 * at) * np.sin(3 * at) + 0.2 * np.sin(2 * np.pi * 1230 * at)).astype("f4")


def wave(path: Path, samples: np.ndarray, rate: int, bits: int, *, channels: int = 1, kind: int = 1) -> Path:
    if kind == 3:
        data = samples.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = (np.round(samples * 127) + 128).astype(np.uint8).tobytes()
    else:
        wide = np.round(samples * (2 ** (bits - 1) - 1)).astype("<i4")
        data = wide.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
    align = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * align, align, bits)
    chunks = b"".join(
        n + struct.pack("<I", len(c)) + c for n, c in ((b"fmt ", form), (b"LIST", b"ab"), (b"data", data))
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """(model of transformers, its directory)"""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=131,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=80,
        max_source_positions=FRAMES // 2,
        max_target_positions=48,
        pad_token_id=3,
        bos_token_id=3,
        eos_token_id=3,
        decoder_start_token_id=4,
        begin_suppress_tokens=[5, 7, 50256],  # one that this vocabulary has not
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for tensor in model.parameters():
        tensor.data += torch.randn_like(tensor) * (0.5 if tensor.ndim == 1 else 0.1)
    directory = tmp_path_factory.mktemp("whisper")
    for name, value in WORDS.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(directory)
    return model, directory


def logits(model: transformers.PreTrainedModel, features: np.ndarray, answer: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        given = {"input_features": torch.from_numpy(features), "decoder_input_ids": torch.from_numpy(answer)}
        return model(**given, use_cache=False).logits.numpy()


def test_spectra_are_those_of_transformers() -> None:
    for bands, seconds in ((80, 7.3), (128, 31.0)):
        extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
        samples = sound(seconds)
        wanted = extractor(samples[: 30 * 16000], sampling_rate=16000, return_tensors="np")["input_features"][0]
        found = list(spectra(samples, bands, 3000))
        assert len(found) == (2 if seconds > 30 else 1)
        np.testing.assert_allclose(found[0], wanted, atol=2e-4)  # of tones it computes in float32


def test_waves_of_every_form_and_rate(tmp_path: Path) -> None:
    for rate, bits, kind in (
        (16000, 8, 1),
        (16000, 16, 1),
        (44100, 24, 1),
        (8000, 32, 1),
        (22050, 32, 3),
        (48000, 64, 3),
    ):
        found = samples_of(wave(tmp_path / "x.wav", sound(1, rate), rate, bits, kind=kind))
        assert len(found) == 16000 and found.dtype == np.float32
        error = np.abs(found - sound(1))[600:-600].max()
        assert error < (1e-2 if bits == 8 else 2e-3), (rate, bits, kind, error)
    both = np.stack([sound(1), -sound(1)], 1).reshape(-1)
    assert np.abs(samples_of(wave(tmp_path / "x.wav", both, 16000, 16, channels=2))).max() < 1e-4
    high = np.sin(2 * np.pi * 11000 * np.arange(48000) / 48000)
    assert np.abs(resampled(high, 48000)[600:-600]).max() < 1e-2  # what 16 kHz cannot hold is gone
    whole = (tmp_path / "x.wav").read_bytes()
    for raw in (
        b"",
        b"RIFF",
        whole[:30],
        b"OggS" + whole[4:],
        whole.replace(struct.pack("<HH", 1, 2), b"\x07\0\x02\0"),
    ):
        (tmp_path / "bad.wav").write_bytes(raw)
        with pytest.raises(InputError, match="to be a WAV file of PCM or floating-point samples"):
            samples_of(tmp_path / "bad.wav")
    with pytest.raises(InputError, match="No such file"):
        samples_of(tmp_path / "none.wav")
    for bad, message in ((np.zeros(0), r"\[0\]"), (np.zeros((2, 9)), r"\[2, 9\]"), (np.array([np.nan]), "NaN")):
        with pytest.raises(InputError, match=message):
            list(spectra(bad, 80, FRAMES))


def test_an_artifact_writes_down_what_it_hears(original, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The float64 reference, then twenty greedy steps behind caches; languages, pieces of a longer sound, the verb."""
    model, directory = original
    features = np.stack([*spectra(sound(1.7), 80, FRAMES)])
    answer = np.random.default_rng(0).integers(0, 131, (2, 9))
    imported = import_model(str(directory))
    found = evaluate(imported, {"input_features": features, "decoder_input_ids": answer})["logits"]
    wanted = logits(model.double(), features.astype(np.float64), answer)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    model.float()

    path = tmp_path / "x.halo"
    compile_model(CompileConfig(str(directory), output=str(path), records=False))
    with LanguageModel.load(path, threads=2) as ours:
        assert ours.context == 48
        found, said = [ours.prefill(features[0])], [4]
        for _ in range(20):
            said.append(int(found[-1].argmax()))
            found.append(ours.decode(said[-1]))
        wanted = logits(model, features[:1], np.array([said]))[0]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
        for language, translate in (("de", False), ("en", True), (None, False)):
            heard = ours.generate(audio=sound(1.7), language=language, translate=translate, max_new_tokens=12)
            task = "translate" if translate else "transcribe"
            expected = []
            for piece in features:
                with torch.no_grad():
                    ids = model.generate(
                        torch.from_numpy(piece[None]), language=language, task=task, max_new_tokens=12, do_sample=False
                    )[0].tolist()
                expected += ids[ids.index(115) + 1 :] if 115 in ids else ids
            assert [t for t in heard.tokens if t != 3] == [t for t in expected if t != 3], (language, translate)
            assert not {9, *range(110, 131)} & set(heard.tokens)
        for ask, message in (
            ({"prompt": [1, 2]}, "the spectrum of a sound .80, 100., which the encoder reads"),
            ({"audio": sound(1), "language": "xx"}, "a language among de, en, fr, found 'xx'"),
            ({"prompt": [1], "language": "de"}, "found a language or translation without audio"),
            ({"prompt": [1], "audio": sound(1)}, "found two of them"),
        ):
            with pytest.raises((InputError, UsageError), match=message):
                ours.generate(**ask)
    file = wave(tmp_path / "x.wav", sound(1.2), 16000, 16)
    assert main(["run", str(path), "--audio", str(file), "--language", "en", "--max-new-tokens", "3"]) == 0
    assert "6 said" in capsys.readouterr().err
    assert main(["run", str(path), "--audio", str(file), "--prompt", "a"]) == 1


def test_older_files_say_what_is_asked_by_its_place(original, tmp_path: Path) -> None:
    _, directory = original
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    generation = {"forced_decoder_ids": [[1, 110], [2, 113], [3, 115]], "eos_token_id": 3, "decoder_start_token_id": 4}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    speech = import_model(str(tmp_path)).language["speech"]
    assert speech == {
        "languages": {"en": 110},
        "tasks": {"transcribe": 113},
        "plain": 115,
        "first_never": [5, 7, 50256],
    }
