"""What no tool says about the shape of the house; ruff, mypy and import-linter (`scripts/lint.sh`) say the rest."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import halo_tvm
from halo_tvm import _compat
from halo_tvm.cli._main import verbs

PACKAGE = Path(halo_tvm.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(PACKAGE.rglob("*.py"))
DOORS = {"__main__", "tune", "compile", "run", "bench", "validate"}
LONG = 400  # lines of the longest module
CATCH_ALL = {"utils", "util", "common", "core", "helpers", "misc"}


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def found(look: Callable[[ast.AST], Iterator[tuple[int, str]]], *allowed: str) -> list[str]:
    """'file:line: what' for what `look` finds at a node, in every module but those below the places `allowed`."""
    return [
        f"halo_tvm/{where(path)}:{line}: {what}"
        for path in MODULES
        if not where(path).startswith(allowed)
        for node in ast.walk(tree_of(path))
        for line, what in look(node)
    ]


def tvm_private(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from ((node.lineno, a.name) for a in node.names if re.match(r"tvm(_ffi)?\b.*\._", a.name))
    elif isinstance(node, ast.ImportFrom) and not node.level and re.match(r"tvm(_ffi)?\b", node.module or ""):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from ((node.lineno, name) for name in names if "._" in name)
    elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
        owner = ast.unparse(node.value)
        if re.match(r"(tvm|relax|tirx|s_tir|te|ir)\b", owner):
            yield node.lineno, f"{owner}.{node.attr}"


def target_by_name(node: ast.AST) -> Iterator[tuple[int, str]]:
    text = ast.unparse(node) if isinstance(node, ast.Compare) else ""
    if re.search(r"target\.(kind|spec\.(kind|name)|tvm\.kind)\b", text):
        yield node.lineno, text


def test_tvm_private_names_stay_in_compat() -> None:
    wrong = found(tvm_private, "_compat.py")
    assert not wrong, "TVM's private names are met in _compat.py only:\n" + "\n".join(wrong)


def test_targets_are_told_apart_by_their_manifests() -> None:
    wrong = found(target_by_name, "targets/", "records/")  # a record's fingerprint has fields of these names
    assert not wrong, "what differs between targets is a field of their manifests:\n" + "\n".join(wrong)


def test_the_rules_find_what_they_forbid() -> None:
    bad = "from tvm.relax import _x\nimport tvm.ir._ops\ny = relax._z\nif target.kind == 'cuda': pass\ntvm.relax.good"
    seen = [
        what for node in ast.walk(ast.parse(bad)) for look in (tvm_private, target_by_name) for _, what in look(node)
    ]
    assert sorted(seen) == ["relax._z", "target.kind == 'cuda'", "tvm.ir._ops", "tvm.relax._x"]


def test_modules_say_what_they_are_are_short_and_have_a_topic() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert not text.strip() or ast.get_docstring(tree_of(path)), f"{where(path)}: say in a line what the module is"
        assert len(text.splitlines()) <= LONG, f"{where(path)} has more than {LONG} lines: it is no longer one idea"
        assert not CATCH_ALL & set(path.relative_to(PACKAGE).with_suffix("").parts), f"{where(path)}: name its topic"


def test_doors_and_functions_do_not_collide() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()
    }
    functions = set(halo_tvm.__all__)
    assert not functions & modules, f"importing the module would replace the function: {functions & modules}"
    defined = {
        n.name
        for n in tree_of(PACKAGE / "__init__.py").body
        if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")
    }
    assert defined <= functions
    assert all(hasattr(halo_tvm, name) for name in functions)


def test_doors_are_three_lines_and_verbs() -> None:
    for door in DOORS:
        statements = [n for n in tree_of(PACKAGE / f"{door}.py").body if not isinstance(n, ast.Expr)]
        assert len(statements) <= 3, f"{door}.py: two imports and the call"
    assert DOORS - {"__main__"} <= set(verbs())


def test_files_of_tests_have_names_of_their_own() -> None:
    """The folders of tests are no packages: two files of one name are one module, and pytest refuses the second."""
    files: dict[str, list[str]] = {}
    for path in sorted(set((ROOT / "tests").rglob("*.py")) - set((ROOT / "tests").rglob("conftest.py"))):
        files.setdefault(path.name, []).append(path.relative_to(ROOT).as_posix())
    twice = [" and ".join(paths) for paths in files.values() if len(paths) > 1]
    assert not twice, f"files of one name, rename one of each: {'; '.join(twice)}"


def test_pins_agree() -> None:
    setup = (ROOT / "setup.py").read_text()
    assert f'"apache-tvm=={_compat.PINNED_TVM}"' in setup
    assert f'"apache-tvm-ffi=={_compat.PINNED_TVM_FFI}"' in setup
    torch = re.search(r'^TORCH = "(.+)"$', setup, re.MULTILINE)[1]
    assert f'install "{torch}"' in (ROOT / "scripts" / "test.sh").read_text()


def test_every_fault_of_the_mutation_check_has_a_place() -> None:
    """A fault in a line that has changed would be no fault, and is said before the tests of the others take an hour."""
    mutants = runpy.run_path(str(ROOT / "scripts" / "_mutants.py"))["MUTANTS"]
    lost = [f"{m.file}: {m.before}" for m in mutants if (PACKAGE / m.file).read_text().count(m.before) != 1]
    lost += [t for m in mutants for t in m.tests.split() if t.startswith("tests") and not (ROOT / t).exists()]
    assert not lost, f"correct scripts/_mutants.py: {lost}"
