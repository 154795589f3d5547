"""Running artifacts: tvm_ffi and libtvm_runtime only, no compiler, no torch.

`host` says what this machine can run, `weights` maps the parameters, `session` owns the thread that
runs kernels, `devices` and `gpu` know where these run, `inputs` checks what goes in, `executor` is the
interface, `validation` compares with the reference stored in the artifact.
"""

from .executor import BenchmarkResult, Module, load
from .pending import Pending

__all__ = ["BenchmarkResult", "Module", "Pending", "load"]
