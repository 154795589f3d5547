"""Building one PrimFunc into code that runs in this process, as the build phase would."""

from __future__ import annotations

import tvm
from tvm import tirx

from ...build import BUILD_OPTIONS
from ...targets import Target

NAME = "main"


def build(func: tirx.PrimFunc, target: Target) -> tvm.runtime.Module:
    """`func` compiled for `target`; the module's function is called `NAME`. TVM's errors pass through."""
    mod = tvm.IRModule({NAME: func.with_attr("global_symbol", NAME)})
    with tvm.transform.PassContext(opt_level=3, config=BUILD_OPTIONS):
        return tvm.compile(mod, target=target.tvm).jit()
