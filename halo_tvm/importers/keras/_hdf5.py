"""HDF5 files of Keras (`.h5`): most are from Keras 2, whose configurations have words that Keras 3 refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import keras

from ...errors import UnsupportedModel
from ._archive import CONFIG_LIMIT, check_classes

# Class -> words that Keras 3 refuses, and the value at which they say nothing.
_WORDS: dict[str, dict[str, object]] = {
    "DepthwiseConv2D": {"groups": 1},
    "Conv2DTranspose": {"groups": 1},
    "SeparableConv2D": {"groups": 1},
    "LSTM": {"time_major": False},
    "GRU": {"time_major": False},
    "SimpleRNN": {"time_major": False},
    "BatchNormalization": {},
}


def load(path: Path) -> Any:
    """The model in the file at `path`; `UnsupportedModel` when it has none, or one of foreign classes."""
    check_classes(_config(path), path.name)
    return keras.saving.load_model(path, custom_objects={name: _tolerant(name) for name in _WORDS}, compile=False)


def _config(path: Path) -> object:
    try:
        with h5py.File(path, "r") as file:
            found = file.attrs.get("model_config")
            weights = any(name in file.attrs for name in ("layer_names", "keras_version")) or "layers" in file
    except OSError as reason:
        raise UnsupportedModel(
            f"expected an HDF5 file of Keras in {path.name}, found {reason}: save the model again as .keras"
        ) from reason
    if found is None:
        what = "weights alone" if weights else "none"
        raise UnsupportedModel(
            f"expected the configuration of a model in {path.name}, found {what}: build the model, load them, and save "
            "it as .keras"
        )
    text = found if isinstance(found, str | bytes) else str(found)
    if len(text) > CONFIG_LIMIT:
        raise UnsupportedModel(f"expected a configuration of at most {CONFIG_LIMIT >> 20} MiB in {path.name}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise UnsupportedModel(
            f"expected the configuration in {path.name} as JSON, found {reason}: save the model again as .keras"
        ) from reason


def _tolerant(name: str) -> type:
    """Keras's class `name`, which leaves out words of Keras 2 that say nothing."""
    base = getattr(keras.layers, name)

    def from_config(cls: type, config: dict[str, Any]) -> Any:
        silent = _WORDS[name]
        config = {key: value for key, value in config.items() if key not in silent or value != silent[key]}
        if isinstance(config.get("axis"), list | tuple) and len(config["axis"]) == 1:  # one axis in a list
            config["axis"] = config["axis"][0]
        return base.from_config(config)

    return type(name, (base,), {"from_config": classmethod(from_config)})
