"""What is given to a model of transformers for its export: of the layouts that a name may have, one that it takes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from halo_tvm.artifact import TensorSpec
from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.importers.torch_export.transformers_inputs import Example, examples_of, kept_sizes
from halo_tvm.in_process import compile_in_process

_SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
_WAVE = {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 16}
_SERIES = {"d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32, "context_length": 24}
_SERIES |= {"num_input_channels": 3, "patch_length": 4, "patch_stride": 4}
_VIDEO = {**_SMALL, "image_size": 32, "patch_size": 16, "num_frames": 4}
MODELS = {
    "VideoMAEModel": (_VIDEO, "pixel_values", (4, 3, 32, 32), {0: "batch"}),
    "ViTModel": ({**_SMALL, "image_size": 32}, "pixel_values", (3, 32, 32), {0: "batch"}),
    "ASTModel": ({**_SMALL, "max_length": 64, "num_mel_bins": 32}, "input_values", (64, 32), {0: "batch"}),
    "Wav2Vec2Model": (
        {**_SMALL, **_WAVE, "num_conv_pos_embedding_groups": 4},
        "input_values",
        (4000,),
        {0: "batch", 1: "samples"},
    ),
    "DacModel": (
        {"encoder_hidden_size": 4, "decoder_hidden_size": 32, "downsampling_ratios": [2, 4], "hidden_size": 16},
        "input_values",
        (1, 4000),
        {0: "batch", 2: "samples"},
    ),
    "PatchTSTModel": (_SERIES, "past_values", (24, 3), {0: "batch"}),
}


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**MODELS[name][0])).eval()


@pytest.mark.parametrize("name", MODELS)
def test_the_layout_that_a_model_takes(name: str) -> None:
    _, input_name, shape, axes = MODELS[name]
    found = examples_of(made(name), {})
    assert list(found) == [input_name]
    assert tuple(found[input_name].tensor.shape) == (2, *shape) and found[input_name].axes == axes


def test_other_inputs_are_refused() -> None:
    config = transformers.DecisionTransformerConfig(hidden_size=16, n_layer=1, n_head=2)
    model = transformers.DecisionTransformerModel(config)
    with pytest.raises(UnsupportedModel, match="a model of text, images, sound or series, found DecisionTransformer"):
        examples_of(model, {})


def test_sizes_that_the_model_itself_fixes() -> None:
    """One row where it takes a single batch; a length is asked for, as that of an example is nobody's."""
    ids = Example(torch.arange(24).reshape(2, 12), {0: "batch", 1: "sequence"})
    examples = {"input_ids": ids, "pixel_values": Example.of(3, 8, 8)}

    def kept(batch: int | str, length: int | str, **given: tuple[int, ...]) -> dict[str, int]:
        shapes = {"input_ids": (batch, length), "pixel_values": (batch, 3, 8, 8)}
        return kept_sizes(examples, [TensorSpec(n, shape, "float32") for n, shape in shapes.items()], given)

    assert kept("batch", "sequence", input_ids=(1, 16)) == {}
    assert kept(2, "sequence") == {"batch": 1}
    assert kept(2, "sequence", pixel_values=(4, 3, 8, 8)) == {"batch": 4}
    assert kept("batch", 12, input_ids=(1, 16)) == {"sequence": 16}
    with pytest.raises(UnsupportedModel, match="takes any sequence, found one .* single one: say .* input_ids=1xN"):
        kept(2, 12)
    found = ids.at({"sequence": 14})
    assert found.tensor.tolist()[1] == [*range(12, 24), 12, 13] and found.axes == {0: "batch"}


@pytest.mark.slow
def test_one_row_where_the_model_takes_a_single_batch(tmp_path) -> None:
    config = transformers.PixtralVisionConfig(**_SMALL, image_size=32, patch_size=16)
    transformers.PixtralVisionModel(config).save_pretrained(tmp_path)
    assert import_model(str(tmp_path)).inputs[0].shape == (1, 3, 32, 32)


@pytest.mark.slow
def test_videos(tmp_path) -> None:
    model = made("VideoMAEModel")
    model.save_pretrained(tmp_path)
    frames = np.random.default_rng(0).standard_normal((3, 4, 3, 32, 32)).astype(np.float32)
    found = compile_in_process(import_model(str(tmp_path)), threads=1, level=2)(pixel_values=frames)
    with torch.no_grad():
        wanted = model(torch.from_numpy(frames)).last_hidden_state.numpy()
    np.testing.assert_allclose(found["last_hidden_state"], wanted, atol=1e-5)
