"""SavedModels: through a confined process, under the names of the signature, beside TensorFlow."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from halo_tvm.errors import HaloError, MissingPackage, UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process

_MISSING = [name for name in ("tensorflow", "tf2onnx") if importlib.util.find_spec(name) is None]
needs_tensorflow = pytest.mark.skipif(bool(_MISSING), reason="TensorFlow, 1.3 GB: pip install halo_tvm[tensorflow]")


def test_without_tensorflow_a_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    monkeypatch.setattr("halo_tvm.importers.tensorflow.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"reading a SavedModel needs the package 'tensorflow'.*\[tensorflow\]"):
        import_model(str(tmp_path))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two signatures: what tf2onnx spells badly, and an operator that it leaves over."""
    import tensorflow as tf

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))

        @tf.function(input_signature=[tf.TensorSpec((None, None, 4), name="x")])
        def encode(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            y = tf.einsum("bsk,kn->bsn", x, self.w)
            scores = tf.linalg.band_part(tf.matmul(y, x, transpose_b=True), -1, 0)
            guarded = tf.where(y > 0, tf.math.log(y), -1.0)  # the logarithm is NaN where it is not chosen
            return {"scores": scores, "out": guarded * tf.math.erfc(-y)}

        @tf.function(input_signature=[tf.TensorSpec((4,), name="x")])
        def special(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": tf.math.lgamma(x)}

    folder = tmp_path_factory.mktemp("saved") / "model"
    module = Module()
    tf.saved_model.save(module, str(folder), signatures={"encode": module.encode, "special": module.special})
    return folder


@needs_tensorflow
@pytest.mark.slow
def test_a_signature_of_open_sizes(saved: Path):
    model = import_model(f"{saved}:encode", shapes=("x=1..4x1..64x4",))
    assert [i.name for i in model.inputs] == ["x"] and sorted(model.outputs) == ["out", "scores"]
    assert sorted(model.ranges.values()) == [(1, 4), (1, 64)]
    x = np.random.default_rng(1).standard_normal((2, 5, 4)).astype(np.float32)
    wanted, found = model.engine({"x": x}), compile_in_process(model)(x=x)
    for name in wanted:
        assert np.isfinite(wanted[name]).all()
        np.testing.assert_allclose(np.asarray(found[name]), wanted[name], rtol=1e-5, atol=1e-5)


@needs_tensorflow
@pytest.mark.slow
def test_what_cannot_be_taken_is_named(saved: Path, tmp_path: Path):
    with pytest.raises(UnsupportedModel, match=r"expected operators that ONNX has, found Lgamma \(1: "):
        import_model(f"{saved}:special")
    with pytest.raises(HaloError, match="give --signature encode, special"):
        import_model(str(saved))
    (tmp_path / "saved_model.pb").write_bytes(b"no program")
    with pytest.raises(UnsupportedModel):
        import_model(str(tmp_path))


@needs_tensorflow
def test_a_function_in_memory() -> None:
    """A constant that it captures is no input, and a function for XLA, as grouped convolutions are, is written out.

    An operator that tf2onnx writes in other uses only is a sentence.
    """
    import tensorflow as tf

    from halo_tvm.importers.tensorflow._convert import import_concrete

    scale, spec = tf.constant([1.0, 2.0, 4.0, 8.0]), tf.TensorSpec((None, 4), name="x")
    compiled = tf.function(lambda x: x * scale, jit_compile=True)
    scaled = tf.function(lambda x: compiled(x)).get_concrete_function(spec)
    model = import_concrete(scaled, ["x"], ["y"], "net", {})
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(compile_in_process(model)(x)["y"], x * scale)
    spectrum = tf.function(lambda x: tf.math.real(tf.signal.rfft(x))).get_concrete_function(spec)
    with pytest.raises(UnsupportedModel, match="expected operators that tf2onnx can write, found others in net"):
        import_concrete(spectrum, ["x"], ["y"], "net", {})
