"""What a lower precision costs, in words: for the report of a validation."""

from __future__ import annotations

import math
from collections.abc import Mapping


def cost_of(validation: Mapping[str, object]) -> str:
    """The largest relative L2 error of `Manifest.validation` and its bound, the least share of equal decisions.

    Only for a validation with a tolerance of its precision.
    """
    rows = validation["outputs"]
    error, bound = max(float(row["relative_l2"]) for row in rows), validation["tolerance"]["relative_l2"]
    text = f"{validation['precision']}: relative L2 error {error:.2g} (at most {bound:.2g})"
    agreed = [row["top1"] for row in rows if row["top1"] is not None]
    return f"{text}, top-1 agreement {min(agreed):.1%}" if agreed else text


def text_cost_of(validation: Mapping[str, object]) -> str:
    """How the artifact and its source read a passage of text; only for a validation with one."""
    text = validation["text"]
    bound = float(text["bound"])
    limit = f"at most {bound:.2g}" if math.isfinite(bound) else "any is accepted"
    behind = text.get("behind_caches")
    caches = "" if behind is None else f", {float(behind):.2g} behind its caches"
    return (
        f"text of {text['tokens']} tokens: perplexity {float(text['perplexity']):.4g} "
        f"(source {float(text['source_perplexity']):.4g}), divergence {float(text['divergence']):.2g} nats per token "
        f"({limit}){caches}, top-1 agreement {float(text['top1']):.1%}"
    )
