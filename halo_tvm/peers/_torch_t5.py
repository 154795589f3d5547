"""The parts of T5 in plain torch.nn.functional calls, weights by name. Imported only in the torch worker."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from ._torch_models import Network, Weights


class _T5(Network):
    both_ways: bool

    def __init__(self, config: Mapping[str, object], weights: Weights) -> None:
        super().__init__(config, dict(weights))
        names = ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
        self.table = next((f"{name}.weight" for name in names if f"{name}.weight" in weights), "")
        table = next((tensor for name, tensor in weights.items() if "relative_attention_bias" in name), None)
        if table is not None:  # once for all runs: [heads, distances]
            reach = self.c["distance"]
            delta = torch.arange(-reach, reach + 1 if self.both_ways else 1)
            self.register_buffer("by_distance", table[self.buckets(delta)].T.contiguous())

    def buckets(self, delta: torch.Tensor) -> torch.Tensor:
        """The row of the bias table for each key position minus query position: exact near by, then logarithmic."""
        count = self.c["buckets"] // (2 if self.both_ways else 1)
        exact = count // 2
        far = delta.abs().double().clamp(min=exact) / exact
        far = exact + (far.log() / math.log(self.c["distance"] / exact) * (count - exact) + 1e-6).long()
        near = torch.where(delta.abs() < exact, delta.abs(), far.clamp(max=count - 1))
        return near + count * (delta > 0) if self.both_ways else near

    def project(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.w(f"{name}.weight"))

    def rms(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.w(f"{name}.weight"), self.c["eps"])

    def bias(self, queries: int, keys: int) -> torch.Tensor:
        """[1, heads, queries, keys]; the last query stands at the last key."""
        rows = torch.arange(keys - queries, keys)[:, None]
        reach = self.c["distance"]
        places = (torch.arange(keys) - rows).clamp(-reach, self.by_distance.shape[1] - reach - 1) + reach
        return self.by_distance[:, places][None]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: str, bias: torch.Tensor) -> torch.Tensor:
        """q, k, v [batch, heads, length, head_dim]"""
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.project(self.joined(y), f"{name}.o")

    def feed_forward(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        y, name = self.rms(x, f"{layer}.layer_norm"), f"{layer}.DenseReluDense"
        if self.c["gated"]:
            y = self.activation(self.project(y, f"{name}.wi_0")) * self.project(y, f"{name}.wi_1")
        else:
            y = self.activation(self.project(y, f"{name}.wi"))
        return x + self.project(y, f"{name}.wo")

    @staticmethod
    def hidden(mask: torch.Tensor) -> torch.Tensor:
        """A key mask [batch, keys] as what is added to scores."""
        return torch.where(mask[:, None, None, :] != 0, 0.0, torch.finfo(torch.float32).min)


class Encoder(_T5):
    both_ways = True

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = F.embedding(ids, self.w(self.table))
        bias = self.bias(ids.shape[1], ids.shape[1]) + self.hidden(mask)
        for i in range(self.c["layers"]):
            layer = f"encoder.block.{i}.layer"
            name = f"{layer}.0.SelfAttention"
            y = self.rms(x, f"{layer}.0.layer_norm")
            q, k, v = (self.heads(self.project(y, f"{name}.{part}")) for part in "qkv")
            x = x + self.attend(q, k, v, name, bias)
            x = self.feed_forward(x, f"{layer}.1")
        return self.rms(x, "encoder.final_layer_norm")


class Cross(_T5):
    both_ways = False

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, source, _ = states.shape
        return tuple(
            self.project(states, f"decoder.block.{i}.layer.1.EncDecAttention.{part}").view(
                batch, source, self.c["heads"], -1
            )
            for i in range(self.c["decoder_layers"])
            for part in "kv"
        )


class Decoder(_T5):
    both_ways = False

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = 2 * self.c["decoder_layers"]
        cross, past = given[:count], given[count:]
        tokens, keys = ids.shape[1], past[0].shape[1] + ids.shape[1]
        x = F.embedding(ids, self.w(self.table))
        late = torch.arange(keys) > torch.arange(keys - tokens, keys)[:, None]
        bias = self.bias(tokens, keys).masked_fill(late, torch.finfo(torch.float32).min)
        padding = self.hidden(mask)
        state = []
        for i in range(self.c["decoder_layers"]):
            layer = f"decoder.block.{i}.layer"
            name = f"{layer}.0.SelfAttention"
            y = self.rms(x, f"{layer}.0.layer_norm")
            q, *new = (self.project(y, f"{name}.{part}").view(*ids.shape, self.c["heads"], -1) for part in "qkv")
            k, v = (torch.cat(pair, dim=1) for pair in zip(past[2 * i : 2 * i + 2], new, strict=True))
            state += [k, v]
            x = x + self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), name, bias)
            name = f"{layer}.1.EncDecAttention"
            q = self.heads(self.project(self.rms(x, f"{layer}.1.layer_norm"), f"{name}.q"))
            k, v = (y.transpose(1, 2) for y in cross[2 * i : 2 * i + 2])
            x = x + self.attend(q, k, v, name, padding)
            x = self.feed_forward(x, f"{layer}.2")
        x = self.rms(x, "decoder.final_layer_norm")
        if self.c["tied"]:
            x = x * self.c["hidden"] ** -0.5
        own = not self.c["tied"] and hasattr(self, "lm_head_weight")
        return F.linear(x, self.w("lm_head.weight" if own else self.table)), *state
