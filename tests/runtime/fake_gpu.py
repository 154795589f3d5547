"""A process in which a GPU is there that is none: TVM's own CUDA runtime over `fake_cuda.c`, kernels emulated.

python fake_gpu.py FOLDER KERNELS SCRIPT ARGUMENTS    # runs SCRIPT there; KERNELS: what `Pretended.save` wrote
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is also a script, and `emulation` lies beside its folder

SOURCE = Path(__file__).with_name("fake_cuda.c")
# `fake_count` of these, in the order of the enumeration in the source.
COUNTS = ("mallocs", "pinned", "copies", "launches", "graphs", "graph_launches", "own_stream_copies", "unpinned_copies")
_ILLEGAL_ADDRESS = 700  # cudaErrorIllegalAddress
_VERSIONS = "libcudart.so.13 { global: *; };"


def build(folder: Path) -> Path | None:
    """The two libraries, in `folder`; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    (folder / "versions").write_text(_VERSIONS)
    (folder / "empty.c").write_text("")
    shared = [compiler, "-shared", "-fPIC", "-O1", "-w", "-L."]
    for command in (
        ["-o", "libcudart.so.13", str(SOURCE), "-Wl,-soname,libcudart.so.13", "-Wl,--version-script=versions"],
        ["-o", "libcuda.so.1", "empty.c", "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", "-l:libcudart.so.13"],
    ):
        subprocess.run([*shared, *command], cwd=folder, check=True, timeout=120)
    return folder


def load(folder: Path) -> ctypes.CDLL:
    """The fake in this process, before anything looks for a GPU; TVM's part then finds it loaded."""
    cuda = ctypes.CDLL(str(folder / "libcudart.so.13"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "libcuda.so.1"), ctypes.RTLD_GLOBAL)
    cuda.fake_count.restype = ctypes.c_long
    return cuda


def counts(cuda: ctypes.CDLL) -> dict[str, int]:
    return {name: cuda.fake_count(number) for number, name in enumerate(COUNTS)}


class Pretended:
    """While libraries are built: a device compiler that makes nothing, and the kernels it would have been given."""

    def __init__(self, monkeypatch: object) -> None:
        from emulation._run import _Lowered

        from halo_tvm import build as building
        from halo_tvm.cuda import machine_code
        from halo_tvm.cuda.launches import is_kernel

        self.kernels: dict[str, object] = {}  # by what the driver calls them: the library's image, the name
        self._libraries = 0
        plain = building.generating

        @contextmanager
        def generating(target: object, instruments: tuple = (), **rest: object) -> Iterator[None]:
            kept = _Lowered()
            with plain(target, instruments=(*instruments, kept), **rest):
                yield
            self._libraries += 1
            self.kernels |= {f"{self._image}{name}": f for name, f in kept.functions.items() if is_kernel(f)}

        monkeypatch.setattr(building, "generating", generating)
        monkeypatch.setattr(
            machine_code, "compile_source", lambda *_: machine_code.MachineCode(self._image.encode() + b"\0", ())
        )
        monkeypatch.setattr(machine_code, "no_compiler", lambda _arch: "")
        monkeypatch.setattr(machine_code, "find_nvcc", lambda: machine_code.Nvcc("nvcc", "0.0", frozenset()))

    @property
    def _image(self) -> str:
        return f"library{self._libraries}_"

    def save(self, path: Path) -> Path:
        return save_kernels(self.kernels, path)


def save_kernels(kernels: Mapping[str, object], path: Path) -> Path:
    """Kernels by what the driver calls them, and in a file beside it how many arguments each has."""
    import tvm

    arguments = {name: len(func.params) for name, func in kernels.items()}
    path.with_suffix(".arguments").write_text(json.dumps(arguments))
    path.write_text(tvm.ir.save_json(tvm.IRModule(dict(kernels))))
    return path


def _counts_in(kernels: Path) -> dict[str, int]:
    return json.loads(kernels.with_suffix(".arguments").read_text())


class Emulated:
    """What is launched is emulated, as long as this is kept. TVM is imported by the first launch.

    Kernels are those of `add`, and of files that somebody writes into `folder`. A fault ends the process; with
    `goes_on` it is what every later call to CUDA answers, as of a GPU that is lost.
    """

    def __init__(self, cuda: ctypes.CDLL, folder: Path | None = None, *, goes_on: bool = False) -> None:
        self._cuda = cuda
        self._folder = folder
        self._goes_on = goes_on
        cuda.fake_range.argtypes = [ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)]
        self._files: dict[str, Path] = {}  # by kernel
        self._functions: dict[str, object] = {}
        numbers = ctypes.POINTER(ctypes.c_uint)
        launched = ctypes.CFUNCTYPE(
            None, ctypes.c_char_p, numbers, numbers, ctypes.c_uint, ctypes.POINTER(ctypes.c_uint64)
        )
        self._callback = launched(self._ended_by_faults)
        cuda.fake_on_launch(self._callback)
        self._looked_for = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)(self._look_for)
        cuda.fake_on_unknown(self._looked_for)

    def add(self, kernels: Path) -> None:
        """Kernels that may be launched: a file of `save_kernels`."""
        for name, count in _counts_in(kernels).items():
            self._files[name] = kernels
            self._cuda.fake_kernel(name.encode(), count)

    def _look_for(self, name: bytes) -> int:
        """How many arguments a kernel of the folder has."""
        files = set(self._folder.glob("*.json") if self._folder else ()) - set(self._files.values())
        for kernels in files:
            if name.decode() in _counts_in(kernels):
                self.add(kernels)
                return int(_counts_in(kernels)[name.decode()])
        print(f"there is no kernel {name.decode()}", file=sys.stderr)
        return 0

    def _ended_by_faults(self, *arguments: object) -> None:
        try:
            self._run(*arguments)
        except BaseException:  # noqa: BLE001 - called from C, which would go on
            traceback.print_exc()
            if not self._goes_on:
                os._exit(70)
            self._cuda.fake_lost(_ILLEGAL_ADDRESS)

    def _run(self, name: bytes, grid: object, block: object, shared: int, arguments: object) -> None:
        from emulation._memory import Memory, Pointer, numpy_dtype
        from emulation._run import _run_kernel

        func, memories, given = self._function(name.decode()), {}, []
        for param, raw in zip(func.params, arguments[: len(func.params)], strict=True):
            dtype = str(getattr(param.ty, "dtype", "handle"))
            if "int" in dtype or "float" in dtype or dtype == "bool":
                given.append(np.array([raw], np.uint64).view(np.uint8).view(dtype)[0])
                continue
            start, size = ctypes.c_uint64(), ctypes.c_uint64()
            self._cuda.fake_range(raw, ctypes.byref(start), ctypes.byref(size))
            if start.value not in memories:
                data = np.frombuffer((ctypes.c_uint8 * size.value).from_address(start.value), np.uint8).reshape(1, -1)
                memories[start.value] = Memory(param.name, "global", data, None, None)
            element = numpy_dtype(str(param.ty.element_type.dtype))[0]
            given.append(Pointer(memories[start.value], element, np.zeros((), np.int64), raw - start.value))
        extents = {f"blockIdx.{axis}": grid[i] for i, axis in enumerate("xyz")}
        extents |= {f"threadIdx.{axis}": block[i] for i, axis in enumerate("xyz")}
        with np.errstate(all="ignore"):
            _run_kernel(name.decode(), func, given, extents)

    def _function(self, name: str) -> object:
        import tvm

        if name not in self._functions:
            loaded = tvm.ir.load_json(self._files[name].read_text())
            self._functions |= {var.name_hint: func for var, func in loaded.functions_items()}
        return self._functions[name]


if __name__ == "__main__":
    folder, kernels, script, *arguments = sys.argv[1:]
    fake = load(Path(folder))
    emulated = Emulated(fake)
    emulated.add(Path(kernels))
    sys.argv = [script, *arguments]
    runpy.run_path(script, {"fake": fake}, "__main__")
