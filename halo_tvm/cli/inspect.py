"""Print what an artifact is: functions, variants, what was lifted, fused, scheduled and tuned, sizes, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..artifact import Manifest, TensorSpec, cost_of, read_manifest
from ..config import InspectConfig
from ..report.table import number
from ..text import one_line
from ._free_form import count, counts, items, mapping, mappings, real
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
                *_lifted(mapping(phases.get("lift"))),
                *_quantised(mapping(phases.get("optimise"))),
                *_fused(mapping(phases.get("optimise"))),
                *_scheduled(mapping(phases.get("schedule"))),
                *_built(mapping(phases.get("build"))),
            ]
        ),
        _device_code(mapping(mapping(phases.get("build")).get("device"))),
        _validation(manifest.validation),
        f"benchmarks  {len(manifest.benchmarks)}",
        f"versions    {_pairs(manifest.versions)}",
    ]
    return "\n\n".join(section for section in sections if section)


def _pairs(value: object) -> str:
    return one_line(", ".join(f"{key} {item}" for key, item in mapping(value).items())) or "none"


def _functions(manifest: Manifest) -> str:
    lines = []
    for name, function in manifest.functions.items():
        lines.append(f"function {one_line(name)}: {len(function.params)} parameters")
        lines += [f"  in   {_tensor(spec)}" for spec in function.inputs]
        lines += [f"  out  {_tensor(spec)}" for spec in function.outputs]
        lines += [f"  {one_line(dim)} from {low} to {high}" for dim, (low, high) in function.ranges.items()]
    return "\n".join(lines)


def _tensor(spec: TensorSpec) -> str:
    values = f", values {spec.values[0]} to {spec.values[1]}" if spec.values else ""
    default = f", may be left out ({spec.default})" if spec.default else ""
    return one_line(f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]{values}{default}")


def _variants(manifest: Manifest) -> str:
    rows = [(v.isa, v.target, v.library, v.params or "-", " ".join(v.requires) or "nothing") for v in manifest.variants]
    packs = one_line(", ".join(f"{number} x {name}" for name, number in manifest.pack_formats.items()))
    return table(("variant", "target", "library", "params", "needs"), rows) + (
        f"\npacked weights: {packs}" if packs else ""
    )


def _lifted(report: Report) -> list[str]:
    rejected = mappings(report.get("rejected"))
    return [
        f"operators   {_pairs(report.get('operators'))}",
        f"lifted      {_pairs(report.get('applied'))}",
        *_few(
            f"rejected    {len(rejected)}", [f"{r.get('lift')} at {r.get('node')}: {r.get('reason')}" for r in rejected]
        ),
    ]


def _fused(report: Report) -> list[str]:
    fuse = mapping(report.get("fuse"))
    if not fuse:
        return []
    candidates = mappings(fuse.get("candidates"))
    taken = sum(bool(c.get("taken")) for c in candidates)
    saved = size(count(fuse.get("saved_bytes")) or 0)
    return [f"fused       {taken} of {len(candidates)} candidates, {saved} less memory traffic per run"]


def _quantised(report: Report) -> list[str]:
    found = mapping(report.get("quantise"))
    if not found:
        return []
    tied, kept = len(items(found.get("tied_embeddings"))), mappings(found.get("kept"))
    head = (
        f"quantised   {count(found.get('linears')) or 0} linears, {count(found.get('activations')) or 0} activations"
        + (f", {tied} tied embedding{'s' if tied > 1 else ''}" if tied else "")
        + f"; kept in fp32: {len(kept) or 'none'}"
    )
    return _few(head, [f"{k.get('weight')}: {k.get('reason')}" for k in kept])


def _scheduled(report: Report) -> list[str]:
    functions = mappings(report.get("functions"))
    fallback = [entry for entry in functions if str(entry.get("rule")).startswith("fallback")]
    lines = [f"scheduled   {_pairs(report.get('rules'))}"]
    lines += _few(
        f"fallback    {len(fallback) or 'none'}",
        [f"{e.get('function')}: {'; '.join(map(str, items(e.get('declined')))) or 'asked for'}" for e in fallback],
    )
    stopped = mapping(report.get("stopped"))
    if stopped:
        lines.append(f"stopped     {_pairs(stopped)}: rules of TVM's that ended with an error over a function")
    kernels = mapping(report.get("kernels"))
    if kernels:
        lines.append(one_line(f"kernels     {kernels.get('summary')}"))
    return lines + [f"tuned       {count(report.get('tuned')) or 0} of {len(functions)} functions from records"]


def _built(report: Report) -> list[str]:
    planned, seconds = count(report.get("planned_bytes")), mapping(report.get("seconds"))
    lines = [] if planned is None else [f"memory      {size(planned)} planned for intermediate results"]
    return lines + ([f"seconds     {_pairs(seconds)}"] if seconds else [])


def _device_code(report: Report) -> str:
    """What a GPU's library holds: its kernels, those that spill first, then those of most registers."""
    if not report:
        return ""
    if report.get("form") == "source":
        return one_line(f"device      CUDA source, compiled when the library is loaded: {report.get('reason')}")
    numbers = (
        "registers",
        "spill_store_bytes",
        "spill_load_bytes",
        "stack_bytes",
        "shared_bytes",
        "dynamic_shared_bytes",
    )
    kernels = [(str(k.get("name")), k.get("threads"), counts(k)) for k in mappings(report.get("kernels"))]
    rows = []
    for name, threads, of in kernels:
        registers, stored, loaded, *rest = (of.get(number, 0) for number in numbers)
        cells = (f"  {name}", threads or "any", registers, f"{stored} / {loaded}", *rest)
        rows.append((-stored - loaded, -registers, name, cells))
    header = ("  kernel", "threads", "registers", "spilled B (stored / loaded)", "stack B", "shared B", "dynamic B")
    made = one_line(f"device      machine code and PTX for {report.get('arch')}, by {report.get('compiler')}")
    return f"{made}\n" + table(header, [cells for *_, cells in sorted(rows, key=lambda row: row[:3])])


def _validation(report: Report | None) -> str:
    if report is None:
        return "validation  none yet: `halo-tvm validate` compares the artifact with its reference"
    outputs = mappings(report.get("outputs"))
    rows = [
        (
            f"  {o.get('case')}",
            o.get("output"),
            "yes" if o.get("passed") is True else "NO",
            number(real(o.get("max_abs_error")), ".3g"),
            number(real(o.get("bound")), ".3g"),
        )
        for o in outputs
    ]
    verdict = f"validation  {'passed' if report.get('passed') is True else 'FAILED'}{_cost(report, outputs)}\n"
    return verdict + table(("  case", "output", "passed", "max abs error", "bound"), rows)


def _cost(report: Report, outputs: Sequence[Report]) -> str:
    """What the precision costs, where the validation has a tolerance for it."""
    limit = real(mapping(report.get("tolerance")).get("relative_l2"))
    errors = [real(o.get("relative_l2")) for o in outputs]
    if limit is None or not errors or None in errors:
        return ""
    rows = [{"relative_l2": error, "top1": real(o.get("top1"))} for error, o in zip(errors, outputs, strict=True)]
    precision = report.get("precision")
    return one_line(f", {cost_of({'precision': precision, 'tolerance': {'relative_l2': limit}, 'outputs': rows})}")


def _few(head: str, lines: Sequence[str]) -> list[str]:
    """`head` and the first items under it, with the rest counted."""
    rest = len(lines) - SHOWN_ITEMS
    return [
        head,
        *(one_line(f"              {line}") for line in lines[:SHOWN_ITEMS]),
        *([f"              ... and {rest} more (--json shows all)"] if rest > 0 else []),
    ]
