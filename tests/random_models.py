"""Language models of transformers with random weights, which norms and biases have as well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest


def written(directory: Path, kind: str, sizes: Mapping[str, object], ids: np.ndarray) -> np.ndarray:
    """A model of the type `kind`, written to `directory`; its logits for `ids`."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes)
    how = "sdpa" if sizes.get("alibi") else "eager"  # Falcon's eager attention adds the bias twice
    make = transformers.AutoModelForCausalLM.from_config
    if kind == "mistral4":  # known to be the language model of one that sees images alone
        make = transformers.Mistral4ForCausalLM._from_config
    model = make(config, attn_implementation=how).float().eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor) * (0.1 if tensor.ndim == 1 else 0.08))
        for name, tensor in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                tensor.add_(torch.randn_like(tensor) * 0.1)
        logits = model(torch.from_numpy(ids)).logits.numpy()
    model.save_pretrained(directory)
    return logits
