"""Tables in pages of the docs, between two lines that mark their place."""

from __future__ import annotations

from pathlib import Path

from halo_tvm.errors import UsageError
from halo_tvm.report.host import describe_host


def write_between(page: Path, begin: str, end: str, table: str) -> None:
    """`table` in place of what stands between the lines `begin` and `end` of `page`; `UsageError` without them.

    A page that does not exist becomes one of the table alone.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else f"{begin}\n{end}\n"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UsageError(
            f"expected the lines {begin!r} and {end!r} once each in {page.name}, in this order: "
            "add them where the table belongs"
        )
    head, rest = text.split(begin)
    page.write_text(f"{head}{begin}\n\n{table}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def write_measured(page: Path, script: str, text: str) -> None:
    """`text`, behind a line about this host and torch, in the place that `page` has for what `script` measures."""
    host = describe_host()
    words = f"{host.cpu}; {host.cores} cores; {', '.join(host.isa)}; torch {host.packages.get('torch', '')}."
    begin = f"<!-- measured: written by scripts/{script} -->"
    write_between(page, begin, "<!-- end of measured -->", f"{words}\n\n{text}")
