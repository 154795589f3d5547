"""A compiled forward whose gradients torch computes: when `backward` comes, the graph is run again in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

Run = Callable[[Sequence[Any]], Sequence[torch.Tensor]]


class CompiledForward(torch.autograd.Function):
    """Outputs of `forward` for `args`; `backward` gives the gradients of `eager`, which computes the same in torch.

    `differentiable` says which outputs have gradients; `asked` is called when they are asked for.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        forward: Run,
        eager: Callable[..., Sequence[torch.Tensor]],
        differentiable: Sequence[bool],
        asked: Callable[[], None],
        *args: object,
    ) -> tuple[torch.Tensor, ...]:
        outputs = tuple(forward(args))
        ctx.mark_non_differentiable(*(o for o, has in zip(outputs, differentiable, strict=True) if not has))
        # Tensors go through torch, which refuses `backward` after one of them was changed.
        ctx.save_for_backward(*(a for a in args if isinstance(a, torch.Tensor)))
        ctx.numbers = [None if isinstance(a, torch.Tensor) else a for a in args]
        ctx.is_tensor = [isinstance(a, torch.Tensor) for a in args]
        ctx.eager, ctx.asked = eager, asked
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[object, ...]:
        ctx.asked()
        saved, needed = iter(ctx.saved_tensors), ctx.needs_input_grad[4:]
        args = [
            next(saved).detach().requires_grad_(needs) if is_tensor else number
            for is_tensor, number, needs in zip(ctx.is_tensor, ctx.numbers, needed, strict=True)
        ]
        with torch.enable_grad():
            outputs = ctx.eager(*args)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad and g is not None]
        leaves = [a for a, needs in zip(args, needed, strict=True) if needs]
        found = iter([None] * len(leaves))
        if pairs:
            found = iter(torch.autograd.grad(*_columns(pairs, leaves), allow_unused=True))
        return (None, None, None, None, *(next(found) if needs else None for needs in needed))


def _columns(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], leaves: Sequence[torch.Tensor]) -> tuple[object, ...]:
    """(outputs, what they depend on, gradients of outputs) as torch.autograd.grad takes them."""
    outputs, gradients = zip(*pairs, strict=True)
    return outputs, leaves, gradients
