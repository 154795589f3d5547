"""The built-in families in plain torch.nn.functional calls, weights by name. Imported only in the torch worker."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import torch
import torch.nn.functional as F

Weights = MutableMapping[str, torch.Tensor]


class Network(torch.nn.Module):
    def __init__(self, config: Mapping[str, object], weights: Weights, transposed: tuple[str, ...] = ()) -> None:
        """Takes the tensors out of `weights`, so that none is held twice.

        `transposed`: endings of the names of weights stored [k, n]; they are turned once, to [n, k].
        """
        super().__init__()
        self.c = config
        for name in list(weights):
            tensor = weights.pop(name)
            turned = transposed and name.endswith(transposed)
            self.register_buffer(name.replace(".", "_"), tensor.T.contiguous() if turned else tensor)

    def w(self, name: str) -> torch.Tensor:
        return getattr(self, name.replace(".", "_"))

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.w(f"{name}.weight"), self.w(f"{name}.bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.w(f"{name}.weight"), self.w(f"{name}.bias"), self.c["eps"])

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        kind = self.c["activation"]
        if kind in ("relu", "silu"):
            return F.relu(x) if kind == "relu" else F.silu(x)
        return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, h * d] -> [b, h, s, d]"""
        b, s, _ = x.shape
        return x.view(b, s, self.c["heads"], -1).transpose(1, 2)

    @staticmethod
    def joined(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).flatten(2)


class GPT2(Network):
    def __init__(self, config: Mapping[str, object], weights: Weights) -> None:
        super().__init__(config, weights, transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = F.embedding(ids, self.w("wte.weight")) + self.w("wpe.weight")[: ids.shape[1]]
        for i in range(self.c["layers"]):
            q, k, v = self.linear(self.norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(self.c["hidden"], dim=2)
            y = F.scaled_dot_product_attention(self.heads(q), self.heads(k), self.heads(v), is_causal=True)
            x = x + self.linear(self.joined(y), f"h.{i}.attn.c_proj")
            y = self.activation(self.linear(self.norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
            x = x + self.linear(y, f"h.{i}.mlp.c_proj")
        x = x[:, -1] if self.c["last_only"] else x
        return F.linear(self.norm(x, "ln_f"), self.w("wte.weight"))


class Bert(Network):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        table = "embeddings.{}_embeddings.weight"
        x = F.embedding(ids, self.w(table.format("word"))) + self.w(table.format("position"))[: ids.shape[1]]
        x = self.norm(x + F.embedding(segments, self.w(table.format("token_type"))), "embeddings.LayerNorm")
        shown = (mask != 0)[:, None, None, :]
        for i in range(self.c["layers"]):
            layer = f"encoder.layer.{i}"
            q, k, v = (
                self.heads(self.linear(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value")
            )
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
            x = self.norm(
                x + self.linear(self.joined(y), f"{layer}.attention.output.dense"),
                f"{layer}.attention.output.LayerNorm",
            )
            y = self.activation(self.linear(x, f"{layer}.intermediate.dense"))
            x = self.norm(x + self.linear(y, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return x


class MLP(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(self.c["layers"]):
            x = F.relu(self.linear(x, f"layers.{i}"))
        return x


FAMILIES: dict[str, type[Network]] = {"gpt2": GPT2, "bert": Bert, "mlp": MLP}
