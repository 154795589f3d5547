"""The page docs/jax.md, executed: a function becomes an artifact, and the artifact a function inside jit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

from halo_tvm.errors import InputError, UsageError

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.+?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["best"].shape == (2,)
    fast, ids = names["fast"], names["ids"]
    with pytest.raises((InputError, UsageError), match="expected values .*, found"):
        fast(ids - 5)
