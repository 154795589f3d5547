"""Which machine instructions a kernel consists of: whether tensor cores and asynchronous copies are really used."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from ..errors import EnvironmentProblem
from .toolkit import find_tool

_FUNCTION = re.compile(r"^\s*Function : (\S+)$", re.MULTILINE)
# "/*0040*/  @!P0 LDGSTS.E [R19], [R2.64] ;": an address, perhaps a predicate, the operation with its variants.
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)", re.MULTILINE
)


def instructions(fatbin: bytes) -> dict[str, Counter[str]]:
    """The operations of each kernel in `fatbin`, with their variants: {"main_kernel": {"HMMA.16816.F32": 16, ...}}.

    `EnvironmentProblem` without NVIDIA's readers of machine code.
    """
    cuobjdump, nvdisasm = find_tool("cuobjdump"), find_tool("nvdisasm")
    if cuobjdump is None or nvdisasm is None:
        raise EnvironmentProblem(
            "reading machine code needs cuobjdump and nvdisasm, which are not here: "
            "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    with tempfile.TemporaryDirectory(prefix="halo-tvm-sass-") as scratch:
        written = Path(scratch) / "kernels.fatbin"
        written.write_bytes(fatbin)
        done = subprocess.run(
            [cuobjdump, "--dump-sass", str(written)],
            capture_output=True,
            text=True,
            # cuobjdump calls nvdisasm by its name.
            env={"PATH": os.pathsep.join([str(Path(nvdisasm).parent), os.defpath])},
            timeout=600,
        )
    if done.returncode != 0:
        raise EnvironmentProblem(
            f"cuobjdump was expected to read this machine code, but says: {done.stderr.strip()[:300]}: "
            "install a version as new as nvcc"
        )
    parts = _FUNCTION.split(done.stdout)[1:]
    return {name: Counter(_INSTRUCTION.findall(text)) for name, text in zip(parts[::2], parts[1::2])}
