"""Print what an artifact is: functions, variants, what was lifted, scheduled and tuned, sizes, versions."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..artifact import Manifest, TensorSpec, read_manifest
from ..config import InspectConfig
from ._show import size, table

CONFIG = InspectConfig
SHOWN_ITEMS = 12  # of a list inside a report


def run(config: InspectConfig) -> int:
    """Read the manifest only: nothing is loaded or run, and the other files are not hashed."""
    manifest = read_manifest(config.artifact)
    if config.json:
        print(manifest.encode().decode(), end="")
        return 0
    source = ", ".join(f"{key} {value}" for key, value in manifest.source.items())
    print(f"{manifest.name} (abi {manifest.abi})\nsource: {source}\n")
    for section in (_functions, _variants, _files, _reports, _results):
        text = section(manifest)
        if text:
            print(text + "\n")
    print("versions: " + ", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    return 0


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
    packs = f"\npacked weights: {', '.join(f'{count} x {name}' for name, count in manifest.pack_formats.items())}" if manifest.pack_formats else ""
    return table(("variant", "target", "library", "params", "needs"), rows) + packs


def _files(manifest: Manifest) -> str:
    return table(("file", "size", "sha256"), [(name, size(entry.size_bytes), entry.sha256[:16]) for name, entry in manifest.files.items()])


def _reports(manifest: Manifest) -> str:
    lines = []
    for phase, report in manifest.reports.items():
        lines.append(f"{phase}:")
        lines += _lines(report, "  ")
    return "\n".join(lines)


def _results(manifest: Manifest) -> str:
    lines = ["validation: none" if manifest.validation is None else "validation:"]
    lines += _lines(manifest.validation, "  ") if manifest.validation else []
    for benchmark in manifest.benchmarks:
        lines += ["benchmark:", *_lines(benchmark, "  ")]
    return "\n".join(lines)


def _lines(value: object, indent: str) -> list[str]:
    """A report as indented lines: short values on one line, long lists cut with the rest counted."""
    if isinstance(value, Mapping):
        lines = []
        for key, item in value.items():
            short = _short(item)
            lines += [f"{indent}{key}: {short}"] if short is not None else [f"{indent}{key}:", *_lines(item, indent + "  ")]
        return lines
    if isinstance(value, (list, tuple)):
        lines = [f"{indent}- {_short(item) or json.dumps(item)[:160]}" for item in value[:SHOWN_ITEMS]]
        rest = len(value) - SHOWN_ITEMS
        return lines + ([f"{indent}- ... and {rest} more (--json shows all)"] if rest > 0 else [])
    return [f"{indent}{value}"]


def _short(value: object) -> str | None:
    """`value` on one line when it fits there, else None."""
    if isinstance(value, Mapping):
        text = ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
        return text if len(text) <= 100 and not any(isinstance(v, (Mapping, list)) for v in value.values()) else None
    if isinstance(value, (list, tuple)):
        text = ", ".join(map(str, value)) or "none"
        return text if len(text) <= 100 and not any(isinstance(v, (Mapping, list)) for v in value) else None
    return f"{value:.6g}" if isinstance(value, float) else str(value)
