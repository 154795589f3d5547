"""The confined end of `_restricted`: convert one file, then answer calls of its engine, until the pipe closes.

One JSON line per request and per reply. Arrays travel as safetensors files in the worker's own directory.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from ..array_files import one_reason
from ..confinement import Policy, limit_memory
from ..errors import HaloError
from ..imported import ImportedModel
from ..processes import die_with, line_to_parent

# kind -> module and function (path, options) -> ImportedModel; in this process a file may do its worst.
CONVERTERS = {
    "torchscript": ("halo_tvm.importers.torchscript", "import_unrestricted"),
    "torch_export": ("halo_tvm.importers.torch_export", "import_unrestricted"),
    "tensorflow": ("halo_tvm.importers.tensorflow", "import_unrestricted"),
    "stablehlo": ("halo_tvm.importers.stablehlo", "import_unrestricted"),
    "keras": ("halo_tvm.importers.keras", "import_unrestricted"),
    "transformers": ("halo_tvm.importers.torch_export.transformers", "import_unrestricted"),
    "probe": ("halo_tvm.importers._probe", "import_unrestricted"),
}


def main(policy: Policy, held: dict[str, str]) -> None:
    """Serve requests on the standard streams; what libraries print goes to standard error."""
    send = line_to_parent()
    send({"held": held})
    model: ImportedModel | None = None
    directory = Path(policy.directory)
    for line in sys.stdin:
        request = json.loads(line)
        if request["command"] == "convert":
            if request["parent"]:
                die_with(int(request["parent"]))
            model, reply = _attempt(lambda: _convert(request, policy, directory))
        else:
            _done, reply = _attempt(lambda: _engine(model, directory))
        send(reply)


def _attempt(action: Callable[[], object]) -> tuple[object, dict[str, object]]:
    try:
        return action(), {"ok": True}
    except HaloError as error:
        return None, {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        return None, {"error": "MemoryError", "message": ""}
    except Exception as error:  # noqa: BLE001 - a worker's boundary: whatever the file provokes is its answer
        return None, {"error": "Exception", "message": f"{type(error).__name__}: {one_reason(error)}"}


def _convert(request: dict[str, object], policy: Policy, directory: Path) -> ImportedModel:
    from ._handover import dump_model

    module, function = CONVERTERS[str(request["kind"])]
    convert = getattr(importlib.import_module(module), function)
    if request["warm"]:
        importlib.import_module(str(request["warm"]))  # its own memory is not the file's
    limit_memory(policy.memory_bytes)
    model = convert(Path(str(request["path"])), request["options"])
    dump_model(model, directory)
    return model


def _engine(model: ImportedModel | None, directory: Path) -> None:
    from ._handover import map_arrays, write_arrays

    assert model is not None and model.engine is not None, "the engine was called before a conversion"
    outputs = model.engine(map_arrays(directory / "inputs.safetensors"))
    headers = {name: (str(value.dtype), value.shape) for name, value in outputs.items()}
    write_arrays(directory / "outputs.safetensors", headers, outputs.values())
