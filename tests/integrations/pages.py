"""A page of docs/, executed: all its Python, in one namespace, in an empty directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"


def executed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The names that the Python of docs/`page` defines."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    text = (_DOCS / page).read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.+?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(code, page, "exec"), names)
    return names
