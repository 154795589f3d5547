"""Print what an artifact is: functions, variants, what was lifted, fused, scheduled and tuned, sizes, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..artifact import Manifest, TensorSpec, cost_of, read_manifest
from ..config import InspectConfig
from ._show import size, table

CONFIG = InspectConfig
SHOWN_ITEMS = 8  # of a list of reasons

Report = Mapping[str, object]


def run(config: InspectConfig) -> int:
    """Read the manifest only: nothing is loaded or run, and the other files are not hashed."""
    manifest = read_manifest(config.artifact)
    if config.json:
        print(manifest.encode().decode(), end="")
        return 0
    print(describe(manifest))
    return 0


def describe(manifest: Manifest) -> str:
    """The manifest as a reader wants it; `--json` has every detail."""
    phases = manifest.reports
    sections = [
        f"{manifest.name} (abi {manifest.abi}), precision {manifest.precision}, from {_pairs(manifest.source)}",
        _functions(manifest),
        _variants(manifest),
        table(
            ("file", "size", "sha256"),
            [(name, size(entry.size_bytes), entry.sha256[:16]) for name, entry in manifest.files.items()],
        ),
        "\n".join(
            [
                *_lifted(phases.get("lift", {})),
                *_quantised(phases.get("optimise", {})),
                *_fused(phases.get("optimise", {})),
                *_scheduled(phases.get("schedule", {})),
                *_built(phases.get("build", {})),
            ]
        ),
        _validation(manifest.validation),
        f"benchmarks  {len(manifest.benchmarks)}",
        f"versions    {_pairs(manifest.versions)}",
    ]
    return "\n\n".join(section for section in sections if section)


def _pairs(mapping: Report) -> str:
    return ", ".join(f"{key} {value}" for key, value in mapping.items()) or "none"


def _functions(manifest: Manifest) -> str:
    lines = []
    for name, function in manifest.functions.items():
        lines.append(f"function {name}: {len(function.params)} parameters")
        lines += [f"  in   {_tensor(spec)}" for spec in function.inputs]
        lines += [f"  out  {_tensor(spec)}" for spec in function.outputs]
        lines += [f"  {dim} from {low} to {high}" for dim, (low, high) in function.ranges.items()]
    return "\n".join(lines)


def _tensor(spec: TensorSpec) -> str:
    values = f", values {spec.values[0]} to {spec.values[1]}" if spec.values else ""
    default = f", may be left out ({spec.default})" if spec.default else ""
    return f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]{values}{default}"


def _variants(manifest: Manifest) -> str:
    rows = [(v.isa, v.target, v.library, v.params or "-", " ".join(v.requires) or "nothing") for v in manifest.variants]
    packs = ", ".join(f"{count} x {name}" for name, count in manifest.pack_formats.items())
    return table(("variant", "target", "library", "params", "needs"), rows) + (
        f"\npacked weights: {packs}" if packs else ""
    )


def _lifted(report: Report) -> list[str]:
    lines = [f"operators   {_pairs(report.get('operators', {}))}", f"lifted      {_pairs(report.get('applied', {}))}"]
    rejected = report.get("rejected", [])
    return lines + _few(
        f"rejected    {len(rejected)}", [f"{r['lift']} at {r['node']}: {r['reason']}" for r in rejected]
    )


def _fused(report: Report) -> list[str]:
    fuse = report.get("fuse")
    if not isinstance(fuse, Mapping):
        return []
    candidates = fuse.get("candidates", [])
    taken = sum(bool(c.get("taken")) for c in candidates)
    return [
        f"fused       {taken} of {len(candidates)} candidates, {size(fuse.get('saved_bytes', 0))} less memory "
        "traffic per run"
    ]


def _quantised(report: Report) -> list[str]:
    found = report.get("quantise")
    if not isinstance(found, Mapping):
        return []
    tied = len(found.get("tied_embeddings", []))
    kept = found.get("kept", [])
    head = (
        f"quantised   {found.get('linears', 0)} linears, {found.get('activations', 0)} activations"
        + (f", {tied} tied embedding{'s' if tied > 1 else ''}" if tied else "")
        + f"; kept in fp32: {len(kept) or 'none'}"
    )
    return _few(head, [f"{k['weight']}: {k['reason']}" for k in kept])


def _scheduled(report: Report) -> list[str]:
    functions = report.get("functions", [])
    fallback = [entry for entry in functions if str(entry["rule"]).startswith("fallback")]
    lines = [f"scheduled   {_pairs(report.get('rules', {}))}"]
    lines += _few(
        f"fallback    {len(fallback) or 'none'}",
        [f"{entry['function']}: {'; '.join(entry['declined']) or 'asked for'}" for entry in fallback],
    )
    if isinstance(report.get("kernels"), Mapping):
        lines.append(f"kernels     {report['kernels'].get('summary')}")
    return lines + [f"tuned       {report.get('tuned', 0)} of {len(functions)} functions from records"]


def _built(report: Report) -> list[str]:
    lines = (
        [f"memory      {size(report['planned_bytes'])} planned for intermediate results"]
        if "planned_bytes" in report
        else []
    )
    return lines + ([f"seconds     {_pairs(report['seconds'])}"] if isinstance(report.get("seconds"), Mapping) else [])


def _validation(report: Report | None) -> str:
    if report is None:
        return "validation  none yet: `halo-tvm validate` compares the artifact with its reference"
    outputs = report.get("outputs", [])
    rows = [
        (
            o["case"],
            o["output"],
            "yes" if o["passed"] else "NO",
            f"{float(o['max_abs_error']):.3g}",
            f"{float(o['bound']):.3g}",
        )
        for o in outputs
    ]
    cost = f", {cost_of(report)}" if report.get("tolerance") and outputs else ""
    return f"validation  {'passed' if report.get('passed') else 'FAILED'}{cost}\n" + table(
        ("  case", "output", "passed", "max abs error", "bound"), [(f"  {row[0]}", *row[1:]) for row in rows]
    )


def _few(head: str, items: Sequence[str]) -> list[str]:
    """`head` and the first items under it, with the rest counted."""
    rest = len(items) - SHOWN_ITEMS
    return [
        head,
        *(f"              {item}" for item in items[:SHOWN_ITEMS]),
        *([f"              ... and {rest} more (--json shows all)"] if rest > 0 else []),
    ]
