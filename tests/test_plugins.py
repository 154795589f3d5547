"""Plug-ins: a distribution's entry points register operators, passes, schedules and targets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from halo_tvm.errors import EnvironmentProblem
from halo_tvm.plugins import GROUPS, load_plugins

ROOT = Path(__file__).parents[1]
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert '"target": "tiny"' in done.stdout


USED = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np, tvm
from tvm import relax
from halo_tvm.plugins import load_plugins
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.passes.schedule import scheduled_by
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES

assert load_plugins() == ("schedules:rows", "operators:shrink")
operator, rule, target = OPERATORS["soft_shrink"], RULES["shrink_rows"], resolve("cpu")
(case,) = operator.cases()
(shape,) = case["args"]
bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
with bb.function("main", [x]):
    bb.emit_func_output(bb.emit(operator.call(x, **case["attrs"])))
func = relax.transform.LegalizeOps()(bb.get())["soft_shrink"].with_attr("global_symbol", "main")
given = np.linspace(-2, 2, num=111, dtype="float32").reshape(shape)
for decision in rule.space(func, target):
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    tvm.compile(scheduled_by(rule, func, target, decision), target=target.tvm)["main"](tvm.runtime.tensor(given), out)
    np.testing.assert_allclose(out.numpy(), operator.reference(given, **case["attrs"]), atol=1e-6)
"""


@pytest.mark.slow
def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    """Operator and rule as docs/plugins.md has them, each in a distribution of its own."""
    shrink, rows = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plugins.md").read_text(), re.DOTALL)
    distribution(tmp_path, "shrink", shrink, "halo_tvm.operators")
    distribution(tmp_path, "rows", rows, "halo_tvm.schedules")
    script = USED.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr


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
