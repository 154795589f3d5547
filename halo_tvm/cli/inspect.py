"""Print what an artifact is: functions, variants, what was lifted, fused, scheduled and tuned, sizes, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..artifact import UNBOUNDED, Manifest, TensorSpec, cost_of, read_manifest
from ..config import InspectConfig
from ..phase_reports import BuildReport, DeviceCode, LiftReport, OptimiseReport, Reports, ScheduleReport, read
from ..report.table import number
from ..text import one_line, shortened
from ._show import size, table

CONFIG = InspectConfig
SHOWN_ITEMS = 8  # of a list of reasons


@dataclass(frozen=True)
class ValidatedOutput:
    """One output of one case, held against its reference."""

    case: object = None
    output: object = None
    passed: bool = False
    max_abs_error: float | None = None
    bound: float | None = None
    relative_l2: float | None = None
    top1: float | None = None


@dataclass(frozen=True)
class Validation:
    """What validation left in the manifest."""

    passed: bool = False
    precision: object = None
    tolerance: Mapping[str, float] = field(default_factory=dict)
    outputs: tuple[ValidatedOutput, ...] = ()


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
    reports = read(Reports, manifest.reports)
    sections = [
        one_line(
            f"{manifest.name} (abi {manifest.abi}), precision {manifest.precision}, from {_pairs(manifest.source)}"
        ),
        _functions(manifest),
        _variants(manifest),
        table(
            ("file", "size", "sha256"),
            [(name, size(entry.size_bytes), entry.sha256[:16]) for name, entry in manifest.files.items()],
        ),
        "\n".join(
            [
                *_lifted(reports.lift),
                *_quantised(reports.optimise),
                *_fused(reports.optimise),
                *_scheduled(reports.schedule),
                *_built(reports.build),
            ]
        ),
        _device_code(reports.build.device),
        _validation(manifest.validation),
        f"benchmarks  {len(manifest.benchmarks)}",
        f"versions    {_pairs(manifest.versions)}",
    ]
    return "\n\n".join(section for section in sections if section)


def _pairs(value: Mapping[str, object]) -> str:
    return one_line(", ".join(f"{key} {_in_words(item)}" for key, item in value.items())) or "none"


def _in_words(item: object) -> str:
    """A nested table or list of the manifest's JSON, without its brackets and quotes."""
    if isinstance(item, Mapping):
        return " ".join(f"{key}={_in_words(part)}" for key, part in item.items()) or "none"
    return " ".join(map(_in_words, item)) or "none" if isinstance(item, (list, tuple)) else str(item)


def _functions(manifest: Manifest) -> str:
    lines = []
    for name, function in manifest.functions.items():
        lines.append(f"function {one_line(name)}: {len(function.params)} parameters")
        lines += [f"  in   {_tensor(spec)}" for spec in function.inputs]
        lines += [f"  out  {_tensor(spec)}" for spec in function.outputs]
        lines += [f"  {one_line(dim)} {_range(*bounds)}" for dim, bounds in function.ranges.items()]
    return "\n".join(lines)


def _range(low: int, high: int) -> str:
    return f"from {low}, without an upper bound" if high >= UNBOUNDED else f"from {low} to {high}"


def _tensor(spec: TensorSpec) -> str:
    values = f", values {spec.values[0]} to {spec.values[1]}" if spec.values else ""
    default = f", may be left out ({spec.default})" if spec.default else ""
    labels = f", of {shortened(', '.join(spec.labels))}" if spec.labels else ""
    return one_line(f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]{values}{default}{labels}")


def _variants(manifest: Manifest) -> str:
    rows = [(v.isa, v.target, v.library, v.params or "-", " ".join(v.requires) or "nothing") for v in manifest.variants]
    packs = one_line(", ".join(f"{number} x {name}" for name, number in manifest.pack_formats.items()))
    return table(("variant", "target", "library", "params", "needs"), rows) + (
        f"\npacked weights: {packs}" if packs else ""
    )


def _lifted(report: LiftReport) -> list[str]:
    return [
        f"operators   {_pairs(report.operators)}",
        f"lifted      {_pairs(report.applied)}",
        *_few(f"rejected    {len(report.rejected)}", [f"{r.lift} at {r.node}: {r.reason}" for r in report.rejected]),
    ]


def _fused(report: OptimiseReport) -> list[str]:
    if report.fuse is None:
        return []
    candidates = report.fuse.candidates
    taken, saved = sum(c.taken for c in candidates), size(report.fuse.saved_bytes or 0)
    return [f"fused       {taken} of {len(candidates)} candidates, {saved} less memory traffic per run"]


def _quantised(report: OptimiseReport) -> list[str]:
    found = report.quantise
    if found is None:
        return []
    tied = len(found.tied_embeddings)
    head = (
        f"quantised   {found.linears} linears, {found.activations} activations"
        + (f", {tied} tied embedding{'s' if tied > 1 else ''}" if tied else "")
        + f"; kept in fp32: {len(found.kept) or 'none'}"
    )
    chosen = [f"schemes     {found.choice}"] if found.choice else []
    return [*_few(head, [f"{k.weight}: {k.reason}" for k in found.kept]), *map(one_line, chosen)]


def _scheduled(report: ScheduleReport) -> list[str]:
    fallback = [entry for entry in report.functions if entry.rule.startswith("fallback")]
    lines = [f"scheduled   {_pairs(report.rules)}"]
    lines += _few(
        f"fallback    {len(fallback) or 'none'}",
        [f"{e.function}: {'; '.join(e.declined) or 'asked for'}" for e in fallback],
    )
    if report.stopped:
        lines.append(f"stopped     {_pairs(report.stopped)}: rules of TVM's that ended with an error over a function")
    if report.kernels:
        lines.append(one_line(f"kernels     {report.kernels}"))
    if report.loops:
        lines.append(one_line(f"loops       {report.loops}"))
    return lines + [f"tuned       {report.tuned} of {len(report.functions)} functions from records"]


def _built(report: BuildReport) -> list[str]:
    planned = report.planned_bytes
    return [] if planned is None else [f"memory      {size(planned)} planned for intermediate results"]


def _device_code(code: DeviceCode | None) -> str:
    """What a GPU's library holds: its kernels, those that spill first, then those of most registers."""
    if code is None:
        return ""
    if code.form == "source":
        return one_line(f"device      CUDA source, compiled when the library is loaded: {code.reason}")
    kernels = sorted(code.kernels, key=lambda k: (-k.spill_store_bytes - k.spill_load_bytes, -k.registers, k.name))
    rows = [
        (
            f"  {k.name}",
            k.threads or "any",
            k.registers,
            f"{k.spill_store_bytes} / {k.spill_load_bytes}",
            k.stack_bytes,
            k.shared_bytes,
            k.dynamic_shared_bytes,
        )
        for k in kernels
    ]
    header = ("  kernel", "threads", "registers", "spilled B (stored / loaded)", "stack B", "shared B", "dynamic B")
    made = one_line(f"device      machine code and PTX for {code.arch}, by {code.compiler}")
    return f"{made}\n" + table(header, rows)


def _validation(report: Mapping[str, object] | None) -> str:
    if report is None:
        return "validation  none yet: `halo-tvm validate` compares the artifact with its reference"
    found = read(Validation, report)
    rows = [
        (
            f"  {o.case}",
            o.output,
            "yes" if o.passed else "NO",
            number(o.max_abs_error, ".3g"),
            number(o.bound, ".3g"),
        )
        for o in found.outputs
    ]
    verdict = f"validation  {'passed' if found.passed else 'FAILED'}{_cost(found)}\n"
    return verdict + table(("  case", "output", "passed", "max abs error", "bound"), rows)


def _cost(found: Validation) -> str:
    """What the precision costs, where the validation has a tolerance for it."""
    limit, errors = found.tolerance.get("relative_l2"), [o.relative_l2 for o in found.outputs]
    if limit is None or not errors or None in errors:
        return ""
    rows = [{"relative_l2": o.relative_l2, "top1": o.top1} for o in found.outputs]
    said = cost_of({"precision": found.precision, "tolerance": {"relative_l2": limit}, "outputs": rows})
    return one_line(f", {said}")


def _few(head: str, lines: Sequence[str]) -> list[str]:
    """`head` and the first items under it, with the rest counted."""
    rest = len(lines) - SHOWN_ITEMS
    return [
        head,
        *(one_line(f"              {line}") for line in lines[:SHOWN_ITEMS]),
        *([f"              ... and {rest} more (--json shows all)"] if rest > 0 else []),
    ]
