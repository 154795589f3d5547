"""Plug-ins: a distribution's entry points register operators, passes, schedules and targets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halo_tvm.errors import EnvironmentProblem
from halo_tvm.plugins import GROUPS, load_plugins

TARGET = '''"""A target of another distribution."""

from halo_tvm.targets import Isa, TargetSpec

TINY = TargetSpec(
    name="tiny", description="a small CPU", kind="c", machine="tiny", isas=(Isa("one", "", (), frozenset(), 128, 16),),
    rules=("fallback",), runs_on=frozenset({"tiny64"}),
)
'''


def distribution(folder: Path, module: str, source: str, group: str) -> None:
    """A distribution as an installer leaves it: a module, and metadata with one entry point."""
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}\n")


def test_a_plugin_target_is_known_to_the_command_line(tmp_path: Path) -> None:
    distribution(tmp_path, "halo_tiny", TARGET, "halo_tvm.targets")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from halo_tvm.cli._main import main; sys.exit(main(['targets', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr
    assert '"target": "tiny"' in done.stdout


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def", "SyntaxError"),
        ("raise ValueError('twice')", "ValueError: twice"),
    ],
)
def test_a_broken_plugin_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, source: str, message: str
) -> None:
    module = f"halo_broken_{abs(hash((group, source)))}"
    distribution(tmp_path, module, source, group)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        EnvironmentProblem, match=f"the plug-in '{module}' .*of {module}.*must import cleanly, but {message}"
    ):
        load_plugins()


def test_none_installed() -> None:
    assert load_plugins() == ()
