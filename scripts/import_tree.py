"""A contract for import-linter: who may import whom, as a tree of the parts of the package (`.importlinter`)."""

from __future__ import annotations

from collections.abc import Iterable

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ROOT = "halo_tvm"


class Tree(Contract):
    """Every part imports the parts that its line names, whatever those may import, and what anyone may.

    A part is a module or package directly below the root; one with a dot is a module that has more arrows than the rest
    of its package. A door is a module that nothing imports, and that imports `behind_doors` alone. A module with an
    underscore in front of its name is imported within its package alone.
    """

    parts = fields.ListField(subfield=fields.StringField())
    anyone = fields.SetField(subfield=fields.StringField())
    doors = fields.SetField(subfield=fields.StringField())
    behind_doors = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Every import of the graph against the tree, and the tree against itself and the package."""
        arrows = {}
        for line in self.parts:
            part, _, below = line.partition("->")
            arrows[part.strip()] = set(below.split())
        wrong = [f"{ROOT}.{door} is in the list of doors, and no module" for door in self.doors - _top(graph)]
        wrong += [f"{part} is in the tree, and no module" for part in arrows if f"{ROOT}.{part}" not in graph.modules]
        wrong += [
            f"add {part} to the tree, with what it may import"
            for part in sorted(_top(graph) - set(arrows) - set(self.doors))
        ]
        allowed = {part: {part} | _reach(arrows, part) | _reach(arrows, *self.anyone) for part in arrows}
        wrong += [f"{part} is below itself" for part in arrows if any(part in _reach(arrows, c) for c in arrows[part])]
        for importer in sorted(module for module in graph.modules if module.startswith(f"{ROOT}.")):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if not imported.startswith(f"{ROOT}."):
                    continue
                owner, is_private, _ = imported.partition("._")
                if is_private and not f"{importer}.".startswith(f"{owner}."):
                    wrong.append(f"{_place(graph, importer, imported)}: {imported} is for {owner} alone")
                mine, theirs = _part(arrows, importer), _part(arrows, imported)
                may = {self.behind_doors} if mine in self.doors else allowed.get(mine, {theirs})
                if theirs in self.doors:
                    wrong.append(f"{_place(graph, importer, imported)}: nothing imports the door {theirs}")
                elif theirs not in may:
                    wrong.append(f"{_place(graph, importer, imported)}: {mine} must not import {theirs}")
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(f"- {line}", bold=False)


def _top(graph: ImportGraph) -> set[str]:
    return {name.removeprefix(f"{ROOT}.") for name in graph.find_children(ROOT)}


def _part(parts: Iterable[str], module: str) -> str:
    """The part that a module of the package belongs to."""
    names = module.split(".")[1:]
    inner = ".".join(names[:2])
    return inner if inner in parts else names[0]


def _reach(arrows: dict[str, set[str]], *starts: str) -> set[str]:
    """Parts at and below `starts`."""
    found: set[str] = set()
    pending = list(starts)
    while pending:
        part = pending.pop()
        if part not in found:
            found.add(part)
            pending += arrows.get(part, ())
    return found


def _place(graph: ImportGraph, importer: str, imported: str) -> str:
    details = graph.get_import_details(importer=importer, imported=imported)
    return f"{importer}, line {details[0]['line_number']}" if details else importer
