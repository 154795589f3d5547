"""A report on one artifact, or on two side by side, as tables. Ratios are before / after: above 1, less is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from .profile_tables import Row, profile_tables, rows_of
from .schema import ProfileResult, ReportResult, Side
from .table import Table, number, percent, quotient

RATIO = "before / after"
_MIB = 1 << 20


def report_tables(result: ReportResult, bench: Sequence[Table], validations: Mapping[str, Table]) -> list[Table]:
    """Every section of a report but the host, in the order a reader asks; of which nothing is known, none."""
    sides = result.sides
    tables = [Table(result.title, notes=result.notes)]
    tables += [replace(table, title=f"Time: {table.title}") for table in bench]
    if sides:
        tables += _known([_memory(result)])
    tables += [replace(table, title=f"Accuracy of {label}: {table.title}") for label, table in validations.items()]
    profiled = [side for side in sides if side.profile is not None]
    if len(profiled) == 2:
        tables.append(operators_side_by_side(*(side.profile for side in profiled)))
    for side in profiled:
        tables += [
            replace(table, title=f"Kernels of {side.label}: {table.title}") for table in profile_tables(side.profile)
        ]
    if sides:
        tables += _known([_fusion(sides), _compilation(sides), _passes(sides)])
    return tables


def _known(tables: Sequence[Table]) -> list[Table]:
    """Those in which a cell behind its row's name says something."""
    return [table for table in tables if any(set(row[1:]) - {"-"} for row in table.rows)]


def operators_side_by_side(before: ProfileResult, after: ProfileResult) -> Table:
    """Time per operator before and after, the largest first."""
    first, second = ({row.name: row for row in rows_of(p, "operator")} for p in (before, after))

    def us(row: Row | None) -> float | None:
        return None if row is None else row.us

    names = sorted({**first, **second}, key=lambda name: -max(us(first.get(name)) or 0, us(second.get(name)) or 0))
    rows = []
    for name in names:
        old, new = first.get(name), second.get(name)
        rows.append(
            (
                name,
                number(old and old.calls, "d"),
                number(new and new.calls, "d"),
                number(us(old), ".1f"),
                number(us(new), ".1f"),
                _ratio(us(old), us(new)),
                _roof(old),
                _roof(new),
            )
        )
    rows.append(
        (
            "all kernels",
            str(len(before.calls)),
            str(len(after.calls)),
            f"{before.total_us:.1f}",
            f"{after.total_us:.1f}",
            _ratio(before.total_us, after.total_us),
            "",
            "",
        )
    )
    header = ("operator", "calls before", "after", "us before", "after", RATIO, "of the roof before", "after")
    note = "the profiles were taken one after the other, not in turns: a small difference may be the machine's"
    return Table("Operators, before and after", header, tuple(rows), (note,))


def _memory(result: ReportResult) -> Table:
    """Peak memory of a run, plan and files."""
    sides = result.sides
    rows = [
        _line("peak RSS of a run, MiB", [_peak(result, side) for side in sides]),
        _line("activations planned, MiB", [_of_manifest_or_profile(side, "planned_mib") for side in sides]),
        _line("activations unshared, MiB", [side.unplanned_mib for side in sides]),
        _line("params, MiB", [_of_manifest_or_profile(side, "params_mib") for side in sides]),
        _line("library, MiB", [side.library_mib for side in sides], ".3f"),
    ]
    return Table("Memory", _header("", sides), tuple(rows), ("planned at the largest declared sizes",))


def _fusion(sides: Sequence[Side]) -> Table:
    """What element-wise fusion saves."""
    rows = [
        _line("groups fused", [side.fused for side in sides], "d"),
        _line("candidates", [side.fusion_candidates for side in sides], "d"),
        _line(
            "memory traffic saved per run, MiB",
            [None if side.saved_bytes is None else side.saved_bytes / _MIB for side in sides],
        ),
    ]
    return Table("Fusion", _header("", sides), tuple(rows))


def _compilation(sides: Sequence[Side]) -> Table:
    """Operators found, functions and the rules that scheduled them."""
    rows = [
        ("target", *(side.target or "-" for side in sides)),
        ("precision", *(side.precision or "-" for side in sides)),
        _line("functions", [side.functions for side in sides], "d", ratio=False),
        _line("from tuning records", [side.tuned for side in sides], "d", ratio=False),
    ]
    rows += _counted("operator ", sides, lambda side: side.operators)
    rows += _counted("rule ", sides, lambda side: side.rules)
    rows += _counted("version of ", sides, lambda side: side.versions)
    return Table("Operators and schedules", _header("", sides, ratio=False), tuple(rows))


def _passes(sides: Sequence[Side]) -> Table:
    """What each pass did."""
    return Table("Passes", _header("pass", sides, ratio=False), tuple(_counted("", sides, lambda side: side.passes)))


def _counted(prefix: str, sides: Sequence[Side], of: Callable[[Side], Mapping[str, object]]) -> list[tuple[str, ...]]:
    """One row per key that any side has."""
    keys = dict.fromkeys(key for side in sides for key in of(side))
    return [(prefix + key, *(str(of(side).get(key, "-")) for side in sides)) for key in keys]


def _header(first: str, sides: Sequence[Side], ratio: bool = True) -> tuple[str, ...]:
    names = [side.label for side in sides]
    if len(sides) == 2:
        names = [f"before: {names[0]}", f"after: {names[1]}"]
    return (first, *names, *((RATIO,) if ratio and len(sides) == 2 else ()))


def _line(name: str, values: Sequence[float | None], form: str = ".1f", ratio: bool = True) -> tuple[str, ...]:
    quotients = (_ratio(*values),) if ratio and len(values) == 2 else ()  # type: ignore[call-arg]
    return (name, *(number(value, form) for value in values), *quotients)


def _ratio(before: float | None, after: float | None) -> str:
    return number(quotient(before or None, after))


def _roof(row: Row | None) -> str:
    return percent(row and row.work.limit_us, row and row.us, ".0f")


def _of_manifest_or_profile(side: Side, field: Literal["planned_mib", "params_mib"]) -> float | None:
    """A side that is a profile from a file has no manifest, but the profile's own numbers of it."""
    said: float | None = getattr(side, field)
    memory = side.profile.memory if side.profile else None
    return getattr(memory, field) if said is None and memory is not None else said


def _peak(result: ReportResult, side: Side) -> float | None:
    """Of the benchmark's process of that name, which ran nothing else; else of the profile's."""
    engines = result.bench.engines if result.bench else ()
    timed = next((e.peak_rss_mib for e in engines if e.engine == side.label), None)
    memory = side.profile.memory if side.profile else None
    return timed if timed is not None or memory is None else memory.peak_rss_mib
