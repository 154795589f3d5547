"""How positions turn heads, in the words of config.json: the base, the part that turns, and what scales frequencies."""

from __future__ import annotations

import math

from ._metadata import Metadata, refuse
from .container import Value, floats

_WHOLE_RAMPS = ("gpt-oss",)  # trained with ends of yarn's ramp that are no whole numbers, which llama.cpp makes of them
_TENFOLD = ("deepseek2", "mistral4")  # whose converters write a tenth of the magnitude
_ALIKE = ("deepseek2",)  # whose two magnitudes are the same


def rotation(m: Metadata, size: int | None) -> dict[str, object]:
    """rope_theta, the part of a head of `size` channels that turns, and the scaling of its frequencies."""
    own = m.own
    words: dict[str, object] = {"rope_theta": own.get("rope.freq_base")}
    turned = own.get("rope.dimension_count", size)
    if size is not None and isinstance(turned, int) and 0 < turned <= size:
        words["partial_rotary_factor"] = math.nextafter(turned / size, 1.0) if turned < size else 1.0
    longest = own.get("context_length")
    original = own.get("rope.scaling.original_context_length", longest)
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear"))  # the older name
    kind = own.get("rope.scaling.type", "linear")  # what llama.cpp takes where a factor stands alone; 0 is none
    divisors = {"rope_freqs.weight": longest, "rope_factors_short.weight": original}
    stored = next((name for name in divisors if name in m.file.tensors), None)
    if stored:
        words["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": tuple(map(float, floats(m.file, stored).reshape(-1))),
            "original_max_position_embeddings": divisors[stored],
            "attention_factor": own.get("rope.scaling.attn_factor", 1.0),
        }
    elif kind == "yarn" and isinstance(factor, float):
        words["rope_scaling"] = _yarn(m, factor, original)
    elif kind not in ("none", "longrope") and (factor or kind != "linear"):
        words["rope_scaling"] = {"rope_type": kind, "factor": factor}
    if own.get("attention.temperature_scale") and kind != "yarn":
        refuse("attention.temperature_scale beside a rotation of the kind yarn", repr(kind))
    return words


def _yarn(m: Metadata, factor: float, original: Value | None) -> dict[str, object]:
    """Frequencies that are stretched by `factor` beyond the `original` length.

    Scores whose temperature grows with the distance (`attention.temperature_scale`) have that of 1 up to that length,
    at which contexts of such a model end.
    """
    own = m.own
    if own.get("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        refuse("rope.scaling.yarn_ext_factor 1", repr(own["rope.scaling.yarn_ext_factor"]))
    found: dict[str, object] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "truncate": m.architecture not in _WHOLE_RAMPS,
        "beta_fast": own.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": own.get("rope.scaling.yarn_beta_slow"),
        "llama_4_scaling_beta": own.get("attention.temperature_scale"),
    }
    times = own.get("rope.scaling.attn_factor", 1.0)
    magnitude = own.get("rope.scaling.yarn_log_multiplier", 0.0)
    if magnitude:
        if times != 1.0:
            refuse("rope.scaling.attn_factor 1 beside rope.scaling.yarn_log_multiplier", repr(times))
        of_all = float(magnitude) * (10 if m.architecture in _TENFOLD else 1)  # type: ignore[arg-type]
        return {**found, "mscale": of_all if m.architecture in _ALIKE else 1.0, "mscale_all_dim": of_all}
    usual = 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
    given = own.get("rope.scaling.yarn_attn_factor", usual)
    return {**found, "attention_factor": float(times) * float(given)}  # type: ignore[arg-type]
