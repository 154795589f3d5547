"""Language models without a definition speak as well: every token reads the whole text."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from byte_tokens import write_tokenizer

from halo_tvm import LanguageModel
from halo_tvm.artifact import read_manifest
from halo_tvm.cli import main
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import BeyondDefinition, InputError, UsageError
from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process
from halo_tvm.runtime.validation import validate_artifact

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import _small_models

pytestmark = pytest.mark.slow
SIZES = {"vocab_size": 258, "d_model": 32, "ffn_dim": 48, "attention_heads": 2, "num_layers": 1}


@pytest.fixture(scope="module")
def source() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.XGLMConfig(**SIZES, max_position_embeddings=300)
    return _small_models.disturbed(transformers.XGLMForCausalLM(config).eval())


@pytest.fixture(scope="module")
def artifact(source: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recomputed")
    source.save_pretrained(folder / "xglm")
    write_tokenizer(folder / "xglm")
    path = folder / "m.halo"
    compile_model(CompileConfig(model=str(folder / "xglm"), output=str(path), threads=2, records=False))
    return path


@pytest.fixture(scope="module")
def model(artifact: Path):
    with LanguageModel.load(artifact, threads=2) as loaded:
        yield loaded


def test_answers_are_those_of_transformers(source: torch.nn.Module, model: LanguageModel) -> None:
    prompt = list(b"Once upon")
    wanted = source.generate(torch.tensor([prompt]), max_new_tokens=9, do_sample=False, use_cache=False)
    assert list(model.generate(prompt, max_new_tokens=9).tokens) == wanted[0, len(prompt) :].tolist()
    assert "".join(model.stream("Once upon", max_new_tokens=9)) == model.generate("Once upon", max_new_tokens=9).text


@pytest.mark.parametrize("count", [1, 2, 7])
def test_logits_behind_texts_of_any_length(source: torch.nn.Module, model: LanguageModel, count: int) -> None:
    """One token is fewer than an exported program takes."""
    ids = list(range(60, 60 + count))
    with torch.no_grad():
        wanted = source(torch.tensor([[*ids, 5]])).logits[0].numpy()
    near = {"rtol": 0, "atol": 1e-5 * np.abs(wanted).max()}
    np.testing.assert_allclose(model.score(ids), wanted[:count], **near)
    np.testing.assert_allclose(model.prefill(ids), wanted[count - 1], **near)
    np.testing.assert_allclose(model.decode(5), wanted[count], **near)
    model.truncate(count)
    assert model.length == count and model.cache_bytes == 0
    np.testing.assert_allclose(model.extend([5]), wanted[count], **near)


def test_a_config_that_its_definition_refuses_is_exported(tmp_path: Path) -> None:
    """An activation that definitions lack; without weights nothing can be exported, and the refusal stays."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "tanh", "max_position_embeddings": 64}
    net = _small_models.disturbed(
        transformers.StableLmForCausalLM(transformers.StableLmConfig(**sizes, **heads)).eval()
    )
    net.save_pretrained(tmp_path / "lm")
    imported = import_model(str(tmp_path / "lm"))
    assert "gelu_pytorch_tanh, relu, relu2, found 'tanh'" in imported.report["no_definition"] and not imported.entries
    ids = np.arange(7).reshape(1, 7)
    with torch.no_grad():
        wanted = net(torch.tensor(ids)).logits.numpy()
    given = (ids, np.ones_like(ids))[: len(imported.inputs)]
    found = compile_in_process(imported)(*given)["logits"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    (tmp_path / "lm" / "model.safetensors").unlink()
    with pytest.raises(BeyondDefinition, match="a stablelm config with an activation among silu, .* found 'tanh'"):
        import_model(str(tmp_path / "lm"))


def test_a_text_is_compared(artifact: Path) -> None:
    assert read_manifest(artifact).functions.keys() == {"main"}
    assert validate_artifact(artifact)["text"] is not None


def test_what_it_cannot_do(artifact: Path, model: LanguageModel) -> None:
    with pytest.raises(UsageError, match="expected one slot of a model without caches, found 2"):
        LanguageModel.load(artifact, slots=2)
    model.prefill([1] * (model.context - 1))
    model.decode(1)
    with pytest.raises(InputError, match="expected at most 0 more tokens in a context of"):
        model.decode(1)
    with pytest.raises(InputError, match="expected token ids from 0 to 257, found 258"):
        model.prefill([258])


def test_on_the_command_line(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(artifact), "--prompt", "Once upon", "--max-new-tokens", "4"]) == 0
    with LanguageModel.load(artifact) as loaded:
        assert loaded.generate("Once upon", max_new_tokens=4).text.strip() in capsys.readouterr().out
