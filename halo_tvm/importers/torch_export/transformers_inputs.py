"""Examples of what a model of transformers takes, for its export: tokens, images, videos, sounds, series.

The classes do not say of which shape their main input is: of `input_values` some take waves [batch, samples], some
[batch, channels, samples], some spectra. The layouts that a name may have are tried, the usual one first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ...artifact import TensorSpec
from ...errors import UnsupportedModel

_LARGEST_BATCH = 8
_LENGTH = 12  # tokens of the example; the exported program takes others
_SAMPLES, _FRAMES = 4000, 256
_LONGEST = 4096  # where the configuration bounds no length
_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")
_BINS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")


@dataclass(frozen=True)
class Example:
    """Two rows of an input; `axes` are those whose size may differ, by what they count."""

    tensor: torch.Tensor
    axes: Mapping[int, str]

    @classmethod
    def of(cls, *shape: int, **axes: int) -> Example:
        """Numbers of this shape behind two rows; `axes` are counted without them."""
        tensor = torch.linspace(-1, 1, 2 * math.prod(shape)).reshape(2, *shape)
        return cls(tensor, {0: "batch", **{axis + 1: name for name, axis in axes.items()}})

    def at(self, sizes: Mapping[str, int]) -> Example:
        """The example with axes of these sizes, which stay as they are."""
        tensor, left = self.tensor, dict(self.axes)
        for axis, label in self.axes.items():
            if label in sizes:
                tensor = tensor.index_select(axis, torch.arange(sizes[label]) % tensor.shape[axis])
                del left[axis]
        return Example(tensor, left)


def examples_of(model: torch.nn.Module, sizes: Mapping[str, Sequence[int]]) -> dict[str, Example]:
    """An example of each input that `model` cannot do without, and a mask of padding where it takes one.

    `sizes` of inputs by name decide heights and widths. Raises `UnsupportedModel` for other kinds of inputs.
    """
    config, main = model.config, model.main_input_name
    taken = parameters(model)
    text = getattr(config, "text_config", config)
    found: dict[str, Example] = {}
    if "input_ids" in taken and main in ("input_ids", "pixel_values") and hasattr(text, "vocab_size"):
        top = min(int(text.vocab_size), 100)
        ids = torch.arange(2 * _LENGTH).remainder(top - 3).reshape(2, _LENGTH) + 3
        found["input_ids"] = Example(ids, {0: "batch", 1: "sequence"})
        if "attention_mask" in taken:
            found["attention_mask"] = Example(torch.ones_like(ids), {0: "batch", 1: "sequence"})
    if "decoder_input_ids" in taken and config.is_encoder_decoder:
        ids = torch.arange(14).reshape(2, 7) % 50 + 3
        found["decoder_input_ids"] = Example(ids, {0: "batch", 1: "decoder_sequence"})
    name = "pixel_values" if "pixel_values" in taken else main
    layouts = _LAYOUTS[name](config, sizes.get(name, ())) if name in _LAYOUTS else []
    if layouts:
        found = _in_order(taken, {**found, name: _fitting(model, found, name, layouts)})
    if not found:
        raise UnsupportedModel(
            f"expected a model of text, images, sound or series, found {type(model).__name__}, which takes "
            f"{main}: export it with torch.export yourself and give the .pt2 file"
        )
    return found


def kept_sizes(
    examples: Mapping[str, Example], inputs: Sequence[TensorSpec], given: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """What a program that takes `inputs` should have been exported for, where it takes its examples' sizes alone.

    Label -> size: one row, unless `given` shapes of inputs by name say another number. `UnsupportedModel` where they
    do not say a length: that of an example is nobody's.
    """
    found: dict[str, int] = {}
    shapes = {spec.name: spec.shape for spec in inputs}
    for name, example in examples.items():
        said, shape = given.get(name, ()), example.tensor.shape
        for axis, label in example.axes.items():
            if name not in shapes or isinstance(shapes[name][axis], str):
                continue
            if len(said) == example.tensor.dim():
                found[label] = int(said[axis])
            elif label == "batch":
                found.setdefault(label, 1)
            elif label not in found:
                sizes = [{"batch": "1", label: "N"}.get(example.axes.get(i, ""), str(n)) for i, n in enumerate(shape)]
                raise UnsupportedModel(
                    f"expected a model that takes any {label}, found one that torch exports for a single one: say "
                    f"which, --shape {name}={'x'.join(sizes)}"
                )
    return found


def parameters(model: torch.nn.Module) -> tuple[str, ...]:
    """The names of what a model's forward takes."""
    return tuple(inspect.signature(model.forward).parameters)


def without_cache(model: torch.nn.Module) -> dict[str, bool]:
    """What tells a model to keep nothing of a call for the next one."""
    return {"use_cache": False} if "use_cache" in parameters(model) else {}


def _in_order(taken: Sequence[str], found: Mapping[str, Example]) -> dict[str, Example]:
    """In the order in which the model takes them, tokens first."""
    tokens = [name for name in found if name in ("input_ids", "attention_mask")]
    return {name: found[name] for name in [*tokens, *(n for n in taken if n in found and n not in tokens)]}


def _fitting(model: torch.nn.Module, others: Mapping[str, Example], name: str, layouts: Sequence[Example]) -> Example:
    """The first of `layouts` that the model takes; where it takes none, the first, of which torch.export complains."""
    if len(layouts) == 1:
        return layouts[0]
    for example in layouts:
        given = {n: e.tensor for n, e in {**others, name: example}.items()}
        try:
            with torch.no_grad():
                model(**given, **without_cache(model))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            continue
        return example
    return layouts[0]


def _images(config: object, given: Sequence[int]) -> list[Example]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    high, wide = given[-2:] if len(given) >= 4 else (size, size) if isinstance(size, int) else (size[-2], size[-1])
    channels, frames = int(getattr(vision, "num_channels", 3)), int(getattr(vision, "num_frames", 0))
    image = Example.of(channels, high, wide)
    return [image, Example.of(frames, channels, high, wide)] if frames else [image]


def _videos(config: object, given: Sequence[int]) -> list[Example]:
    size = int(getattr(config, "crop_size", getattr(config, "image_size", 224)))
    high, wide = given[-2:] if len(given) == 5 else (size, size)
    return [Example.of(int(getattr(config, "frames_per_clip", 16)), int(getattr(config, "in_chans", 3)), high, wide)]


def _waves(config: object, given: Sequence[int]) -> list[Example]:
    channels = int(getattr(config, "audio_channels", 1))
    found = [Example.of(_SAMPLES, samples=0), Example.of(channels, _SAMPLES, samples=1)]
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
        found.insert(0, Example.of(int(config.max_length), int(config.num_mel_bins)))
    return found


def _spectra(config: object, given: Sequence[int]) -> list[Example]:
    inner = getattr(config, "encoder_config", config)
    bins = next((int(found) for name in _BINS if (found := getattr(inner, name, None))), 80)
    frames = 2 * int(getattr(config, "max_source_positions", 1500))
    return [Example.of(bins, frames), Example.of(_FRAMES, bins, frames=0), Example.of(1, 1024, bins)]


def _series(config: object, given: Sequence[int]) -> list[Example]:
    length = int(getattr(config, "context_length", 32))
    return [Example.of(length, int(getattr(config, "num_input_channels", 1))), Example.of(length)]


_LAYOUTS = {
    "pixel_values": _images,
    "pixel_values_videos": _videos,
    "input_values": _waves,
    "input_features": _spectra,
    "past_values": _series,
}


def dynamic_axes(longest: int, example: Example, shared: bool) -> dict[int, object]:
    """The axes of an input whose size stays open.

    `shared`: one batch, and one length for tokens and their mask; else torch keeps fixed what the model itself fixes.
    """
    bounds = {"batch": (1, _LARGEST_BATCH), "samples": (1000, 1 << 20), "frames": (64, 1 << 14)}

    def dimension(label: str) -> object:
        low, high = bounds.get(label, (2, longest))
        return torch.export.Dim(label, min=low, max=high) if shared else torch.export.Dim.AUTO(min=low, max=high)

    return {axis: dimension(label) for axis, label in example.axes.items()}


def longest_of(model: torch.nn.Module) -> int:
    """The tokens of the longest sequence that is taken.

    Where padding has a place in a table of positions, as RoBERTa's, tokens have those behind it.
    """
    text = getattr(model.config, "text_config", model.config)
    longest = next((int(getattr(text, f)) for f in _LENGTH_FIELDS if getattr(text, f, None)), _LONGEST)
    for name, table in model.named_modules():
        is_table = isinstance(table, torch.nn.Embedding) and name.endswith("position_embeddings")
        if is_table and table.padding_idx is not None and table.num_embeddings == longest:
            longest -= table.padding_idx + 1
            break
    return max(min(longest, _LONGEST), _LENGTH + 1)
