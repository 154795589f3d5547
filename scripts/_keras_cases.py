"""A net of one layer for every class of `keras.layers` that means something in inference, and families of
`keras.applications` at small sizes. Nothing of Keras is imported before a case is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """Inputs without their batch (None is an open size), and what the layer is called as, given `keras.layers`."""

    shapes: tuple[tuple[int | None, ...], ...]
    build: Callable[[Any, list[Any]], Any]
    dtype: str = "float32"


def _one(*shape: int | None, dtype: str = "float32", **options: Any) -> Case:
    """A layer of one input by its own name, with `options`."""
    return Case((shape,), lambda layer, inputs: layer(**options)(inputs[0]), dtype)


def _joined(count: int = 2, **options: Any) -> Case:
    """A layer of several inputs of one shape."""
    return Case(((4, 6),) * count, lambda layer, inputs: layer(**options)(inputs))


def _rnn(cell: str) -> Case:
    def build(_: Any, inputs: list[Any]) -> Any:
        from keras import layers

        cells = [getattr(layers, name)(5) for name in cell.split("+")]
        return layers.RNN(cells if len(cells) > 1 else cells[0], return_sequences=True)(inputs[0])

    return Case(((7, 6),), build)


def _wrapped(inner: str, *shape: int | None, call: Mapping[str, Any] | None = None, **options: Any) -> Case:
    """A layer around another one, by its name."""

    def build(layer: Any, inputs: list[Any]) -> Any:
        from keras import layers

        return layer(getattr(layers, inner)(**options), **(call or {}))(inputs[0])

    return Case((shape,), build)


def _normalised(layer: Any, inputs: list[Any]) -> Any:
    return layer(mean=[0.1, 0.2, 0.3, 0.4], variance=[1.0, 2.0, 0.5, 0.25])(inputs[0])


def _around_pooling(layer: Any, inputs: list[Any]) -> Any:
    from keras import layers

    return layer([layers.Rescaling(0.5), layers.CenterCrop(6, 6)])(inputs[0])


_IMAGE, _LINE, _VOLUME = (10, 9, 3), (11, 4), (6, 7, 5, 2)
_PICTURE = {"value_range": (0, 1)}

CASES: dict[str, Case] = {
    "Activation": _one(4, 6, activation="gelu"),
    "ActivityRegularization": _one(4, 6),
    **{f"Adaptive{kind}Pooling1D": _one(12, 4, output_size=5) for kind in ("Average", "Max")},
    **{f"Adaptive{kind}Pooling2D": _one(*_IMAGE, output_size=(4, 3)) for kind in ("Average", "Max")},
    **{f"Adaptive{kind}Pooling3D": _one(*_VOLUME, output_size=(3, 2, 2)) for kind in ("Average", "Max")},
    **{name: _joined() for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract")},
    "AdditiveAttention": _joined(3),
    "Attention": _joined(3, use_scale=True),
    **{f"{kind}Pooling1D": _one(*_LINE, pool_size=3, strides=2, padding="same") for kind in ("Average", "Max")},
    **{f"{kind}Pooling2D": _one(*_IMAGE, pool_size=(3, 2), padding="same") for kind in ("Average", "Max")},
    **{f"{kind}Pooling3D": _one(*_VOLUME, pool_size=2) for kind in ("Average", "Max")},
    "BatchNormalization": _one(*_IMAGE),
    "Bidirectional": _wrapped("LSTM", 7, 6, units=5, return_sequences=True),
    "CategoryEncoding": _one(5, dtype="int32", num_tokens=8),
    "CenterCrop": _one(*_IMAGE, height=6, width=5),
    "Concatenate": _joined(axis=1),
    "Conv1D": _one(*_LINE, filters=6, kernel_size=3, dilation_rate=2, padding="causal"),
    "Conv1DTranspose": _one(*_LINE, filters=6, kernel_size=3, strides=2, padding="same"),
    "Conv2D": _one(None, None, 4, filters=6, kernel_size=3, strides=2, padding="same", groups=2),
    "Conv2DTranspose": _one(*_IMAGE, filters=6, kernel_size=3, strides=2, padding="same"),
    "Conv3D": _one(*_VOLUME, filters=4, kernel_size=2),
    "Conv3DTranspose": _one(*_VOLUME, filters=4, kernel_size=2, strides=2),
    "ConvLSTM1D": _one(3, 8, 2, filters=3, kernel_size=3),
    "ConvLSTM2D": _one(3, 6, 5, 2, filters=3, kernel_size=3, return_sequences=True),
    "ConvLSTM3D": _one(2, 4, 4, 4, 1, filters=2, kernel_size=2),
    "Cropping1D": _one(*_LINE, cropping=(1, 2)),
    "Cropping2D": _one(*_IMAGE, cropping=((1, 2), (0, 3))),
    "Cropping3D": _one(*_VOLUME, cropping=1),
    "Dense": _one(None, 6, units=5, activation="gelu"),
    "DepthwiseConv1D": _one(*_LINE, kernel_size=3, depth_multiplier=2),
    "DepthwiseConv2D": _one(*_IMAGE, kernel_size=3, padding="same"),
    "Discretization": _one(5, bin_boundaries=[-0.5, 0.0, 1.0]),
    "Dot": _joined(axes=-1),
    **{name: _one(4, 6, rate=0.5) for name in ("AlphaDropout", "Dropout", "GaussianDropout")},
    "GaussianNoise": _one(4, 6, stddev=0.5),
    **{f"SpatialDropout{rank}D": _one(*[3] * rank, 4, rate=0.5) for rank in (1, 2, 3)},
    "ELU": _one(4, 6),
    "EinsumDense": _one(None, 6, equation="abc,cde->abde", output_shape=(None, 2, 3), bias_axes="de"),
    "Embedding": _one(None, dtype="int32", input_dim=9, output_dim=4),
    "Flatten": _one(4, 6),
    "GRU": _one(7, 6, units=5, return_sequences=True),
    "GRUCell": _rnn("GRUCell"),
    **{f"Global{kind}Pooling1D": _one(*_LINE) for kind in ("Average", "Max")},
    **{f"Global{kind}Pooling2D": _one(*_IMAGE, keepdims=True) for kind in ("Average", "Max")},
    **{f"Global{kind}Pooling3D": _one(*_VOLUME) for kind in ("Average", "Max")},
    "GroupNormalization": _one(8, 6, groups=3),
    "GroupQueryAttention": Case(
        ((None, 8), (None, 8)),
        lambda layer, i: layer(head_dim=4, num_query_heads=4, num_key_value_heads=2)(i[0], i[1]),
    ),
    "Identity": _one(4, 6),
    "IntegerLookup": Case(((5,),), lambda layer, i: layer(vocabulary=[3, 1, 4])(i[0]), "int32"),
    "LSTM": _one(None, 6, units=5, return_sequences=True),
    "LSTMCell": _rnn("LSTMCell"),
    "LayerNormalization": _one(None, 6),
    "LeakyReLU": _one(4, 6, negative_slope=0.2),
    "Masking": _one(4, 6),
    "MelSpectrogram": _one(400, fft_length=64, sequence_stride=32, sampling_rate=400, num_mel_bins=8),
    "MultiHeadAttention": Case(
        ((None, 8),), lambda layer, i: layer(num_heads=2, key_dim=4)(i[0], i[0], use_causal_mask=True)
    ),
    "Normalization": Case(((5, 4),), _normalised),
    "PReLU": _one(4, 6),
    "Permute": _one(4, 6, dims=(2, 1)),
    "Pipeline": Case((_IMAGE,), _around_pooling),
    "RMSNormalization": _one(None, 6),
    "RNN": _rnn("SimpleRNNCell"),
    "ReLU": _one(4, 6, max_value=1.0, negative_slope=0.1, threshold=0.2),
    "RepeatVector": _one(6, n=3),
    "Rescaling": _one(4, 6, scale=2.0, offset=0.5),
    "Reshape": _one(4, 6, target_shape=(2, -1)),
    "Resizing": _one(*_IMAGE, height=7, width=14),
    "ReversibleEmbedding": _one(None, dtype="int32", input_dim=9, output_dim=4),
    "STFTSpectrogram": _one(200, 1, frame_length=32, frame_step=16, fft_length=32),
    "SeparableConv1D": _one(*_LINE, filters=6, kernel_size=3),
    "SeparableConv2D": _one(*_IMAGE, filters=6, kernel_size=3, padding="same"),
    "SimpleRNN": _one(7, 6, units=5),
    "SimpleRNNCell": _rnn("SimpleRNNCell"),
    "Softmax": _one(4, 6),
    "SpectralNormalization": _wrapped("Dense", 4, 6, units=5),
    "StackedRNNCells": _rnn("LSTMCell+GRUCell"),
    "TimeDistributed": _wrapped("Conv2D", 3, *_IMAGE, filters=4, kernel_size=3),
    "UnitNormalization": _one(4, 6),
    "UpSampling1D": _one(*_LINE, size=2),
    "UpSampling2D": _one(*_IMAGE, size=(2, 3), interpolation="bilinear"),
    "UpSampling3D": _one(*_VOLUME, size=2),
    "ZeroPadding1D": _one(*_LINE, padding=(1, 2)),
    "ZeroPadding2D": _one(*_IMAGE, padding=((1, 2), (0, 3))),
    "ZeroPadding3D": _one(*_VOLUME, padding=1),
    # Augmentations: in inference what they leave of an image.
    **{name: _one(*_IMAGE, **_PICTURE) for name in ("AugMix", "AutoContrast", "Equalization", "RandAugment")},
    **{name: _one(*_IMAGE) for name in ("CutMix", "MixUp")},
    "ContrastLimitedAdaptiveHistogramEqualization": _one(16, 16, 3, tile_grid_size=(2, 2), **_PICTURE),
    "RandomBrightness": _one(*_IMAGE, factor=0.2, **_PICTURE),
    "RandomColorDegeneration": _one(*_IMAGE, factor=0.2, **_PICTURE),
    "RandomColorJitter": _one(*_IMAGE, **_PICTURE),
    "RandomContrast": _one(*_IMAGE, factor=0.2, **_PICTURE),
    "RandomCrop": _one(*_IMAGE, height=6, width=5),
    "RandomElasticTransform": _one(*_IMAGE, factor=0.2, **_PICTURE),
    "RandomErasing": _one(*_IMAGE, **_PICTURE),
    "RandomFlip": _one(*_IMAGE),
    "RandomGaussianBlur": _one(*_IMAGE, **_PICTURE),
    "RandomGrayscale": _one(*_IMAGE),
    "RandomHue": _one(*_IMAGE, factor=0.2, **_PICTURE),
    "RandomInvert": _one(*_IMAGE, **_PICTURE),
    "RandomPerspective": _one(*_IMAGE),
    "RandomPosterization": _one(*_IMAGE, factor=4, **_PICTURE),
    "RandomRotation": _one(*_IMAGE, factor=0.2),
    "RandomSaturation": _one(*_IMAGE, factor=0.2, **_PICTURE),
    "RandomSharpness": _one(*_IMAGE, factor=0.2, **_PICTURE),
    "RandomShear": _one(*_IMAGE),
    "RandomTranslation": _one(*_IMAGE, height_factor=0.2, width_factor=0.2),
    "RandomZoom": _one(*_IMAGE, height_factor=0.2),
    "Solarization": _one(*_IMAGE, **_PICTURE),
}

# Classes that have no meaning of their own in inference.
WITHOUT = {
    "Layer": "abstract",
    "Wrapper": "abstract",
    "InputLayer": "every case has some",
    "Lambda": "code",
    "FlaxLayer": "a function of another framework",
    "JaxLayer": "a function of another framework",
    "TFSMLayer": "a function of another framework",
    "TorchModuleWrapper": "a function of another framework",
    "HashedCrossing": "strings",
    "Hashing": "strings",
    "StringLookup": "strings",
    "TextVectorization": "strings",
    "MaxNumBoundingBoxes": "boxes, no tensors",
}

# One of each family, at the size (height and width) that it allows, without weights from the network.
APPLICATIONS: dict[str, int] = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}
