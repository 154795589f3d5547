"""GGUF files as llama.cpp reads them: its logits of the tiny models are those of the definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halo_tvm.importers import import_model
from halo_tvm.importers.gguf._tokenizer import _PRE_TOKENIZERS, tokenizer_json
from halo_tvm.interpreter import evaluate

gguf = pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")
from gguf_files import MODELS, add, byte_level_texts, finish, write_model

IDS = np.array([3, 9, 77, 120, 64, 5, 33], np.int32)  # within every window: that of Phi-3 and EXAONE 4 is not kept
# What llama.cpp does not load with so few heads and layers, or reads without its epsilon; and what was not tried yet.
_OTHERWISE = ("dots1", "exaone4", "olmoe", "qwen2vl", "glm4moe", "olmo2: windows")
_NOT_COMPARED = {
    "falcon",
    "joyai-llm",
    "qwen35",
    "youtu",
    "exaone-moe",
    "jais-2",
}  # cuts other signs than the original, and names of later releases
_ROUNDED_GELU = ("bloom", "falcon", "gemma", "gemma2", "gemma3", "gpt2", "gptneox", "phi2", "starcoder2")


@pytest.mark.parametrize("architecture", [name for name in MODELS if name not in _OTHERWISE])
def test_logits_are_those_of_llama_cpp(tmp_path: Path, architecture: str) -> None:
    more = {f"{architecture.partition(':')[0]}.vocab_size": 131, "tokenizer.ggml.model": "none"}
    path, _ = write_model(tmp_path, architecture, more)
    wanted = logits_of_llama_cpp(path, 131)
    found = evaluate(import_model(str(path)), {"input_ids": IDS[None].astype(np.int64)})["logits"][0]
    near = 1e-3 if architecture in _ROUNDED_GELU else 1e-5  # a table of float16
    np.testing.assert_allclose(found, wanted, rtol=0, atol=near * np.abs(wanted).max())


def logits_of_llama_cpp(path: Path, vocabulary: int) -> np.ndarray:
    """[tokens, vocabulary] behind every one of `IDS`, with caches of float32 and attention as it is written."""
    lib = llama_cpp
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    assert model, f"llama.cpp does not load {path.name}"
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = 64
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = params.flash_attn_type = 0
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(64, 0, 1)
    batch.n_tokens = len(IDS)
    for i, token in enumerate(IDS):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    assert lib.llama_decode(context, batch) == 0
    rows = (np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (vocabulary,)) for i in range(len(IDS)))
    found = np.stack([row.copy() for row in rows])
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found


TEXT = (
    "The capital of France isn't Paris, IT'S 1234567 XMLHttpRequest\n\n  x = don't(12345)\tünï € 日本語 a_b.c!!\r\n"
    "fooBar  HELLO'll we'VE"
)


@pytest.mark.parametrize("pre", sorted(set(_PRE_TOKENIZERS) - _NOT_COMPARED))
def test_texts_are_those_of_llama_cpp(tmp_path: Path, pre: str) -> None:
    from tokenizers import Tokenizer

    metadata = {**byte_level_texts(), "tokenizer.ggml.pre": pre}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in metadata.items():
        add(writer, key, value.tolist() if isinstance(value, np.ndarray) else value)
    finish(writer)
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(tmp_path / "m.gguf").encode(), params)
    assert model, f"llama.cpp does not know {pre}"
    data, buffer = TEXT.encode(), (llama_cpp.llama_token * 400)()
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    count = llama_cpp.llama_tokenize(vocabulary, data, len(data), buffer, 400, False, True)
    llama_cpp.llama_model_free(model)
    found = Tokenizer.from_str(tokenizer_json(metadata)).encode(TEXT, add_special_tokens=False)
    assert found.ids == list(buffer[:count])
