"""Schedule rules, one file each, in families. Which rules a target uses, and in which order, its manifest says.

Families
    products      a weight or a second matrix: GEMM, GEMV, batched products, tensor cores, the steps of recurrent layers
    windows       convolution, depthwise convolution, pooling
    attention     flash and decode attention
    rows          reductions along the last axis: softmax, norms, mean, sum
    injective     element-wise chains, transposes, gathers, concatenations
    general       whatever has no rule of its own: search, fallback, TVM's dlight rules
Beside them
    rule, blocks, stages    the protocol, and facts about functions that rules ask for
    code                    what kernels are written with
"""

from __future__ import annotations

import importlib
import pkgutil

from .blocks import has_exact_buffers
from .rule import RULES, Rule

for _family in sorted(m.name for m in pkgutil.iter_modules(__path__) if m.ispkg):
    _package = importlib.import_module(f"{__name__}.{_family}")
    for _module in sorted(m.name for m in pkgutil.iter_modules(_package.__path__) if not m.name.startswith("_")):
        importlib.import_module(f"{_package.__name__}.{_module}")

__all__ = ["RULES", "Rule", "has_exact_buffers"]
