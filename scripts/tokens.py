#!/usr/bin/env python3
"""Keep results of `halo-tvm bench -p ... -n ... --vs llama-cpp --json FILE` and write the docs' table of them.

    python scripts/tokens.py [FILE...] [--fresh]

Every FILE is added to docs/tokens.json, in place of what was there of the same model, precision, peers and depths;
`--fresh` forgets all others. Without a FILE the table is written again. It stands in docs/language_models.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from _checkout import ROOT
from _page import write_between

from halo_tvm.report import markdown
from halo_tvm.report.schema import TokensResult, from_json, to_json
from halo_tvm.report.tables import quantile, read_share

KEPT = ROOT / "docs" / "tokens.json"
PAGE = ROOT / "docs" / "language_models.md"
BEGIN, END = "<!-- tokens: written by scripts/tokens.py -->", "<!-- end of tokens -->"
HEADER = ("model", "precision", "threads", "test", "tokens/s", "of a read", "peer", "its numbers", "its tokens/s")
HEADER += ("its time / ours",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    old = [] if args.fresh or not KEPT.exists() else json.loads(KEPT.read_text())
    results = {key(data): data for data in (*old, *(json.loads(file.read_text()) for file in args.files))}
    found = [from_json(data) for data in results.values()]
    KEPT.write_text(json.dumps([to_json(result) for result in found]) + "\n")
    write_between(PAGE, BEGIN, END, table([r for r in found if isinstance(r, TokensResult)]))


def key(data: dict) -> tuple:
    """What a later result replaces an earlier one of."""
    peers = tuple((peer["engine"], peer["numbers"]) for peer in data["peers"])
    return data["model"], data["precision"], peers, tuple(test["depth"] for test in data["tests"])


def table(results: list[TokensResult]) -> str:
    """A line for each test and peer; where the peer is faster, it says so."""
    rows = []
    for result in results:
        for index, test in enumerate(result.tests):
            tokens = test.prompt + test.generated
            for peer in result.peers:
                if peer.failure is not None:
                    continue
                ratios = [theirs / ours for theirs, ours in zip(peer.seconds[index], test.seconds, strict=True)]
                low, middle, high = (quantile(ratios, at) for at in (0.25, 0.5, 0.75))
                rows.append(
                    (
                        result.model,
                        result.precision,
                        str(test.threads),
                        test.test,
                        f"{tokens / quantile(test.seconds, 0.5):.1f}",
                        f"{100 * read_share(test):.0f} %" if test.read_seconds else "-",
                        peer.engine.removesuffix(f"-{peer.numbers.lower()}"),
                        peer.numbers,
                        f"{tokens / quantile(peer.seconds[index], 0.5):.1f}",
                        f"{middle:.2f} ({low:.2f} to {high:.2f}){' **slower**' if middle < 1 else ''}",
                    )
                )
    hosts = "; ".join(dict.fromkeys(f"{r.host.cpu}, {r.host.cores} cores, {', '.join(r.host.isa)}" for r in results))
    peers = [peer for result in results for peer in result.peers if peer.failure is None]
    names = (f"{p.engine.removesuffix(f'-{p.numbers.lower()}')} {p.version}" for p in peers)
    versions = ", ".join(dict.fromkeys(names))
    busy = [r.other_cores for r in results if r.other_cores is not None]
    load = f" Other processes kept {min(busy):.1f} to {max(busy):.1f} cores busy meanwhile." if busy else ""
    return f"{markdown.table(HEADER, rows)}\n{hosts}; {versions}.{load}\n"


if __name__ == "__main__":
    main()
