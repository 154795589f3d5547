"""Results as one HTML file that needs nothing else: style and drawings inside, no script, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..text import one_line
from .profile_tables import rows_of
from .schema import BenchResult, ProfileResult, ReportResult, Result
from .tables import Table, tables_of

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #1b1f24; background: #fff; margin: 2rem auto; max-width: 76rem;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #d0d7de; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eaeef2; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
th { background: #f6f8fa; } ul { color: #57606a; padding-left: 1.2rem; }
nav a { margin-right: 1rem; } svg text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
"""
# Told apart also without colour vision; the last one is the rest.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c959f")
_WIDTH, _LABEL, _BAR, _GAP = 720, 190, 22, 10
_VALUE = 110  # room for a number at the right
_HEAD = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
)


def render(result: Result) -> str:
    """The result as a page: drawings first, then every table of the other views."""
    tables = tables_of(result)
    title = tables[0].title
    drawings = "\n".join(_drawings(result))
    links = " ".join(f'<a href="#s{i}">{escape(_short(t.title))}</a>' for i, t in enumerate(tables) if i)
    sections = "\n".join(_section(table, index) for index, table in enumerate(tables))
    return (
        f"{_HEAD}<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"<nav>{links}</nav>\n{drawings}\n{sections}\n</body></html>\n"
    )


def _short(title: str) -> str:
    return title.split(":")[0].split(",")[0]


def _section(table: Table, index: int) -> str:
    parts = [f'<section id="s{index}">']
    parts += [f"<h2>{escape(table.title)}</h2>"] if index else []
    if table.rows:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
        rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>")
    if table.notes:
        parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in table.notes) + "</ul>")
    return "\n".join([*parts, "</section>"])


def _drawings(result: Result) -> list[str]:
    """Bars of what was timed, where something was."""
    found = []
    bench = result if isinstance(result, BenchResult) else result.bench if isinstance(result, ReportResult) else None
    if bench is not None:
        found.append(_times(bench))
    profiles: list[tuple[str, ProfileResult]] = []
    if isinstance(result, ProfileResult):
        profiles = [(result.model, result)]
    elif isinstance(result, ReportResult):
        profiles = [(side.label, side.profile) for side in result.sides if side.profile is not None]
    if any(profile.calls for _, profile in profiles):
        found.append(_shares(profiles))
    return found


def _times(bench: BenchResult) -> str:
    """One bar per engine, to its median, with a line from the 10th to the 90th percentile."""
    engines = [e for e in bench.engines if e.median_ms is not None]
    longest = max((e.p90_ms or e.median_ms or 0.0 for e in engines), default=0.0) or 1.0
    room, parts = _WIDTH - _LABEL - _VALUE, []
    for index, engine in enumerate(engines):
        top, scale = index * (_BAR + _GAP), room / longest
        median, low, high = engine.median_ms, engine.p10_ms or engine.median_ms, engine.p90_ms or engine.median_ms
        middle = top + _BAR / 2
        parts += [
            _text(0, middle + 4, engine.engine),
            _rect(_LABEL, top, median * scale, _COLOURS[index % len(_COLOURS)], f"{engine.engine}: {median:.3f} ms"),
            f'<line x1="{_LABEL + low * scale:.1f}" x2="{_LABEL + high * scale:.1f}" y1="{middle:.1f}" '
            f'y2="{middle:.1f}" stroke="#1b1f24"/>',
            _text(_LABEL + high * scale + 6, middle + 4, f"{median:.2f} ms"),
        ]
    return _figure("Median time of a run, with the 10th to the 90th percentile", parts, len(engines))


def _shares(profiles: Sequence[tuple[str, ProfileResult]]) -> str:
    """One bar per artifact: its kernels' time, by operator."""
    longest = max(profile.total_us for _, profile in profiles) or 1.0
    total: dict[str, float] = {}
    for _, profile in profiles:
        for row in rows_of(profile, "operator"):
            total[row.name] = total.get(row.name, 0.0) + row.us
    names = sorted(total, key=lambda name: -total[name])
    colour = {name: _COLOURS[min(index, len(_COLOURS) - 1)] for index, name in enumerate(names)}
    room, parts = _WIDTH - _LABEL - _VALUE, []
    for index, (label, profile) in enumerate(profiles):
        top, left = index * (_BAR + _GAP), float(_LABEL)
        parts.append(_text(0, top + _BAR / 2 + 4, label))
        for row in rows_of(profile, "operator"):
            width = row.us / longest * room
            parts.append(_rect(left, top, width, colour[row.name], f"{row.name}: {row.us / 1e3:.3f} ms"))
            left += width
        parts.append(_text(left + 6, top + _BAR / 2 + 4, f"{profile.total_us / 1e3:.2f} ms"))
    legend = "".join(
        f'<span style="margin-right:1rem"><span style="color:{colour[name]}">&#9632;</span> '
        f"{escape(one_line(name))}</span>"
        for name in names[: len(_COLOURS)]
    )
    return _figure("Time in kernels, by operator", parts, len(profiles)) + f"<p>{legend}</p>"


def _figure(caption: str, parts: Sequence[str], bars: int) -> str:
    height = max(1, bars) * (_BAR + _GAP)
    return (
        f'<h2>{escape(caption)}</h2>\n<svg role="img" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}"><title>{escape(caption)}</title>\n' + "\n".join(parts) + "\n</svg>"
    )


def _rect(x: float, y: float, width: float, colour: str, hint: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{_BAR}" fill="{colour}">'
        f"<title>{escape(one_line(hint))}</title></rect>"
    )


def _text(x: float, y: float, text: str) -> str:
    text = one_line(text)
    shown = text if len(text) <= 28 else text[:27] + "…"
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(shown)}</text>'
