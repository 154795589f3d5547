"""SavedModels: through a confined process, under the names of the signature, beside TensorFlow."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    """What tf2onnx spells badly, an operator that it leaves over, a variable that is changed in a branch."""
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

        @tf.function(input_signature=[tf.TensorSpec((), name="x")])
        def counted(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": tf.cond(x > 0, lambda: self.w.assign_add(tf.ones((4, 4)))[0, 0], lambda: x)}

        @tf.function(input_signature=[tf.TensorSpec((4,), name="x")])
        def special(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": tf.math.polygamma(tf.ones_like(x), x)}

    folder = tmp_path_factory.mktemp("saved") / "model"
    module = Module()
    tf.saved_model.save(
        module, str(folder), signatures={k: getattr(module, k) for k in ("encode", "special", "counted")}
    )
    return folder


@needs_tensorflow
@pytest.mark.slow
def test_a_signature_of_open_sizes(saved: Path):
    model = import_model(f"{saved}:encode", shapes=("x=1..4x1..64x4",))
    assert [i.name for i in model.inputs] == ["x"] and sorted(model.outputs) == ["out", "scores"]
    assert model.inputs[0].shape == ("x_0", "x_1", 4)
    assert sorted(model.ranges.values()) == [(1, 4), (1, 64)]
    x = np.random.default_rng(1).standard_normal((2, 5, 4)).astype(np.float32)
    wanted, found = model.engine({"x": x}), compile_in_process(model)(x=x)
    for name in wanted:
        assert np.isfinite(wanted[name]).all()
        np.testing.assert_allclose(np.asarray(found[name]), wanted[name], rtol=1e-5, atol=1e-5)


@needs_tensorflow
@pytest.mark.slow
def test_a_model_that_holds_its_optimizer(saved: Path, tmp_path: Path):
    """As Keras 2 saved one: TensorFlow asks an object, whose class it does not know, for the optimizer's variables."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    folder = shutil.copytree(saved, tmp_path / "trained")
    held = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    nodes = held.meta_graphs[0].object_graph_def.nodes
    variable = next(i for i, node in enumerate(nodes) if node.HasField("variable"))
    slot = len(nodes)
    nodes.add().CopyFrom(nodes[variable])
    nodes[0].slot_variables.add(original_variable_node_id=variable, slot_name="m", slot_variable_node_id=slot)
    (folder / "saved_model.pb").write_bytes(held.SerializeToString())
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(folder))
    x = np.random.default_rng(1).standard_normal((2, 5, 4)).astype(np.float32)
    wanted, found = (import_model(f"{path}:encode").engine({"x": x}) for path in (saved, folder))
    np.testing.assert_array_equal(found["scores"], wanted["scores"])


@needs_tensorflow
@pytest.mark.slow
def test_what_cannot_be_taken_is_named(saved: Path, tmp_path: Path):
    with pytest.raises(UnsupportedModel, match=r"expected operators that ONNX has, found Polygamma \(1: "):
        import_model(f"{saved}:special")
    with pytest.raises(UnsupportedModel, match=r"what its calls change, found .*If \(1: "):
        import_model(f"{saved}:counted")
    with pytest.raises(HaloError, match="give --signature counted, encode, special"):
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

    from halo_tvm.importers.tensorflow._state import check_state
    from halo_tvm.importers.tensorflow.convert import import_concrete

    scale, spec = tf.constant([1.0, 2.0, 4.0, 8.0]), tf.TensorSpec((None, 4), name="x")
    compiled = tf.function(lambda x: x * scale, jit_compile=True)
    calls = tf.Variable(0)  # counted, but in no result
    check_state(tf.function(lambda x: (calls.assign_add(1), x)[1]).get_concrete_function(spec), "net")
    scaled = tf.function(lambda x: compiled(x)).get_concrete_function(spec)
    model = import_concrete(scaled, ["x"], ["y"], "net", {})
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(compile_in_process(model)(x)["y"], x * scale)
    spectrum = tf.function(tf.signal.rfft).get_concrete_function(spec)
    with pytest.raises(UnsupportedModel, match="complex numbers to become real ones .* found the end of the model"):
        import_concrete(spectrum, ["x"], ["y"], "net", {})
    cast = tf.function(lambda x: tf.cast(tf.signal.rfft(x), tf.float32)).get_concrete_function(spec)
    with pytest.raises(UnsupportedModel, match="expected operators that tf2onnx can write, .* found Cast"):
        import_concrete(cast, ["x"], ["y"], "net", {})


def _agrees(
    function: Callable[..., Any],
    *values: np.ndarray,
    sizes: Sequence[Sequence[int | None]] = (),
    atol: float = 1e-6,
) -> None:
    """What is compiled of `function` gives TensorFlow's own numbers; `sizes` of its inputs, else the first is open."""
    import tensorflow as tf

    from halo_tvm.importers.tensorflow.convert import import_concrete

    shapes = sizes or [[None, *value.shape[1:]] for value in values]
    names = [f"x{place}" for place in range(len(values))]
    specs = [tf.TensorSpec(shape, value.dtype, name=n) for shape, value, n in zip(shapes, values, names, strict=True)]
    concrete = tf.function(function).get_concrete_function(*specs)
    outputs = [f"y{place}" for place in range(len(concrete.outputs))]
    found = compile_in_process(import_concrete(concrete, names, outputs, "net", {}))(**dict(zip(names, values)))
    for name, wanted in zip(outputs, tf.nest.flatten(concrete(*map(tf.constant, values))), strict=True):
        assert found[name].dtype == wanted.numpy().dtype
        np.testing.assert_allclose(found[name], wanted, rtol=2e-5, atol=atol, err_msg=name)


def _integers(low: int, high: int, *shape: int, dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, shape).astype(dtype)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@needs_tensorflow
def test_integers_are_divided_downwards() -> None:
    """The lowest number, too; and remainders have the sign of the divisor. tf2onnx rounds towards zero."""
    x, y = _integers(-9, 10, 4, 6), np.array([[-3, -2, -1, 1, 2, 3]] * 4, np.int32)
    x[0] = np.iinfo(np.int32).min
    x[0, 2] = 0  # its quotient by -1 is none of the type
    _agrees(lambda x, y: (x // y, x % y, x // -3, x % -3, 7 // y), x, y)
    f = np.array([[1.0, -1.0, 5.5, -5.5, 0.3, -0.0]] * 2, np.float32)
    g = np.array([[0.1, 0.1, -2.0, 2.0, -0.1, 2.0]] * 2, np.float32)
    _agrees(lambda x, y: (x // y, x % y), f, g)


@needs_tensorflow
def test_bfloat16_is_no_float16() -> None:
    """A product with a weight that was cast, beyond the range of float16."""
    import tensorflow as tf

    w = tf.Variable(_integers(-3, 4, 4, 2).astype(np.float32))
    bf16 = tf.bfloat16
    _agrees(
        lambda x: tf.cast(tf.cast(x, bf16) @ tf.cast(w, bf16) * 2.0**100, tf.float32),
        _integers(-3, 4, 2, 4).astype(np.float32),
    )


@needs_tensorflow
def test_casts_shifts_means_and_pads_are_those_of_tensorflow() -> None:
    """Each of them by the type that TensorFlow computes in; the values show where tf2onnx takes another."""
    import tensorflow as tf

    x = np.array([[0.5, 0, -0.3], [1, 300.7, 1e6]], np.float32)
    _agrees(lambda x: (tf.cast(tf.cast(x, tf.int32), tf.bool), tf.cast(tf.cast(x, tf.float16), tf.float32)), x)
    _agrees(lambda x: tf.pad(x, [[1, 2], [0, 1]], constant_values=3.0), x)
    for dtype in ("int8", "int64"):
        numbers, places = _integers(-120, 120, 4, 6).astype(dtype), _integers(-1, 70, 4, 6).astype(dtype)
        _agrees(lambda x, y: (tf.bitwise.left_shift(x, y), tf.bitwise.right_shift(x, y)), numbers, places)
    _agrees(lambda x: tf.reduce_mean(x, 1), np.array([[100, 100, 110], [-100, -100, -101]], np.int8))


@needs_tensorflow
def test_what_tf2onnx_stumbles_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tf2onnx import convert

    def stumble(*_args: object, **_kwargs: object) -> None:
        raise TypeError("'NoneType' object is not iterable")

    monkeypatch.setattr(convert, "_convert_common", stumble)
    with pytest.raises(UnsupportedModel, match=r"tf2onnx can write, .* in net \(TypeError: 'NoneType' .*fixed sizes"):
        _agrees(lambda x: x + 1, _normal(2, 2))


@needs_tensorflow
@pytest.mark.slow
def test_integers_of_every_width_are_divided_downwards() -> None:
    import tensorflow as tf

    for dtype in ("int8", "int16", "int64", "uint8"):
        x, y = _integers(-120, 120, 4, 6).astype(dtype), _integers(1, 9, 4, 6).astype(dtype)
        _agrees(lambda x, y: (x // y, x % y), x, y)
    rows = _normal(2, 6)
    _agrees(lambda x: tf.reshape(x, [tf.shape(x)[0], -1, tf.shape(x)[1] // 2])[:, : -(-tf.shape(x)[1] // 4)], rows)


@needs_tensorflow
def test_functions_that_onnx_has_no_operator_for() -> None:
    import tensorflow as tf

    small = np.array([[1e-9, -1e-9, 1e-4, -1e-4, 0.5, 3.0]], np.float32)
    _agrees(lambda x: (tf.math.expm1(x), tf.math.log1p(x), tf.math.lgamma(x), tf.math.digamma(x + 4)), small)
    zeros, others = np.array([[0.0, 0.0, 2.0, 0.0]], np.float32), np.array([[0.0, 3.0, 0.5, np.inf]], np.float32)
    functions = (tf.math.xlogy, tf.math.xlog1py, tf.math.xdivy, tf.math.multiply_no_nan)
    _agrees(lambda x, y: [f(x, y) for f in functions] + [tf.math.multiply_no_nan(y, x)], zeros, others)


@needs_tensorflow
@pytest.mark.slow
def test_places_in_ordered_numbers_and_hot_ones() -> None:
    import tensorflow as tf

    ordered, values = np.sort(_normal(3, 5)), np.concatenate([np.sort(_normal(3, 5))[:, 1:3], _normal(3, 4)], 1)
    _agrees(lambda s, v: (tf.searchsorted(s, v), tf.searchsorted(s, v, side="right")), ordered, values)
    bounds = [-1.0, 0.0, 0.5]
    _agrees(lambda x: tf.raw_ops.Bucketize(input=x, boundaries=bounds), np.array([[-1.0, -2, 0.5, 0.7]], np.float32))
    _agrees(lambda x, t: tf.math.in_top_k(t, x, 2), _normal(3, 5), _integers(0, 5, 3))
    marks = np.array([0, -1, 3, 2, 5], np.int32)
    _agrees(lambda x: tf.one_hot(x, 4, on_value=2.0, off_value=-1.0), marks)
    _agrees(lambda x: (tf.one_hot(x, 4, axis=0, dtype=tf.int32), tf.nn.l2_loss(tf.cast(x, tf.float32))), marks)


@needs_tensorflow
@pytest.mark.slow
def test_diagonals_of_open_sizes() -> None:
    import tensorflow as tf

    def take(x: tf.Tensor) -> list[tf.Tensor]:
        return [tf.linalg.diag_part(x, k=k) for k in (0, 1, -2)] + [tf.linalg.trace(x)]

    def put(x: tf.Tensor) -> list[tf.Tensor]:
        made = [tf.linalg.diag(x, k=k, padding_value=p) for k, p in ((0, 0), (2, 3), (-1, 0))]
        return [*made, tf.linalg.diag(x, num_rows=5, num_cols=8, k=1), tf.linalg.tensor_diag(x[0])]

    _agrees(take, _normal(2, 4, 5), sizes=[[None, None, None]])
    _agrees(put, _normal(2, 5))
    corner = _normal(2, 4, 5)
    _agrees(lambda x, d: tf.linalg.set_diag(x, d, k=1), corner, _normal(2, 4), sizes=[[None, None, None], [None, None]])


@needs_tensorflow
@pytest.mark.slow
def test_rows_are_reduced_by_number() -> None:
    """A negative number drops its row; a number without rows has what TensorFlow gives, for each reduction."""
    import tensorflow as tf

    rows, loose = _normal(7, 2), np.array([0, 0, 3, 1, 3, 5, -1], np.int32)
    ordered, chosen = np.array([0, 0, 1, 1, 1, 3, 3], np.int32), np.array([0, 0, 1, 2, 2], np.int32)
    kinds = ("sum", "max", "min", "prod")
    _agrees(lambda x, i: [getattr(tf.math, f"unsorted_segment_{k}")(x, i, 6) for k in kinds], rows, loose)
    _agrees(lambda x, i: [getattr(tf.math, f"segment_{k}")(x, i) for k in (*kinds, "mean")], rows, ordered)
    pairs = _integers(0, 4, 2, 3)
    _agrees(lambda x, i: tf.math.unsorted_segment_sum(x, i, 4), _normal(2, 3, 2), pairs)
    _agrees(
        lambda x, i: tf.sparse.segment_mean(x, [6, 0, 2, 2, 5], i, num_segments=4), rows, chosen, sizes=[[None, 2], [5]]
    )
    _agrees(lambda x, i: tf.sparse.segment_sqrt_n(x, [6, 0, 2, 2, 5], i), rows, chosen, sizes=[[None, 2], [5]])


@needs_tensorflow
@pytest.mark.slow
def test_numbers_are_counted() -> None:
    import tensorflow as tf

    def count(x: tf.Tensor) -> list[tf.Tensor]:
        known = [tf.math.bincount(x, minlength=6, maxlength=6, axis=-1, binary_output=b) for b in (False, True)]
        return [*known, tf.math.bincount(x[0]), tf.math.bincount(x[0], maxlength=3)]

    numbers = _integers(0, 6, 3, 4)
    _agrees(count, numbers)
    weights = _normal(3, 4)
    _agrees(lambda x, w: tf.math.bincount(x, w, minlength=6, maxlength=6, axis=-1), numbers, weights)


@needs_tensorflow
def test_numbers_on_a_grid_of_bits() -> None:
    import tensorflow as tf

    quantise = tf.quantization

    def rounded(x: tf.Tensor) -> list[tf.Tensor]:
        columns = [-1.0, 0.0, -0.3, -6.0], [1.0, 6.0, 0.1, -5.0]
        return [
            quantise.fake_quant_with_min_max_args(x, -1.0, 1.0),
            quantise.fake_quant_with_min_max_args(x, -0.7, 0.9, num_bits=4, narrow_range=True),
            quantise.fake_quant_with_min_max_vars(x, -0.123, 6.0),
            quantise.fake_quant_with_min_max_vars_per_channel(x, *columns),
        ]

    _agrees(rounded, _normal(40, 4) * 2)


@needs_tensorflow
@pytest.mark.slow
def test_spectra_between_real_numbers() -> None:
    """What a model of sounds does with its input: frames of an open length, magnitudes, mel bands, and back."""
    import tensorflow as tf

    def sounds(x: tf.Tensor) -> list[tf.Tensor]:
        spectrum = tf.signal.stft(x, 64, 32)
        power = tf.math.real(spectrum * tf.math.conj(spectrum))
        bands = tf.math.log(tf.tensordot(power, tf.signal.linear_to_mel_weight_matrix(8, 33, 8000), 1) + 1e-2)
        kept = spectrum * tf.cast(tf.sigmoid(tf.abs(spectrum)), tf.complex64)
        return [tf.signal.mfccs_from_log_mel_spectrograms(bands)[..., :5], tf.signal.inverse_stft(kept, 64, 32)]

    def planes(x: tf.Tensor) -> list[tf.Tensor]:
        half, whole = tf.signal.rfft2d(x), tf.signal.fft(tf.complex(x, x * x))
        turned = tf.transpose(whole * tf.constant(2 + 1j, tf.complex64) - whole[:, ::-1], (0, 2, 1))
        angle = tf.math.angle(whole[:, 1:] + 0.5)
        return [tf.abs(half), tf.math.imag(-tf.signal.ifft2d(turned)), tf.sin(angle), tf.cos(angle)]

    _agrees(sounds, _normal(2, 300), sizes=[[None, None]], atol=2e-5)

    def parts(x: tf.Tensor) -> list[tf.Tensor]:
        made = tf.complex(x, tf.constant(1.0)), tf.complex(x[:, :1], x), tf.cast(x, tf.complex64)
        return [part(z) for z in made for part in (tf.math.real, tf.math.imag)]

    _agrees(planes, _normal(2, 4, 6), atol=2e-5)
    _agrees(parts, np.array([[np.inf, -np.inf, 1.5]], np.float32))


@needs_tensorflow
@pytest.mark.slow
def test_images_of_other_sizes() -> None:
    """Between open sizes, with each kind of kernel, and as TensorFlow 1 did."""
    import tensorflow as tf

    def kernels(x: tf.Tensor) -> list[tf.Tensor]:
        ways = [(m, False) for m in ("gaussian", "lanczos5")] + [(m, True) for m in ("bilinear", "mitchellcubic")]
        return [tf.image.resize(x, (9, 5), method=m, antialias=a) for m, a in ways]

    def earlier(x: tf.Tensor) -> list[tf.Tensor]:
        v1 = tf.compat.v1.image
        ways = (v1.resize_nearest_neighbor, v1.resize_area, v1.resize_bilinear)
        return [way(x, (9, 5), align_corners=aligned) for way in ways for aligned in (False, True)]

    def cubic(x: tf.Tensor) -> list[tf.Tensor]:
        ways = ({}, {"align_corners": True}, {"half_pixel_centers": True})
        return [tf.raw_ops.ResizeBicubic(images=x, size=(9, 5), **way) for way in ways]

    bytes_ = _integers(0, 256, 2, 6, 7, 3, dtype="uint8")
    _agrees(lambda x: [tf.image.resize(x, (9, 5)), tf.raw_ops.ResizeBilinear(images=x, size=(4, 9))], bytes_)
    _agrees(cubic, _normal(2, 6, 7, 3), atol=2e-3)  # TensorFlow reads weights from a table of 1024 places

    image = _normal(2, 6, 7, 3)
    open_sizes = [[None, None, None, 3]]
    _agrees(lambda x: tf.image.resize(x, (9, 5), method="nearest"), image, sizes=open_sizes)
    _agrees(lambda x: tf.image.resize(x, tf.shape(x)[1:3] // 2 + 1, method="area"), image, sizes=open_sizes)
    _agrees(kernels, image)
    _agrees(earlier, image)


@needs_tensorflow
def test_images_of_other_sizes_behind_a_convolution() -> None:
    """Whose channels come first in ONNX: tf2onnx moves the Transpose behind it through the sizes that are asked for."""
    import tensorflow as tf

    weights = _normal(3, 3, 3, 2)

    def grown(x: tf.Tensor) -> list[tf.Tensor]:
        made = [tf.nn.conv2d(x, weights * scale, 1, "SAME") for scale in (1.0, 2.0, 3.0)]
        ways = zip(made, ("bilinear", "nearest", "area"), strict=True)
        return [tf.nn.relu(tf.image.resize(found, (9, 5), method=way)) for found, way in ways]

    _agrees(grown, _normal(2, 6, 7, 3), atol=2e-5)


@needs_tensorflow
@pytest.mark.slow
def test_one_of_several_branches() -> None:
    """Numbers without a branch choose the last one. TensorFlow lowers a Case to switches, which tf2onnx leaves over."""
    import tensorflow as tf

    weights = tf.Variable(_normal(4))

    def choose(x: tf.Tensor, numbers: tf.Tensor) -> list[tf.Tensor]:
        several = [lambda: x + weights, lambda: x * 2, lambda: tf.exp(x), lambda: weights - x]
        found = [tf.switch_case(number, several) for number in tf.unstack(numbers)]
        alone = tf.switch_case(numbers[0], [lambda: x + 3])
        looped = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, tf.switch_case(i, [lambda: y * 2, lambda: y + 1])), [0, x]
        )
        return [*found, alone, looped[1]]

    _agrees(choose, _normal(2, 4), np.array([-1, 0, 1, 2, 3, 9], np.int32), sizes=[[None, 4], [6]])


@needs_tensorflow
@pytest.mark.slow
def test_colours_and_vectors_of_three() -> None:
    """Greys, black and every order of channels: tf2onnx puts two of the six orders back at other places."""
    import tensorflow as tf

    orders = [[0.9, 0.5, 0.1], [0.9, 0.1, 0.5], [0.5, 0.9, 0.1], [0.1, 0.9, 0.5], [0.5, 0.1, 0.9], [0.1, 0.5, 0.9]]
    special = [[0.4, 0.4, 0.4], [0.0, 0.0, 0.0], [1.0, 1.0, 0.2], [0.2, 1.0, 1.0], [1.0, 0.2, 1.0], [1.0, 0.0, 0.0]]
    image = np.array([[orders, special]], np.float32)
    scaled = [lambda x, f=factor: tf.image.adjust_saturation(x, f) for factor in (0.0, 0.5, 3.0)]
    functions = (tf.image.rgb_to_hsv, tf.image.hsv_to_rgb, *scaled, lambda x: tf.linalg.cross(x, x[:, ::-1]))
    _agrees(lambda x: [f(x) for f in functions], image)


@needs_tensorflow
@pytest.mark.slow
def test_patches_of_an_open_batch() -> None:
    """Side by side as vision transformers cut them, with a rest that no patch holds; overlapping; of bytes."""
    import tensorflow as tf

    def cut(x: tf.Tensor, size: int, stride: int, rate: int, padding: str) -> tf.Tensor:
        return tf.image.extract_patches(x, [1, size, 2, 1], [1, stride, 2, 1], [1, rate, 1, 1], padding)

    image = _normal(2, 7, 8, 3)
    _agrees(lambda x: [cut(x, 3, 3, 1, "VALID"), cut(x, 3, 2, 1, "VALID"), cut(x, 3, 1, 2, "SAME")], image)
    _agrees(lambda x: cut(x, 3, 2, 1, "SAME"), image, sizes=[[None, None, None, 3]])
    _agrees(lambda x: [cut(x, 3, 3, 1, "VALID"), cut(x, 2, 1, 1, "SAME")], _integers(0, 256, 2, 7, 8, 3, dtype="uint8"))


@needs_tensorflow
@pytest.mark.slow
def test_tables_of_numbers(tmp_path: Path) -> None:
    import tensorflow as tf

    def table(keys: list[object], values: list[object], default: object) -> tf.lookup.StaticHashTable:
        made = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(values, tf.int64))
        return tf.lookup.StaticHashTable(made, default)

    numbers, words = table(np.array([30, 10, 20], np.int64), [1, 2, 3], -7), table(["a", "b"], [1, 2], 0)
    module = tf.Module()
    module.tables = [numbers, words]
    module.find = tf.function(lambda x: {"y": numbers[x]}, [tf.TensorSpec((None,), tf.int64, "x")])
    module.read = tf.function(lambda x: {"y": words[x]}, [tf.TensorSpec((None,), tf.string, "x")])
    tf.saved_model.save(module, str(tmp_path / "net"), {"find": module.find, "read": module.read})
    model = import_model(f"{tmp_path / 'net'}:find")
    x = np.array([10, 11, 30, -7], np.int64)
    np.testing.assert_array_equal(compile_in_process(model)(x)["y"], [2, -7, 1, -7])
    with pytest.raises(UnsupportedModel, match="expected tables of numbers, found one of words"):
        import_model(f"{tmp_path / 'net'}:read")
