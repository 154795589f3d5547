"""The shape of the house: who may import whom, what is banned where, doors and functions, docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import halo_tvm
from halo_tvm import _compat
from halo_tvm.cli._main import verbs

PACKAGE = Path(halo_tvm.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(PACKAGE.rglob("*.py"))
DOORS = {"__main__", "tune", "compile", "run", "bench", "validate"}
LINE = 120  # columns of a line
LONG = 400  # lines beyond which someone should look

# Part of the package -> the parts it may import. Parts below a part are reachable through it. A module of a part that
# has more arrows than the rest of it is a part of its own, with a dot.
ANYONE = {"errors", "_compat", "text", "whole_file"}
TREE: dict[str, set[str]] = {
    "errors": set(),
    "_compat": set(),
    "text": set(),
    "whole_file": set(),
    "params": set(),
    "dimensions": set(),
    "plain": set(),
    "config": set(),
    "confinement": set(),
    "peak_memory": set(),
    "plugins": set(),
    "records": {"plain", "confinement"},
    "cuda": {"dimensions"},
    "targets": {"cuda"},
    "ceilings": {"targets"},
    "ceilings.kernels": {"targets", "tir_schedules"},
    "ceilings.measure": {"ceilings", "ceilings.kernels", "runtime"},
    "report": {"ceilings"},
    "relay_ops": {"params", "plain", "dimensions"},
    "tir_schedules": {"targets", "dimensions"},
    "artifact": set(),
    "imported": {"params"},
    "models": {"relay_ops", "params", "imported"},
    "importers": {"confinement", "models", "imported", "in_process"},
    "passes": {"relay_ops", "tir_schedules", "targets", "params", "dimensions"},
    # What the phases call, each a file of its own.
    "memory_plan": {"dimensions"},
    "workspaces": set(),
    "build": {"cuda", "targets", "dimensions", "imported", "memory_plan", "workspaces"},
    "emulation": {"build"},
    "lookup": {"passes", "records", "targets"},
    "describe": {"artifact", "imported", "passes", "targets"},
    "compilation": {"config", "passes", "plugins", "records", "targets"},
    "phases": {"build", "compilation", "dimensions", "imported", "lookup", "passes", "records", "workspaces"},
    "in_process": {"artifact", "describe", "phases", "runtime"},
    "interpreter": {"imported", "relay_ops", "dimensions"},
    "reference": {"imported", "interpreter"},
    "original": {"artifact", "imported", "importers", "reference"},
    "compiler": {"artifact", "describe", "importers", "models", "phases", "reference", "runtime"},
    "tuning": {"compiler", "report", "ceilings.kernels"},
    "runtime": {"artifact", "targets", "config", "peak_memory"},
    "exporters": {"importers"},
    "peers": {"runtime", "exporters", "importers", "report", "config", "original"},
    "integrations": {"compiler", "runtime"},
    "explore": {"tuning", "ceilings.measure"},
    "cli": {"tuning", "ceilings.measure", "runtime", "peers", "report", "original"},
}
# Engines and formats are imported only here, and inside functions: onnx, which every installation has,
# may stand at the top of a file there, the others only in a file with an underscore, imported inside functions.
FOREIGN = {"onnx", "torch", "tensorflow", "jax", "onnxruntime", "transformers", "openvino"}
FOREIGN_HOMES = {"importers", "exporters", "peers", "integrations"}
# A broad except may stand only where a process or worker boundary is crossed.
BROAD_EXCEPTS = {
    "tir_schedules/dlight_gpu.py": "TVM's rules raise anything over functions that they half recognise",
    "importers/torchscript/_convert.py": "torch.export raises whatever its tracer does; it becomes one sentence",
    "importers/torch_export/_archive.py": "torch's reader raises anything for a graph that does not fit together",
    "importers/torch_export/_program.py": "torch.export runs the user's own module",
    "importers/_worker.py": "the confined worker's boundary: whatever a file provokes is its answer",
    "cli/_main.py": "the command line's own boundary: a bug becomes one sentence",
    "runtime/session.py": "the runner thread hands every error to the caller who waits for it",
    "tuning/many.py": "one model's boundary: the other models of a run are tuned, and the failure is told",
    "tuning/measure/confined.py": "the measurement processes' boundary: a candidate's failure is an answer",
    "peers/protocol.py": "the peer process's boundary: whatever an engine raises is its result",
}
# The environment is read here and nowhere else.
ENVIRONMENT_READERS = {
    "config/_environment.py": "options that have a variable",
    "records/home.py": "HALO_TVM_HOME",
    "cli/_main.py": "HALO_TVM_LOG, while it decides how to show a bug",
    "peers/client.py": "PYTHONPATH, handed on to worker processes",
    "targets/_host.py": "CUDA_VISIBLE_DEVICES, which nvidia-smi does not follow",
}


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def part_of(path: Path) -> str:
    """The part of the package that a file belongs to: its first folder, or its own name."""
    return part_named(".".join(path.relative_to(PACKAGE).parts).removesuffix(".py"))


def part_named(module: str) -> str:
    """The part of a module, named from the package on."""
    inner = ".".join(module.split(".")[:2])
    return inner if inner in TREE else module.split(".")[0]


def type_checking_only(tree: ast.Module) -> set[ast.AST]:
    """Nodes under `if TYPE_CHECKING:`; they cost nothing and form no arrow at run time."""
    return {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for child in block.body
        for node in ast.walk(child)
    }


def imports(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """(absolute module name, node) of every import in a file that runs."""
    tree = tree_of(path)
    skipped = type_checking_only(tree)
    package = ["halo_tvm", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from .. import errors` names the module in the alias.
            yield from ((f"{name}.{alias.name}" if name == "halo_tvm" else name, node) for alias in node.names)


def allowed(part: str) -> set[str]:
    """What `part` may import: its own children in the tree and everything below them."""
    found, pending = set(ANYONE), [part]
    while pending:
        current = pending.pop()
        new = TREE[current] - found
        found |= new
        pending += new
    return found | {part}


def test_tree_has_no_circle() -> None:
    for part in TREE:
        assert all(part not in allowed(child) or child == part for child in TREE[part]), f"{part} is below itself"


def test_every_part_is_in_the_tree() -> None:
    parts = {part_of(path) for path in MODULES} - DOORS - {"__init__"}
    assert parts <= set(TREE), f"add to TREE, with what they may import: {sorted(parts - set(TREE))}"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_imports_follow_the_tree(path: Path) -> None:
    part = part_of(path)
    wrong = []
    for name, node in imports(path):
        if not name.startswith("halo_tvm."):
            continue
        imported = part_named(name.removeprefix("halo_tvm."))
        if imported in DOORS:
            wrong.append(f"line {node.lineno}: nothing imports the door {name}")
        elif part in DOORS:
            if imported != "cli":
                wrong.append(f"line {node.lineno}: a door imports cli only, not {name}")
        elif part != "__init__" and imported in TREE and imported not in allowed(part):
            wrong.append(f"line {node.lineno}: {part} must not import {imported}")
    assert not wrong, "\n".join(wrong)


def behind_a_door(path: Path) -> bool:
    """Files that only a package imports which has said what is not installed, and those named after a framework."""
    return where(path).startswith("importers/torch_export/") or part_of(path) == "integrations"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_foreign_engines_stay_in_their_rooms(path: Path) -> None:
    tree = tree_of(path)
    top = {node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))}
    wrong = []
    for name, node in imports(path):
        root = name.split(".")[0]
        if root in FOREIGN and part_of(path) not in FOREIGN_HOMES:
            wrong.append(f"line {node.lineno}: {root} belongs in {', '.join(sorted(FOREIGN_HOMES))}")
        elif root in FOREIGN and node in top and path.name == "__init__.py":
            wrong.append(f"line {node.lineno}: importing the package must not import {root}")
        elif root in FOREIGN - {"onnx"} and node in top and not path.name.startswith("_") and not behind_a_door(path):
            wrong.append(f"line {node.lineno}: import {root} inside the function that needs it")
        elif root in ("pickle", "cloudpickle", "dill", "shelve", "marshal"):
            wrong.append(f"line {node.lineno}: {root} runs code from files; write JSON or arrays")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_only_the_command_line_prints(path: Path) -> None:
    if part_of(path) == "cli":
        return
    lines = [
        n.lineno
        for n in ast.walk(tree_of(path))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "print"
    ]
    assert not lines, f"print in lines {lines}: return the text, or log it with logging.getLogger(__name__)"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_tvm_private_names_stay_in_compat(path: Path) -> None:
    if part_of(path) == "_compat":
        return
    wrong = [f"line {node.lineno}: {name}" for name, node in imports(path) if re.match(r"tvm(_ffi)?\b.*\._", name)]
    for node in ast.walk(tree_of(path)):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] in ("tvm", "tvm_ffi")
            and not node.level
        ):
            wrong += [
                f"line {node.lineno}: {alias.name} of {node.module}"
                for alias in node.names
                if alias.name.startswith("_")
            ]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            names = ast.unparse(node.value)
            if re.match(r"(tvm|relax|tirx|s_tir|te|ir)\b", names):
                wrong.append(f"line {node.lineno}: {names}.{node.attr}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "tvm.__version__":
            wrong.append(f"line {node.lineno}: TVM's version")
    assert not wrong, "TVM's private names and versions are met in _compat.py only:\n" + "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_broad_excepts_are_listed(path: Path) -> None:
    def broad(handler: ast.ExceptHandler) -> bool:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        return any(
            kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in kinds
        )

    handlers = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ExceptHandler) and broad(node)]
    # Clean up and raise again catches nothing.
    lines = [h.lineno for h in handlers if not (isinstance(h.body[-1], ast.Raise) and h.body[-1].exc is None)]
    if where(path) not in BROAD_EXCEPTS:
        assert not lines, f"lines {lines}: name the exceptions, or add the boundary that is crossed to BROAD_EXCEPTS"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_environment_is_read_in_few_places(path: Path) -> None:
    if where(path) in ENVIRONMENT_READERS:
        return
    lines = [
        n.lineno
        for n in ast.walk(tree_of(path))
        if isinstance(n, ast.Call) and re.match(r"os\.(environ\.get|getenv)$", ast.unparse(n.func))
    ]
    lines += [
        n.lineno
        for n in ast.walk(tree_of(path))
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and ast.unparse(n.value) == "os.environ"
    ]
    assert not lines, f"lines {lines}: take the value as an argument, or from config.environment()"


@pytest.mark.parametrize("path", [p for p in MODULES if p.read_text().strip()], ids=where)
def test_module_docstring(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), "say in one line what the module is"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_targets_are_told_apart_by_their_manifests(path: Path) -> None:
    if part_of(path) in ("targets", "records"):  # a record's fingerprint has fields of these names
        return
    wrong = [
        n.lineno
        for n in ast.walk(tree_of(path))
        if isinstance(n, ast.Compare) and re.search(r"target\.(kind|spec\.(kind|name)|tvm\.kind)\b", ast.unparse(n))
    ]
    assert not wrong, f"lines {wrong}: what differs between targets is a field of their manifests"


def test_lists_of_this_test_are_true() -> None:
    """An exception granted here must still be needed."""
    files = {where(path) for path in MODULES}
    assert set(ENVIRONMENT_READERS) <= files
    assert set(BROAD_EXCEPTS) <= files


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


def test_no_catch_all_modules() -> None:
    assert not [
        where(p)
        for p in MODULES
        if {"utils", "util", "common", "core", "helpers", "misc"} & set(where(p).removesuffix(".py").split("/"))
    ]


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


WRITTEN = [*MODULES, *sorted(path for folder in ("tests", "scripts") for path in (ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.name)
def test_lines_fit(path: Path) -> None:
    lines = [n for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if len(line) > LINE]
    assert not lines, f"{path.relative_to(ROOT)}, lines {lines}: wrap them at {LINE} columns"


def test_long_modules_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = {where(path): len(path.read_text().splitlines()) for path in MODULES}
    with capsys.disabled():
        for name, length in lengths.items():
            if length > LONG:
                print(f"\n{name} has {length} lines: is it still one idea?")
