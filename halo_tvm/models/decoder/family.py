"""A family of decoders: its functions `main`, `prefill`, `decode` and `decode_slots` over one table of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from ...errors import UnsupportedModel
from ...imported import InputSpec
from ...relay_ops.parts.kept_rows import kept_columns
from .._definition import Entry, Family, Interface
from .config import DecoderConfig
from .define import PAST, Caches, define
from .mixers import states
from .read import Reader

CAUSAL = ("ForCausalLM", "LMHeadModel")  # ends of the names of classes that go on with a text
CHUNK = 512  # tokens that one call of prefill takes at most
SLOTS = 256  # sequences that one call of decode_slots takes at most
_MOST_FURTHER = 16


def decoder_family(
    name: str,
    read: Callable[[Reader], DecoderConfig],
    *,
    types: tuple[str, ...] = (),
    presets: Mapping[str, DecoderConfig] = MappingProxyType({}),
    prefixes: tuple[str, ...] = ("",),
    even: tuple[str, ...] = (),
    beside: Callable[[Mapping[str, object]], tuple[str, ...]] | None = None,
    tied: tuple[str, str] = ("model.embed_tokens", "lm_head"),
) -> Family[DecoderConfig]:
    """The family `name`, for config.json of the model types `types`, which `read` understands."""

    def from_huggingface(config: Mapping[str, object]) -> DecoderConfig:
        return turning(read(Reader(config)))

    return Family(
        name=name,
        presets=presets,
        interface=interface,
        define=lambda config, m: define(config, m, caches=Caches.NONE, last=config.last_only),
        entries=entries,
        with_past=with_past,
        huggingface_types=types or (name,),
        heads=CAUSAL,
        from_huggingface=from_huggingface,
        prefixes=prefixes,
        tied={f"{tied[0]}.weight": f"{tied[1]}.weight"},
        even=even,
        complete=True,
        beside=beside or further,
    )


def turning(c: DecoderConfig) -> DecoderConfig:
    """`c`; `UnsupportedModel` where positions turn more channels than a head has, or heads of an odd number."""
    for index, layer in enumerate(c.pattern):
        if layer.rope is None:
            continue
        width, turned = c.at(index).turned_width, 2 * len(layer.rope.frequencies)
        if width % 2 or turned > width:
            raise UnsupportedModel(
                f"expected heads of an even number of channels, of which positions turn up to all, found {width} and "
                f"{turned} in the model's config: correct or re-export it"
            )
    return c


def further(config: Mapping[str, object]) -> tuple[str, ...]:
    """Names of layers behind the last one, which guess further tokens: nothing of the model's own answer."""
    count, layers = (int(config.get(name) or 0) for name in ("num_nextn_predict_layers", "num_hidden_layers"))  # type: ignore[call-overload]
    return ("mtp.", *(f"model.layers.{layers + i}." for i in range(min(count, _MOST_FURTHER))))


def interface(c: DecoderConfig) -> Interface:
    """Inputs of `main`. Activations are planned for the largest declared size."""
    ids = InputSpec("input_ids", ("batch", "sequence"), "int64", values=(0, c.vocabulary - 1))
    batch = 8 if c.position_offset is not None and c.norm == "layer" else 4
    return Interface((ids,), {"batch": (1, batch), "sequence": (1, c.longest)}, {"batch": 1, "sequence": 128})


def entries(c: DecoderConfig) -> Mapping[str, Entry[DecoderConfig]]:
    """`prefill`, `decode` and `decode_slots`, whose caches are state in place."""
    chunk = min(CHUNK, c.positions)
    return {
        "prefill": Entry(_cached("tokens", {"tokens": (1, chunk)}, {"tokens": min(128, chunk)}), _define_cached),
        "decode": Entry(_cached(1, {}, {}), _define_cached),
        "decode_slots": Entry(_cached(1, {"slots": (1, SLOTS)}, {"slots": min(4, SLOTS)}, "slots"), _define_cached),
    }


_define_cached = partial(define, caches=Caches.IN_PLACE, last=True)


def _cached(
    tokens: int | str, ranges: Mapping[str, tuple[int, int]], typical: Mapping[str, int], batch: int | str = 1
) -> Callable[[DecoderConfig, str], Interface]:
    def make(c: DecoderConfig, dtype: str) -> Interface:
        def row(index: int) -> tuple[int | str, ...]:
            at = c.at(index)
            return (batch, "capacity", at.key_heads, kept_columns(at.head_size, dtype))

        positions = (0 if batch == 1 else -1, c.positions - 1)
        caches = tuple(
            InputSpec(name, row(i) if shape is None else (batch, *shape), dtype if shape is None else "float32")
            for i in range(c.layers)
            for name, shape in _kept(c, i).items()
        )
        inputs = (
            InputSpec("input_ids", (batch, tokens), "int64", values=(0, c.vocabulary - 1)),
            InputSpec(
                "lengths", (batch,), "int32", values=positions, room=(tokens, "capacity") if c.attending else None
            ),
            *caches,
        )
        return Interface(
            inputs,
            {**ranges, **({"capacity": (1, c.positions)} if c.attending else {})},
            {**typical, **({"capacity": min(512, c.positions)} if c.attending else {})},
            state=tuple(spec.name for spec in caches),
        )

    return make


def _kept(c: DecoderConfig, index: int) -> dict[str, tuple[int, ...] | None]:
    """What layer `index` keeps: a cache by position (None), or a state of this shape, which has no positions."""
    mixer = c.layer(index).mixer
    caches: dict[str, tuple[int, ...] | None] = {f"{kind}_{index}": None for kind in c.kept}
    return {**(caches if index in c.attending else {}), **(states(c, mixer, index) if mixer else {})}


def with_past(last: bool) -> Entry[DecoderConfig]:
    """The decoder that takes the caches and returns longer ones; `last`: with logits of the last token alone."""
    return Entry(_returned, partial(define, caches=Caches.RETURNED, last=last))


def _returned(c: DecoderConfig, dtype: str) -> Interface:
    others = sum(not c.layer(i).attends or c.layer(i).mixer is not None for i in range(c.layers))
    if others:
        raise UnsupportedModel(
            f"expected keys and values alone in every layer, found {others} of {c.layers} with something else, for "
            "which other engines have no inputs: leave out the caches"
        )
    rows = {i: ("batch", c.at(i).key_heads, "past", c.at(i).head_size) for i in c.attending}
    caches = [InputSpec(f"{PAST}.{i}.{kind}", row, dtype) for i, row in rows.items() for kind in c.kept]
    inputs = (
        InputSpec("input_ids", ("batch", "tokens"), "int64", values=(0, c.vocabulary - 1)),
        InputSpec("attention_mask", ("batch", "total"), "int64", values=(0, 1)),
        InputSpec("position_ids", ("batch", "tokens"), "int64", values=(0, c.positions - 1)),
        *caches,
    )
    ranges = {"batch": (1, SLOTS), "tokens": (1, c.positions), "past": (0, c.positions), "total": (1, c.positions)}
    return Interface(inputs, ranges, {"batch": 1, "tokens": 1, "past": 127, "total": 128})
