"""Keras: files and models in memory, the same numbers on every backend; nothing foreign in a file."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from graphs import context_of, unscheduled

import halo_tvm
from halo_tvm.errors import MissingPackage, UnsupportedModel, UsageError
from halo_tvm.importers import import_model
from halo_tvm.passes import pipeline
from halo_tvm.passes.graph_pass import count_calls

_IS_INSTALLED = {name: importlib.util.find_spec(name) is not None for name in ("keras", "jax", "torch", "tensorflow")}
needs_keras = pytest.mark.skipif(not _IS_INSTALLED["keras"], reason="keras: pip install halo_tvm[keras]")
SHAPES = ("ids=1..4x1..32", "scale=1..4x8")


@pytest.fixture(scope="module")
def net():
    """Two inputs of one batch; embedding, attention, a convolution, a norm, a dense layer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "jax" if _IS_INSTALLED["jax"] else "torch")  # read where keras is first imported
        import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    ids, scale = keras.Input((None,), dtype="int32", name="ids"), keras.Input((8,), name="scale")
    x = layers.Embedding(20, 8)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.Conv1D(8, 3, padding="same", activation="gelu")(x)
    return keras.Model([ids, scale], layers.Dense(3)(layers.GlobalAveragePooling1D()(x) * scale))


@pytest.fixture(scope="module")
def file(net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keras") / "net.keras"
    net.save(path)
    return path


def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"ids": rng.integers(0, 20, (2, 7)).astype(np.int32), "scale": rng.random((2, 8), np.float32)}


@needs_keras
@pytest.mark.parametrize(
    "backend", ["jax", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "tensorflow"))]
)
@pytest.mark.slow
@pytest.mark.sampled(2)
def test_a_file_on_each_backend(backend: str, net, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _IS_INSTALLED[backend]:
        pytest.skip(f"{backend} is not installed")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    model = import_model(str(file), shapes=SHAPES)
    assert [(spec.name, spec.dtype) for spec in model.inputs] == [("ids", "int32"), ("scale", "float32")]
    assert model.outputs == ("output",) and model.report["backend"] == backend
    assert all(isinstance(size, str) for size in model.inputs[0].shape)
    if backend != "torch":  # which names them itself
        assert model.inputs[0].shape == ("batch", "ids_1")
    expected = np.asarray(net(list(given().values())))
    for found in (model.engine(given()), unscheduled(model, given())):
        np.testing.assert_allclose(found["output"], expected, atol=1e-5)


@needs_keras
@pytest.mark.slow
def test_a_model_in_memory_stays_on_its_backend(net) -> None:
    import keras

    model = halo_tvm.import_keras(net, shapes=("ids=2x1..32",))
    assert model.report["backend"] == keras.backend.backend()
    assert model.inputs[0].shape[0] == 2 and model.inputs[1].shape[0] in (2, "batch")
    np.testing.assert_allclose(unscheduled(model, given())["output"], model.engine(given())["output"], atol=1e-5)
    with pytest.raises(UsageError, match=r"a Keras model that declares its inputs, found Sequential 'bare' without"):
        halo_tvm.import_keras(keras.Sequential([keras.layers.Dense(2)], name="bare"))


def text_model(kind: str):
    """A layer of an encoder, of a causal decoder, or of a decoder whose queries share keys, over embeddings."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(20, 16)(ids)
    norm = layers.LayerNormalization if kind == "encoder" else layers.RMSNormalization
    attend = layers.GroupQueryAttention(4, 4, 2) if kind == "grouped queries" else layers.MultiHeadAttention(4, 4)
    y = norm()(x)
    x = x + attend(y, y, use_causal_mask=kind != "encoder")
    x = x + layers.Dense(16)(layers.Dense(32, "gelu")(norm()(x)))
    return keras.Model(ids, layers.Dense(5)(norm()(x)))


@needs_keras
@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["encoder", pytest.param("causal decoder", marks=pytest.mark.sweep), "grouped queries"]
)
@pytest.mark.slow
@pytest.mark.sampled(1)
def test_text_models_keep_their_operators_at_open_sizes(
    kind: str, backend: str, net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _IS_INSTALLED[backend]:
        pytest.skip(f"{backend} is not installed")
    text_model(kind).save(tmp_path / "net.keras")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    model = import_model(str(tmp_path / "net.keras"), shapes=("ids=1..4x1..32",))
    mod, _ = pipeline.Pipeline.of(3).run(pipeline.LIFT, model.mod, context_of(model))
    norm = "halo.layer_norm" if kind == "encoder" else "halo.rms_norm"
    expected = {"halo.attention": 1, "halo.ffn": 1, "halo.embedding": 1, norm: 3}
    assert count_calls(mod["main"]).items() >= expected.items(), count_calls(mod["main"])
    assert all(isinstance(size, str) for size in model.inputs[0].shape)
    ids = {"ids": np.random.default_rng(0).integers(0, 20, (2, 7)).astype(np.int32)}
    np.testing.assert_allclose(unscheduled(model, ids)["output"], model.engine(ids)["output"], atol=1e-5)


@needs_keras
@pytest.mark.usefixtures("net")  # where Keras is first imported
@pytest.mark.slow
def test_files_of_keras_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5, with the words of Keras 2 that Keras 3 refuses; weights alone and foreign classes are no model."""
    import h5py
    import keras
    from keras import layers

    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    image = keras.Input((8, 8, 3), name="image")
    x = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(image))
    model = keras.Model(image, layers.Dense(3)(layers.LSTM(4)(layers.Reshape((8, 24))(x))))
    file = tmp_path / "net.h5"
    model.save(file)

    def edited(edit) -> None:
        with h5py.File(file, "r+") as opened:
            config = json.loads(opened.attrs["model_config"])
            for layer in config["config"]["layers"]:
                edit(layer)
            opened.attrs["model_config"] = json.dumps(config)

    older = {"DepthwiseConv2D": {"groups": 1}, "BatchNormalization": {"axis": [3]}, "LSTM": {"time_major": False}}
    edited(lambda layer: layer["config"].update(older.get(layer["class_name"], {})))
    imported = import_model(str(file))
    given = {"image": np.random.default_rng(0).random((2, 8, 8, 3), np.float32)}
    for found in (imported.engine(given), unscheduled(imported, given)):
        np.testing.assert_allclose(found["output"], np.asarray(model(given["image"])), atol=1e-5)

    edited(lambda layer: layer.update(class_name="Lambda" if layer["class_name"] == "Dense" else layer["class_name"]))
    with pytest.raises(UnsupportedModel, match=r"the layer Lambda dense\S*, which carries code"):
        import_model(str(file))
    model.save_weights(tmp_path / "net.weights.h5")
    with pytest.raises(UnsupportedModel, match=r"the configuration of a model in net.weights.h5, found weights alone"):
        import_model(str(tmp_path / "net.weights.h5"))
    file.write_bytes(b"no HDF5")
    with pytest.raises(UnsupportedModel, match=r"expected an HDF5 file of Keras in net.h5"):
        import_model(str(file))


def archive(path: Path, config: object, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("config.json", config if isinstance(config, str) else json.dumps(config))
        for name, data in members.items():
            out.writestr(name, data)
    return path


def layer(kind: str, module: str, registered: str | None = None) -> dict[str, object]:
    inner = {"class_name": kind, "module": module, "registered_name": registered, "config": {"name": "twice"}}
    return {"class_name": "Sequential", "module": "keras", "config": {"name": "net", "layers": [inner]}}


def test_what_is_foreign_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.keras"
    monkeypatch.setattr("halo_tvm.importers.keras.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"reading a \.keras file needs the package 'keras'.*\[keras\]"):
        import_model(str(path))
    monkeypatch.setattr("halo_tvm.importers.keras.find_spec", lambda name: object())
    monkeypatch.setattr("halo_tvm.importers.keras.convert_restricted", lambda *_, **__: pytest.fail("it was read"))
    for config, found in (
        (layer("Lambda", "keras.layers"), "the layer Lambda twice, which carries code"),
        (layer("Twice", "os.path"), r"the class os\.path\.Twice twice"),
        (layer("Dense", "keras.layers", "mine>Dense"), r"the class keras\.layers\.Dense twice"),
        ("[" * 100_000, "expected a .keras archive"),
        ("{}" + " " * (70 << 20), "not a real model"),
    ):
        with pytest.raises(UnsupportedModel, match=found):
            import_model(str(archive(path, config)))
    with pytest.raises(UnsupportedModel, match=r"found 2 that unpack from \d+ to \d+ bytes: not a real model"):
        import_model(str(archive(path, {}, weights=bytes(80 << 20))))
    path.write_bytes(b"no archive")
    with pytest.raises(UnsupportedModel, match=r"expected a \.keras archive in net\.keras, found File is not a zip"):
        import_model(str(path))
    with pytest.raises(UsageError, match="expected a .keras file, found no file"):
        import_model(str(tmp_path / "none.keras"))
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    with pytest.raises(UsageError, match="expected KERAS_BACKEND to be jax, torch, tensorflow, found 'numpy'"):
        import_model(str(archive(path, {})))
