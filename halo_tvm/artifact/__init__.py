"""The artifact on disk: what `compile` writes and the runtime loads.

    gpt2.halo/   model.so   params.bin   manifest.json   reference.npz

`manifest` holds the records and their JSON, `params_file` the weights' container, `store` writes
the directory, `opened` verifies and reads it. Nothing here imports TVM, torch or onnx: the deploy path reads it.
"""

from .computed_sizes import is_computed, names_in, range_of, size_at, sizes_at
from .conditions import Condition, broken, names_of, sizes_that_hold
from .manifest import (
    ABI,
    RANDOM_STATE,
    UNBOUNDED,
    FileEntry,
    FunctionSpec,
    Manifest,
    Room,
    TensorSpec,
    Variant,
    last_position,
)
from .opened import (
    MANIFEST_NAME,
    REFERENCE_NAME,
    OpenArtifact,
    opened,
    read_manifest,
    read_reference,
    verify_artifact,
)
from .params_file import ParamEntry, ParamHeader, params_header_of, read_params_header, write_params
from .precision import cost_of, text_cost_of
from .store import check_output_path, update_manifest, write_artifact

__all__ = [
    "ABI",
    "MANIFEST_NAME",
    "RANDOM_STATE",
    "UNBOUNDED",
    "REFERENCE_NAME",
    "Condition",
    "FileEntry",
    "FunctionSpec",
    "Manifest",
    "OpenArtifact",
    "ParamEntry",
    "ParamHeader",
    "Room",
    "TensorSpec",
    "Variant",
    "broken",
    "check_output_path",
    "cost_of",
    "is_computed",
    "last_position",
    "names_in",
    "names_of",
    "opened",
    "params_header_of",
    "range_of",
    "read_manifest",
    "read_params_header",
    "read_reference",
    "size_at",
    "sizes_at",
    "sizes_that_hold",
    "text_cost_of",
    "update_manifest",
    "verify_artifact",
    "write_artifact",
    "write_params",
]
