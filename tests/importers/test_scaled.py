"""Checkpoints of eight and four bits with scales: the numbers they stand for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_files import LAYER
from safetensors.torch import load_file, save_file
from scaled_files import KINDS, scaled

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.importers.packed_linears import method_of

NAME = f"{LAYER}.weight"
STORED = {"compressed-int8": "int8", "bnb-int8": "int8", "bitnet": "int4", "bitnet-auto": "int4"}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_that_the_tensors_stand_for(tmp_path: Path, kind: str) -> None:
    meant = scaled(tmp_path, kind)
    model = import_model(str(tmp_path))
    for name, weight in meant.items():
        np.testing.assert_allclose(model.params.materialise(name), weight, rtol=2e-7, atol=0)
    assert len(meant) == 14
    assert model.params.stored_precision == STORED.get(kind)


@pytest.mark.parametrize(
    ("kind", "end", "tensor", "message"),
    [
        ("fp8-blocks", "weight_scale_inv", torch.ones(3, 2), r"weight_scale_inv of shape \[3, 2\] beside weight"),
        ("fp8-blocks", "weight", torch.ones(64, 64), "weight of float32"),
        ("compressed-int8", "weight_zero_point", torch.ones(64, dtype=torch.int8), "weight_zero_point of shape"),
        ("nvfp4", "weight_scale", torch.ones(64, 3), r"weight_scale of shape \[64, 3\] where \[64, a part of 64\]"),
        ("mxfp4", "weight_packed", torch.ones(64, 32), "weight_packed of float32"),
        ("nf4", "weight", torch.ones(7, 1, dtype=torch.uint8), "weight of 7 bytes"),
        ("nf4", "weight.absmax", torch.ones(5), "5 blocks of blocksize 64 for 4096 numbers"),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", torch.ones(9, dtype=torch.uint8), "that is no JSON object"),
        ("bitnet", "weight_scale", torch.ones(2), r"weight_scale of shape \[2\]"),
        ("bitnet", "weight", torch.full((16, 64), 192, dtype=torch.uint8), "a weight of 2 among -1, 0 and 1"),
        ("bnb-int8", "weight_format", torch.ones((), dtype=torch.uint8), "weight_format of a GPU's order"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, kind: str, end: str, tensor: torch.Tensor, message: str
) -> None:
    scaled(tmp_path, kind)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, f"{LAYER}.{end}": tensor}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(tmp_path)).params.materialise(NAME)


_DTYPES = (np.uint8, np.int8, np.float32, np.int32, ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tensors_make_a_weight_or_a_sentence(kind: str, data: st.DataObject) -> None:
    method = method_of({"quantization_config": KINDS[kind][0]})
    assert method is not None
    shape = st.lists(st.integers(0, 6), max_size=3).map(tuple)
    drawn = {
        end: np.zeros(data.draw(shape), data.draw(st.sampled_from(_DTYPES)))
        for end in method.parts
        if end in method.markers or data.draw(st.booleans())
    }
    try:
        layer = method.layer({end: tensor.shape for end, tensor in drawn.items()}, 4, 6)
        with np.errstate(all="ignore"):
            assert layer.floats(drawn).shape == (layer.n, layer.k)
            layer.grid(lambda end: drawn[end])
    except ValueError:
        pass
