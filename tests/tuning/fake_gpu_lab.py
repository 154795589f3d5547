"""Imported by the measurement processes under test: builders write kernels for a GPU that is none, the runner has it.

FAKE_DRIVER    the folder with the two libraries (`fake_gpu.build`)
FAKE_KERNELS   the folder in which builders leave kernels and from which they are emulated
"""

import itertools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import fake_gpu
from emulation._run import _Lowered

from halo_tvm.cuda import machine_code
from halo_tvm.cuda.launches import is_kernel
from halo_tvm.tuning.measure import build, gpu

DRIVER, KERNELS = "FAKE_DRIVER", "FAKE_KERNELS"
_numbers = itertools.count()
_image = ""


def _compiled(func, target, instruments=(), _plain=build._compiled):
    """Keeps the kernels beside what is compiled, under a name of their own."""
    global _image
    kept = _Lowered()
    executable = _plain(func, target, (*instruments, kept))
    _image = f"p{os.getpid()}n{next(_numbers)}_"
    kernels = {f"{_image}{name}": f for name, f in kept.functions.items() if is_kernel(f)}
    fake_gpu.save_kernels(kernels, Path(os.environ[KERNELS]) / f"{_image}.json")
    return executable


def pretend_to_build() -> None:
    build._compiled = _compiled
    machine_code.compile_source = lambda *_: machine_code.MachineCode(_image.encode() + b"\0", ())
    machine_code.no_compiler = lambda _arch: ""
    machine_code.find_nvcc = lambda: machine_code.Nvcc("nvcc", "0.0", frozenset())


def pretend_to_run():
    """The driver; kernels are looked for when they are launched."""
    gpu._FILLED_BYTES = 1 << 20  # a copy in memory is what filling is here
    driver = fake_gpu.load(Path(os.environ[DRIVER]))
    return fake_gpu.Emulated(driver, Path(os.environ[KERNELS]), goes_on=True)


_process = Path(sys.argv[0])
if _process.name == "builder.py":
    pretend_to_build()
elif _process.parent.name == "measure":
    kept = pretend_to_run()
