"""Reports as HTML and Markdown: every section, one side or two, results from files, and names that mean harm."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from halo_tvm.report import html, markdown, schema, terminal
from halo_tvm.report.profile_tables import profile_tables
from halo_tvm.report.schema import (
    Accuracy,
    BenchResult,
    CallTime,
    Comparison,
    EngineResult,
    Host,
    Interval,
    KernelTime,
    Memory,
    OutputError,
    Peaks,
    ProfileResult,
    ReportResult,
    Side,
    ValidateResult,
    Work,
)

HOST = Host("x86_64 Vendor family 1 model 2", ("avx2",), 2, 23.5, "3.11.7", {"numpy": "2.0"})
HOSTILE = (
    '<script>alert(1)</script><img src=x onerror="y">\'&|\n![x](javascript:z)\\[y](z)\x1b[2J\u202e\ud800'
    " https://x.example www.x.example"
)
WORK = Work(2_000_000, 0, 1_000_000, 600_000, 25.0, "memory")


def profile(name: str, scale: float = 1.0) -> ProfileResult:
    calls = (
        CallTime("k1", "linear", "h.0", 60.0 * scale, WORK),
        CallTime("k2", "attention", "h.0", 30.0 * scale),
        CallTime("k1", "linear", "h.1", 10.0 * scale, WORK),
    )
    kernels = (
        KernelTime("k1", "gemm", 2, 70.0 * scale, "linear", dataclasses.replace(WORK, limit_us=50.0)),
        KernelTime("k2", "flash_attention", 1, 30.0 * scale, "attention"),
    )
    peaks = Peaks(2, 100.0, 80.0, 40.0, 20.0, 400.0, 1 << 20, 1 << 25, "2026-01-01T00:00:00Z")
    return ProfileResult(
        name,
        {"x": (1, 8)},
        2,
        5,
        100.0 * scale,
        HOST,
        kernels,
        ("peaks said",),
        130.0 * scale,
        5.0,
        0.3,
        Memory(50.0, 10.0, 20.0),
        peaks,
        calls,
    )


def side(label: str, scale: float = 1.0) -> Side:
    outputs = (OutputError("case0", "y", 1e-6, 1e-7, 1e-3, True),)
    return Side(
        label,
        "model",
        "llvm-x86_64-avx2",
        "fp32",
        {"halo_tvm": "0.1"},
        10.0,
        0.5,
        4.0 * scale,
        8.0 * scale,
        {"linear": 4},
        {"gemm": 3},
        5,
        1,
        2,
        3,
        3 << 20,
        {"simplify": "nothing to do"},
        profile("model", scale),
        ValidateResult("model", "NumPy (float64)", HOST, outputs, True),
    )


def bench(after: str, before: str) -> BenchResult:
    def engine(name: str, median: float) -> EngineResult:
        return EngineResult(
            name, "1", (median,), median, median - 0.1, median + 0.2, 0.1, 100.0 * median, Accuracy(1, 0.0, 0.0)
        )

    interval = Interval(2.0, 1.9, 2.1, 0.9)
    return BenchResult(
        "model",
        {"x": (1, 8)},
        2,
        5,
        3,
        50.0,
        HOST,
        (engine(after, 1.0), engine(before, 2.0)),
        (Comparison(before, 2.0, interval, interval, "faster"),),
    )


BOTH = ReportResult("a before, b after", HOST, (side("a", 2.0), side("b")), bench("b", "a"), notes=("a note",))
ONE = ReportResult("a", HOST, (side("a"),))


class Page(HTMLParser):
    """Tags with their attributes, and whether every one that is opened is closed."""

    VOID = {"meta", "line"}

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"{tag} closes nothing"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("result", [BOTH, ONE])
def test_round_trip_through_json(result: ReportResult) -> None:
    assert schema.from_json(json.loads(json.dumps(schema.to_json(result), allow_nan=False))) == result


@pytest.mark.parametrize("result", [BOTH, ONE])
def test_html_is_whole_and_needs_nothing_else(result: ReportResult) -> None:
    text = html.render(result)
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert tags <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "nav",
        "a",
        "section",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
        "svg",
        "rect",
        "text",
        "line",
        "p",
        "span",
    }
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert (attributes.get("href") or "#").startswith("#"), "links stay within the page"
    assert "default-src 'none'" in text and "http" not in text.replace("http-equiv", "")
    targets = {a["id"] for tag, a in page.tags if tag == "section"}
    assert {a["href"][1:] for tag, a in page.tags if tag == "a"} <= targets


@pytest.mark.parametrize("view", [html, markdown, terminal])
def test_both_sides_stand_beside_each_other(view: object) -> None:
    text = view.render(BOTH)
    sections = ("Operators, before and after", "Fusion", "Passes", "Accuracy of a", "Kernels of b")
    cells = ("before: a", "after: b", "before / after", "llvm-x86_64-avx2", "memory traffic saved per run", "simplify")
    assert [words for words in (*sections, *cells, "a note") if words not in text] == []
    rows = {line.split("|")[1].strip(): line for line in markdown.render(BOTH).splitlines() if line.startswith("| ")}
    assert "| 200.0 | 100.0 | 2.00 |" in rows["peak RSS of a run, MiB"], "each process's own memory, before first"
    assert "| 8.0 | 4.0 | 2.00 |" in rows["activations planned, MiB"]
    assert "| 2 | 2 | 140.0 | 70.0 | 2.00 | 36 % | 71 % |" in rows["linear"]


def test_memory_is_that_of_the_engine_with_the_side_s_name() -> None:
    """A benchmark from a file knows other engines: their memory is no artifact's."""
    sides = tuple(
        Side(label, "model", profile=dataclasses.replace(profile("model"), memory=Memory(rss, None, None)))
        for label, rss in (("model", 50.0), ("model (2)", 60.0))
    )
    text = markdown.render(ReportResult("both", HOST, sides, bench("halo_tvm", "onnxruntime")))
    assert "| peak RSS of a run, MiB | 50.0 | 60.0 | 0.83 |" in text
    without = tuple(dataclasses.replace(s, profile=None, params_mib=1.0) for s in sides)
    assert "| peak RSS of a run, MiB | - | - | - |" in markdown.render(
        ReportResult("both", HOST, without, bench("halo_tvm", "onnxruntime"))
    )


def test_a_profile_from_a_file_says_what_it_knows_and_nothing_else() -> None:
    text = markdown.render(ReportResult("model", HOST, (Side("model", "model", profile=profile("model")),)))
    assert "| activations planned, MiB | 10.0 |" in text and "| params, MiB | 20.0 |" in text
    assert "| library, MiB | - |" in text
    assert [title for title in ("Fusion", "Operators and schedules", "Passes") if title in text] == []
    both = markdown.render(ReportResult("m", HOST, (Side("model", "model", profile=profile("model")), side("b"))))
    assert "| groups fused | - | 2 | - |" in both and "| functions | - | 5 |" in both


def test_one_side_has_no_ratios() -> None:
    text = markdown.render(ONE)
    assert "before" not in text.replace("a before", "") and "| 50.0 |" in text, "its own process's memory"


def test_a_bar_is_as_long_as_its_time() -> None:
    page = Page(html.render(BOTH))
    widths = [float(a["width"]) for tag, a in page.tags if tag == "rect"]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01), "before took twice as long"
    before, after = sum(widths[2:4]), sum(widths[4:6])
    assert before == pytest.approx(2 * after, rel=0.01) and len(widths) == 6


@pytest.mark.parametrize("view", [html, markdown, terminal])
def test_hostile_names_stay_text(view: object) -> None:
    evil = dataclasses.replace(
        side("\x1b" + HOSTILE),
        model=HOSTILE,
        target=HOSTILE,
        versions={HOSTILE: HOSTILE},
        operators={HOSTILE: 1},
        rules={HOSTILE: 1},
        passes={HOSTILE: HOSTILE},
        profile=dataclasses.replace(
            profile(HOSTILE),
            calls=(CallTime(HOSTILE, HOSTILE, HOSTILE, 1.0),),
            inputs={HOSTILE: (1,)},
            kernels=(KernelTime(HOSTILE, HOSTILE, 1, 1.0, HOSTILE),),
            notes=(HOSTILE,),
        ),
        validation=ValidateResult(
            HOSTILE, HOSTILE, HOST, (OutputError(HOSTILE, HOSTILE, 1.0, 1.0, 1.0, False),), False
        ),
    )
    failed = dataclasses.replace(bench(HOSTILE, "x"), engines=(EngineResult(HOSTILE, failure=HOSTILE),), comparisons=())
    result = ReportResult(HOSTILE, HOST, (evil, side("b")), failed, notes=(HOSTILE,))
    text = view.render(result)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", text), "nothing a terminal would obey"
    assert "\n![x]" not in text and "\n\\[x]" not in text, "a name is one line"
    if view is html:
        page = Page(text)
        assert not any(tag in ("script", "img") for tag, _ in page.tags)
        assert "<script" not in text and 'onerror="' not in text
        assert any("<script>alert(1)</script>" in words for words in page.text), "shown as text"
    if view is markdown:
        assert "<" not in text, "no HTML"
        live = re.sub(r"\\\\", "", text)
        assert not re.search(r"(?<!\\)\[|://|www\.", live), "no link, no image"
        for line in text.splitlines():
            if line.startswith("|"):
                cells = len(re.findall(r"(?<!\\)\|", line)) - 1
                assert cells in range(2, 14) and line.endswith("|"), "a pipe in a name makes no cell"


def test_results_from_files_become_sections() -> None:
    validate = schema.to_json(ValidateResult("m", "r", HOST, (OutputError("c", "y", 1.0, 1.0, 2.0, True),), True))
    result = ReportResult("m", HOST, (), None, (validate,))
    assert "m against r: passed" in markdown.render(result)
    assert schema.from_json(json.loads(json.dumps(schema.to_json(result)))) == result


def test_a_long_name_is_shown_by_its_ends() -> None:
    name = "fused_linear" + "_multiply" * 40 + "_cast7"
    found = profile("model")
    tables = profile_tables(dataclasses.replace(found, kernels=(dataclasses.replace(found.kernels[0], kernel=name),)))
    shown = tables[0].rows[0][0]
    assert len(shown) == 64 and shown.startswith("fused_linear") and "…" in shown and shown.endswith("_cast7")
