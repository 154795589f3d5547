"""What each part of the compiler is worth: GPT-2 and BERT with one part left out at a time, against the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from halo_tvm.artifact import Manifest, read_manifest
from halo_tvm.config import BenchConfig, CompileConfig
from halo_tvm.report import markdown
from halo_tvm.report.schema import BenchResult, Comparison

MODELS = {"gpt2-last": "batch=1,sequence=128", "bert-base": "batch=1,sequence=128"}


@dataclass(frozen=True)
class Variant:
    """One part left out, by options that every user has."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    what: str = ""


WHOLE = Variant("whole")
VARIANTS = (
    Variant(
        "no-attention",
        {"overrides": {"operators": {"attention": {"rule": "fallback"}}}},
        "attention by the fallback rule: the score matrix is written and read",
    ),
    Variant("no-fusion", {"disable": ("fuse", "fuse_projections")}, "every operator a kernel of its own"),
    Variant("no-packing", {"disable": ("pack_weights", "channels_last")}, "weights as the model stores them"),
    Variant("avx2", {"target": "x86:avx2"}, "instructions of AVX2 instead of the host's"),
    Variant("no-vector-math", {"disable": ("vector_math",)}, "exp, tanh and erf by the C library, one at a time"),
)


def artifact(cache: Path, model: str, variant: Variant) -> Path:
    return cache / "ablation" / model / f"{variant.name}.halo"


def compile_config(cache: Path, model: str, variant: Variant) -> CompileConfig:
    path = artifact(cache, model, variant)
    path.parent.mkdir(parents=True, exist_ok=True)
    return CompileConfig(model=model, output=str(path), validate=False, **variant.options)


def bench_config(cache: Path, model: str, threads: int, rounds: int) -> BenchConfig:
    """The whole against all variants that were compiled, in turns."""
    others = tuple(str(artifact(cache, model, v)) for v in VARIANTS if artifact(cache, model, v).exists())
    whole = str(artifact(cache, model, WHOLE))
    return BenchConfig(artifact=whole, vs=others, shape=MODELS[model], rounds=rounds, threads=threads)


def predicted_bytes(manifest: Manifest, sizes: Sequence[int], variant: Variant) -> float | None:
    """Bytes of traffic that the part saves in one run, as the compiler's own report or arithmetic says."""
    if variant.name == "no-fusion":
        candidates = manifest.reports["optimise"].get("fuse", {}).get("candidates", [])
        return float(sum(c["bytes_apart"] - c["bytes_fused"] for c in candidates if c["taken"]))
    if variant.name == "no-attention":
        batch, sequence = sizes
        layers, heads = 12, 12  # of both models; scores and probabilities, each written and read in float32
        return float(layers * heads * batch * sequence * sequence * 4 * 4)
    return None  # the other parts change instructions and the order of the same bytes


def table(cache: Path, results: Sequence[BenchResult]) -> str:
    """One line per model and part: what leaving it out costs, beside the bytes it was predicted to save."""
    header = ("model", "left out", "threads", "ms", "times the whole", "predicted MB saved", "what runs instead")
    rows = []
    for result in results:
        manifest = read_manifest(str(artifact(cache, result.model, WHOLE)))
        sizes = next(iter(result.inputs.values()))
        rows.append((result.model, "nothing", str(result.threads), f"{result.engines[0].median_ms:.1f}", "", "", ""))
        ratios = {c.peer: c for c in result.comparisons}
        for variant in VARIANTS:
            name = f"{variant.name}.halo"
            engine = next((e for e in result.engines if e.engine == name), None)
            if engine is None:
                rows.append((result.model, variant.name, str(result.threads), "-", "not compiled", "", variant.what))
                continue
            saved = predicted_bytes(manifest, sizes, variant)
            time = "failed" if engine.median_ms is None else f"{engine.median_ms:.1f}"
            rows.append(
                (
                    result.model,
                    variant.name,
                    str(result.threads),
                    time,
                    _ratio(ratios.get(name)),
                    "-" if saved is None else f"{saved / 1e6:.1f}",
                    variant.what,
                )
            )
    return markdown.table(header, rows)


def _ratio(comparison: Comparison | None) -> str:
    if comparison is None:
        return "-"
    interval = comparison.paired
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"
