"""Result files may hold anything: they are refused with a sentence, or every view renders them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hostile_places import changed, places
from test_report import RESULTS
from test_report_views import BOTH, HOST, profile

from halo_tvm.cli import main
from halo_tvm.errors import UsageError
from halo_tvm.report import html, markdown, schema, terminal
from halo_tvm.report.schema import ReportResult


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 1


HOSTILE = (0, -1, 0.0, 1e308, 10**400, "nan", "x", "", True, None, {}, [], {"x": {}}, nested(100))


@pytest.mark.parametrize("result", [*RESULTS, BOTH], ids=lambda r: r.kind)
def test_any_value_anywhere_is_refused_or_rendered(result: schema.Result) -> None:
    data = json.loads(json.dumps(schema.to_json(result)))
    rendered = 0
    for path in places(data, of_lists=1):
        for value in HOSTILE:
            try:
                found = schema.from_json(changed(data, path, value))
            except UsageError:
                continue
            rendered += 1
            for view in (html, markdown, terminal):
                assert view.render(found)
            json.dumps(schema.to_json(found))
    assert rendered > 50, "most values of the right type are rendered"


def test_what_is_in_a_place_of_the_wrong_form_is_refused() -> None:
    data = schema.to_json(profile("m"))
    for change, words in (
        ({"by": "x"}, r"expected .*'layer'.* at profile.by, found 'x'"),
        ({"calls": {}}, "at profile.calls, found an object"),
        ({"total_us": 10**400}, "expected a number at profile.total_us, found an integer of more than 64 bits"),
        ({"kind": []}, "expected a result of kind"),
    ):
        with pytest.raises(UsageError, match=words):
            schema.from_json(data | change)


def test_a_report_holds_no_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = schema.to_json(ReportResult("m", HOST, ()))
    for _ in range(350):
        inner = {**schema.to_json(ReportResult("m", HOST, ())), "others": [inner]}
    (tmp_path / "deep.json").write_text(json.dumps(inner))
    assert main(["report", str(tmp_path / "deep.json"), "-o", str(tmp_path / "r.md")]) == 1
    assert "expected at most 16 levels at report.others[0]" in capsys.readouterr().err
    one = dataclasses.replace(BOTH, others=(schema.to_json(ReportResult("m", HOST, ())),))
    with pytest.raises(UsageError, match="a report within a report"):
        schema.from_json(schema.to_json(one))


def test_shares_of_nothing_are_dashes() -> None:
    kernels = tuple(dataclasses.replace(k, calls=0) for k in profile("m").kernels)
    empty = dataclasses.replace(profile("m"), total_us=0.0, run_us=0.0, kernels=kernels)
    text = markdown.render(empty)
    assert "| k1 | gemm | 0 | - | 70.0 | - |" in text
