"""Compiled models inside PyTorch.

    module = halo_tvm.integrations.torch.HaloModule("gpt2.halo")     an artifact as `nn.Module`
    fast = torch.compile(model.eval(), backend="halo_tvm")           graphs compiled in this process
    print(halo_tvm.integrations.torch.report())                      what was compiled, what was not, and why

See docs/torch_compile.md: what runs compiled, gradients, sizes, changed weights.
"""

import torch._dynamo

from .backend import compile_backend
from .module import HaloModule
from .reports import EagerFallback, GraphReport, Report, report

# Before it asks a backend torch decides what is traced, and leaves recurrent layers out unless it is told otherwise:
# without a graph of them there would be nothing to compile, nor to report.
torch._dynamo.config.allow_rnn = True

__all__ = ["EagerFallback", "GraphReport", "HaloModule", "Report", "compile_backend", "report"]
