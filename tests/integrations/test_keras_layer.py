"""The page docs/keras.md, executed: an artifact as a layer of a model that is called, saved and loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from pages import executed

from halo_tvm.errors import UsageError

if not all(map(importlib.util.find_spec, ("jax", "keras"))):  # keras is imported when its backend is set
    pytest.skip("jax and keras: pip install halo_tvm[keras]", allow_module_level=True)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # so that what it was comes back
    monkeypatch.delenv("KERAS_BACKEND")  # the page chooses, before it imports keras
    names = executed("keras.md", tmp_path, monkeypatch)
    import keras

    from halo_tvm.integrations.keras import HaloLayer

    net, given = names["net"], names["given"]
    assert net.output_shape == (None, 8) and not net.weights
    net.save("net.keras")
    with pytest.raises((TypeError, ValueError), match="HaloLayer"):
        keras.saving.load_model("net.keras")  # nobody vouches for the artifact that it names
    again = keras.saving.load_model("net.keras", custom_objects={"HaloLayer": HaloLayer})
    np.testing.assert_array_equal(again.predict(given, verbose=0), net.predict(given, verbose=0))
    layer = HaloLayer("encoder.halo")
    np.testing.assert_array_equal(layer({"ids": given}), layer([given]))
    with pytest.raises(UsageError, match="expected the inputs ids, found 2 by position"):
        layer([given, given])
