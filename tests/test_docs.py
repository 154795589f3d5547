"""The pages of docs/: their commands parse, their links and the files that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_readme import ROOT
from test_readme import test_commands_are_real as check_command

PAGES = sorted((ROOT / "docs").rglob("*.md"))
COMMAND = re.compile(r"^(?: {4}|)(?:\$ )?((?:halo-tvm|python -m halo_tvm[.\w]*) [^\n|]*)$", re.MULTILINE)
COMMANDS = sorted(
    {
        (page.name, command.split(" #")[0].strip())
        for page in PAGES
        for command in COMMAND.findall(page.read_text(encoding="utf-8"))
    }
)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_are_real(page: str, command: str) -> None:
    check_command(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    named = re.findall(r"\b((?:scripts|tests|notebooks|halo_tvm)/[\w/]+\.(?:py|sh|ipynb))", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing + [name for name in named if not (ROOT / name).exists()]
