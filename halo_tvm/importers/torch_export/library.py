"""Operators that other libraries add to torch, with their meaning: programs name them where those are not imported."""

from __future__ import annotations

import torch


def define_operators() -> None:
    """Register them, unless their library did."""
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return

    def grouped_mm(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        """Rows up to offs[g] and behind offs[g - 1], times weight[g]."""
        output = torch.zeros(input.size(0), weight.size(2), dtype=input.dtype)
        start = 0
        for group, end in enumerate(offs.tolist()):
            output[start:end] = input[start:end] @ weight[group]
            start = end
        return output

    operator = torch.library.custom_op("transformers::grouped_mm_fallback", grouped_mm, mutates_args=())
    operator.register_fake(lambda input, weight, offs: input.new_empty(input.size(0), weight.size(2)))
