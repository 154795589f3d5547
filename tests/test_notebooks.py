"""The notebooks are kept without outputs, name what there is, and run from top to bottom."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

from halo_tvm import explore

nbformat = pytest.importorskip("nbformat")
ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = {"01-a-schedule-step-by-step": 2, "02-search-landscape": 3, "03-roofline-and-fusion": 3}
CELL_S, ALL_S = 300, 600  # a loaded machine; alone each takes well under two minutes


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_not_kept(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert not cell.outputs and cell.execution_count is None, "clear the outputs before committing"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_names_exist(path: Path) -> None:
    """Quick: what a notebook takes from `explore` is there."""
    for cell in code_cells(read(path)):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "explore":
                assert node.attr in explore.__all__
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "explore.plots":
                assert callable(getattr(pytest.importorskip("halo_tvm.explore.plots"), node.attr))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs, the assertions in the cells hold, and the pictures come out."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("matplotlib")
    pytest.importorskip("ipykernel")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_S, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    )
    asyncio.run(asyncio.wait_for(client.async_execute(), ALL_S))
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == PICTURES[path.stem]
    assert all(len(picture) > 5000 for picture in pictures), "an empty picture"
