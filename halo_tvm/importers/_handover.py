"""An ImportedModel as plain files, from a process that is not trusted: JSON and safetensors, nothing that runs.

module.json          the IRModule, as TVM writes it
weights.safetensors  the weights, which the reader maps: they exist once in memory, as pages of a file
model.json           everything else
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from ..artifact import Condition
from ..artifact.params_file import DTYPES
from ..codec import Unfit, parse_file, plain, read
from ..errors import UnsupportedModel
from ..imported import ImportedModel, InputSpec
from ..params import ParamSource, ParamTable
from ._allowed import refuse_foreign

_DTYPES = {**{name: code for name, (code, _) in DTYPES.items()}, "complex64": "C64"}  # NumPy's -> the file's
_NAMES = {code: name for name, code in _DTYPES.items()}
_HEADER_LIMIT = 64 << 20


@dataclass(frozen=True)
class _Written:
    """model.json"""

    name: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    ranges: dict[str, tuple[int, int]]
    typical: dict[str, int]
    source: dict[str, object]
    report: dict[str, object]
    drawn: tuple[str, ...]
    complex_outputs: tuple[str, ...]
    conditions: tuple[Condition, ...]
    engine: bool


def dump_model(model: ImportedModel, directory: Path) -> None:
    """Write `model` (without its engine) into `directory`."""
    (directory / "module.json").write_text(tvm.ir.save_json(model.mod), encoding="utf-8")
    params = model.params
    # What is made of weights is made here: the reader carries out nothing that a file asks for.
    names = list(map(str, model.mod["main"].attrs["halo.params"])) if params.recipes else list(params.sources)
    write_arrays(
        directory / "weights.safetensors",
        {name: (params.dtype(name), params.shape(name)) for name in names},
        (array for _, array in params.stream(names)),
    )
    body = {f.name: plain(getattr(model, f.name)) for f in dataclasses.fields(_Written)}
    text = json.dumps({**body, "engine": model.engine is not None}, default=str)
    (directory / "model.json").write_text(text, encoding="utf-8")


def load_model(directory: Path) -> tuple[ImportedModel, bool]:
    """What `dump_model` wrote, and whether the writer has an engine. The weights stay mapped after the files go."""
    import_module("halo_tvm.relay_ops")  # the operators that the module may name
    try:
        written = read(_Written, parse_file(directory / "model.json", _HEADER_LIMIT), "model.json")
    except Unfit as unfit:
        raise UnsupportedModel(f"{unfit}, from the worker: report this model") from unfit
    text = (directory / "module.json").read_text(encoding="utf-8")
    refuse_foreign(text)
    mod = tvm.ir.load_json(text)
    if not isinstance(mod, tvm.IRModule) or not relax.analysis.check_well_formed(mod):
        raise UnsupportedModel("expected a well-formed module from the worker, found another: report this model")
    params = ParamTable()
    for name, array in map_arrays(directory / "weights.safetensors").items():
        params.add_source(name, ParamSource(array.shape, str(array.dtype), lambda array=array: array))
    model = ImportedModel(
        name=written.name,
        mod=mod,
        params=params,
        inputs=written.inputs,
        outputs=written.outputs,
        ranges=written.ranges,
        typical=written.typical,
        source=written.source,
        report=written.report,
        drawn=written.drawn,
        complex_outputs=written.complex_outputs,
        conditions=written.conditions,
    )
    return model, written.engine


def write_arrays(file: Path, headers: Mapping[str, tuple[str, tuple[int, ...]]], arrays: Iterable[np.ndarray]) -> None:
    """A safetensors file of `arrays`, which come one at a time in the order of `headers`."""
    table, end = {}, 0
    for name, (dtype, shape) in headers.items():
        start, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        table[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(table).encode()
    header += b" " * (-(len(header) + 8) % 64)
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for array, (dtype, shape) in zip(arrays, headers.values(), strict=True):
            assert array.shape == tuple(shape) and str(array.dtype) == dtype, f"{array.dtype}{array.shape}"
            stream.write(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))


def map_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, read-only, as pages of the file; every bound is checked."""
    with file.open("rb") as stream:
        size = file.stat().st_size
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(size - 8, _HEADER_LIMIT):
            raise UnsupportedModel(f"expected a safetensors header in {size} bytes, found {length}: file is damaged")
        table = json.loads(stream.read(length))
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for name, entry in table.items():
        dtype, shape = np.dtype(_NAMES[entry["dtype"]]), tuple(map(int, entry["shape"]))
        start, end = map(int, entry["data_offsets"])
        count = math.prod(shape)
        if min(shape, default=0) < 0 or start < 0 or end - start != count * dtype.itemsize or 8 + length + end > size:
            raise UnsupportedModel(f"expected tensor {name!r} inside {file.name}, found other bounds: file is damaged")
        arrays[name] = np.frombuffer(data, dtype, count, 8 + length + start).reshape(shape)
    return arrays
