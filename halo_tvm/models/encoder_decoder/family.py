"""A family of encoder-decoders: its functions `main`, `encode`, `cross` and `decode` over one table of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import relax

from ...imported import InputSpec
from ...relay_ops.parts.kept_rows import kept_columns
from .._definition import Entry, Family, Interface
from ..builder import ModelBuilder
from ..decoder import Reader
from .config import EncoderDecoderConfig
from .define import cross, define, define_decode, encode

_BATCH = 8
_LONGEST = 1024  # of what activations are planned for: more is declared with --shape


def encoder_decoder_family(
    name: str,
    read: Callable[[Reader], EncoderDecoderConfig],
    *,
    types: tuple[str, ...] = (),
    heads: tuple[str, ...] = ("ForConditionalGeneration",),
) -> Family[EncoderDecoderConfig]:
    """The family `name`, for config.json of the model types `types`, which `read` understands."""

    def from_huggingface(config: Mapping[str, object]) -> EncoderDecoderConfig:
        return read(Reader(config))

    return Family(
        name=name,
        presets={},
        interface=interface,
        define=define,
        entries=entries,
        huggingface_types=types or (name,),
        heads=heads,
        from_huggingface=from_huggingface,
        even=("hidden",),
        prefixes=("model.", ""),
    )


def interface(c: EncoderDecoderConfig) -> Interface:
    """Inputs of `main`."""
    read, ranges, typical = _read(c, "source")
    tokens = InputSpec("decoder_input_ids", ("batch", "tokens"), "int64", values=(0, c.vocabulary - 1))
    longest = min(c.answer, _LONGEST)
    return Interface((*read, tokens), {**ranges, "tokens": (1, longest)}, {**typical, "tokens": min(32, longest)})


def entries(c: EncoderDecoderConfig) -> Mapping[str, Entry[EncoderDecoderConfig]]:
    """`encode` and `cross`, once per text or sound, and `decode`, whose caches are state in place."""
    return {
        "encode": Entry(lambda config, _: Interface(*_read(config, "sequence")), _encoded),
        "cross": Entry(_cross_interface, lambda config, m: cross(config, m, m.inputs["last_hidden_state"])),
        "decode": Entry(_decode_interface, define_decode),
    }


def _encoded(c: EncoderDecoderConfig, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    return {"last_hidden_state": encode(c, m)}


def _read(
    c: EncoderDecoderConfig, length: str
) -> tuple[tuple[InputSpec, ...], dict[str, tuple[int, int]], dict[str, int]]:
    """What the encoder reads: its inputs, their ranges and typical sizes."""
    if c.bands:
        spectrum = InputSpec("input_features", ("batch", c.bands, 2 * c.positions), "float32")
        return (spectrum,), {"batch": (1, _BATCH)}, {"batch": 1}
    ids = InputSpec("input_ids", ("batch", length), "int64", values=(0, c.source_vocabulary - 1))
    mask = InputSpec("attention_mask", ("batch", length), "int64", values=(0, 1), default="ones")
    longest = min(c.positions, _LONGEST)
    return (ids, mask), {"batch": (1, _BATCH), length: (1, longest)}, {"batch": 1, length: min(128, longest)}


def _cross_interface(c: EncoderDecoderConfig, _caches: str) -> Interface:
    _, ranges, typical = _read(c, "source")
    length = "source" if "source" in ranges else c.positions
    return Interface((InputSpec("last_hidden_state", ("batch", length, c.hidden), "float32"),), ranges, typical)


def _decode_interface(c: EncoderDecoderConfig, dtype: str) -> Interface:
    size = c.hidden // c.decoder_heads
    row = (1, "capacity", c.decoder_heads, kept_columns(size, dtype))
    places = [(kind, i) for i in range(c.decoder_layers) for kind in ("key", "value")]
    caches = [InputSpec(f"{kind}_{i}", row, dtype) for kind, i in places]
    _, ranges, typical = _read(c, "source")
    length = "source" if "source" in ranges else c.positions
    seen = [InputSpec(f"cross_{kind}_{i}", (1, length, c.decoder_heads, size), "float32") for kind, i in places]
    inputs = (
        InputSpec("input_ids", (1, 1), "int64", values=(0, c.vocabulary - 1)),
        InputSpec("lengths", (1,), "int32", values=(0, c.answer - 1), room=(1, "capacity")),
        *seen,
        *caches,
    )
    return Interface(
        inputs,
        {**{k: v for k, v in ranges.items() if k != "batch"}, "capacity": (1, c.answer)},
        {**{k: v for k, v in typical.items() if k != "batch"}, "capacity": min(512, c.answer)},
        state=tuple(spec.name for spec in caches),
    )
