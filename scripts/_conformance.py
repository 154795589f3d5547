"""What the conformance scripts share: options, rows, how a case ends that raises, and what is said of all rows."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import _workers

from halo_tvm.errors import HaloError

STATUSES = ("pass", "refused", "wrong", "failed")
Row = dict[str, str]


def parser(
    doc: str, over: str, shown: str, *, limit_s: float | None = None, table: bool = True
) -> argparse.ArgumentParser:
    """The options of all: `over` what --only goes, and what --show prints.

    With `limit_s` there is --limit, and the script goes on with what --json has already; without `table` no --markdown.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", default="", help=f"regular expression over {over}")
    made.add_argument("--jobs", type=int, default=2)
    kept = "keep every result here, and take those that are there already"
    made.add_argument("--json", type=Path, help=kept if limit_s else "write every result here")
    made.add_argument("--show", action="store_true", help=f"print every {shown}")
    if limit_s:
        words = "seconds a case may take: more on a busy machine"
        made.add_argument("--limit", type=float, default=limit_s, help=words)
    if table:
        made.add_argument("--markdown", type=Path, help="write the table between its marks in this file")
    return made


def row(name: str, status: str = "pass", why: str = "", **more: str) -> Row:
    return {"name": name, **more, "status": status, "why": why}


def ended(error: Exception) -> tuple[str, str]:
    """Status and reason of a case that raised: `refused` by a sentence of ours, else `failed`."""
    if isinstance(error, HaloError):
        return "refused", str(error)
    lines = str(error).strip().splitlines() or [""]
    return "failed", f"{type(error).__name__}: {lines[-1][:300]}"


def run_all(
    names: Sequence[str], make: Callable[..., Callable[[str], Row]], *arguments: object, jobs: int, limit_s: float = 120
) -> Iterator[Row]:
    """The row of every case as it ends: `_workers.run_all`, where a process that ended has failed."""
    for name, found, reason in _workers.run_all(names, make, arguments, jobs=jobs, limit_s=limit_s):
        yield found or lost(name, reason)


def lost(name: str, reason: str, **more: str) -> Row:
    """The row of a case whose process ended."""
    return row(name, "failed", f"the process ended: {reason}", **more)


def keep(file: Path | None, results: object) -> None:
    """Write `results` as JSON, where a file is given."""
    if file:
        file.write_text(json.dumps(results, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def kept(file: Path | None) -> dict:
    """What `keep` wrote; nothing where there is no such file."""
    return json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}


def say(rows: Sequence[Row], of: str, *, show: bool = False) -> int:
    """Print how many rows ended how, and with `show` each that does not pass; the exit status of the script."""
    for r in rows if show else ():
        if r["status"] != "pass":
            print(f"{r['status']:8} {r['name']:50} {r['why'][:220]}")
    counts = Counter(r["status"] for r in rows)
    print(f"{len(rows)} {of}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    return 1 if counts["wrong"] or counts["failed"] else 0


def sentence(counts: Mapping[str, int]) -> str:
    """How many are of each status."""
    return (
        f"{counts['pass']} pass, {counts['refused']} are refused with a reason, {counts['wrong']} are wrong, "
        f"{counts['failed']} fail otherwise"
    )


def count_table(title: str, counted: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Lines of a table: how many of each name have each status."""
    lines = [f"| {title} | {' | '.join(STATUSES)} |", "|---" * (1 + len(STATUSES)) + "|"]
    return lines + [f"| {name} | {' | '.join(str(counts[s]) for s in STATUSES)} |" for name, counts in counted.items()]


def reason_table(title: str, rows: Iterable[Row]) -> list[str]:
    """Lines of a table: each row with the beginning of its reason."""
    lines = [f"| {title} | result | reason |", "|---|---|---|"]
    whys = (" ".join(r["why"].split()).replace("|", "/")[:160] for r in rows)
    return lines + [f"| {r['name']} | {r['status']} | {why} |" for r, why in zip(rows, whys)]
