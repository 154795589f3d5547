"""The README and its next pages: commands parse, tables name what the registries hold, variables and folders exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from halo_tvm import config
from halo_tvm.cli._flags import given_options, parser_of
from halo_tvm.cli._main import _load, verbs
from halo_tvm.models import PRESETS
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import TARGETS

ROOT = Path(__file__).parents[1]
README, OPTIONS, ARCHITECTURE = (
    (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/options.md", "docs/architecture.md")
)
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line.split(" #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_real(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "bash":
        assert (ROOT / words[1]).is_file()
        return
    if words[:2] == ["python", "-m"]:
        package, _, verb = words[2].partition(".")
        words = [package, verb, *words[3:]]
    assert words[0] in ("halo_tvm", "halo-tvm") and words[1] in verbs()
    kind = _load(words[1]).CONFIG
    config.resolve(
        kind, given_options(parser_of(kind, words[1], ""), kind, words[2:]), environ=config.Environment(None, "warning")
    )


def test_tables_name_the_registries() -> None:
    for spec in TARGETS.values():
        assert f"| `{spec.name}`" in README
        assert len(spec.isas) == 1 or all(f"`{isa.name}`" in README for isa in spec.isas)
    assert {name for name in OPERATORS if f"`halo.{name}`" not in README} == set()
    # A model in parts is listed once, with the endings of its parts.
    whole = {
        re.sub("-(cross|decoder)$", lambda part: part[0] if f"`{part[0]}`" not in README else "", name)
        for name in PRESETS
    }
    assert {name for name in whole if f"`{name}`" not in README} == set()


def test_variables_are_listed() -> None:
    source = "".join(path.read_text() for path in (ROOT / "halo_tvm").rglob("*.py"))
    for name in set(re.findall(r"HALO_TVM_[A-Z_]+", source)):
        assert f"`{name}`" in OPTIONS, name


def test_folders_are_listed() -> None:
    folders = {p.name for p in (ROOT / "halo_tvm").iterdir() if (p / "__init__.py").is_file()} - {"integrations"}
    assert {folder for folder in folders if f"  {folder}/" not in ARCHITECTURE} == set()
