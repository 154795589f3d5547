"""What torch.export traces a module in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import _autograd, _functorch
from torch.distributions import Distribution

from ._recurrent import whole_layers


@contextmanager
def tracing() -> Iterator[None]:
    """No gradients, recurrent layers as one operator each, distributions unchecked; behind it all is as it was."""
    with torch.no_grad(), whole_layers(), _unchecked_distributions(), _transforms_left():
        yield


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Distributions check neither parameters nor values unless they are told to: a trace has no values to ask for."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _transforms_left() -> Iterator[None]:
    """A trace that fails inside of torch.func's vmap or grad stays in it, and the process could use neither again."""
    depth = _functorch.get_dynamic_layer_stack_depth()
    allowed = _functorch.get_inplace_requires_grad_allowed()
    hooked = _autograd._saved_tensors_hooks_get_disabled_error_message()
    try:
        yield
    finally:
        if _functorch.get_dynamic_layer_stack_depth() > depth:
            _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        _functorch.set_inplace_requires_grad_allowed(allowed)
        if hooked is None:
            _autograd._saved_tensors_hooks_enable()
