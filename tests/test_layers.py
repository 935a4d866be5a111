"""Imports between nanlab's modules point down the list of layers."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "nanlab"
LAYERS = [  # from the top; those in one line may not import each other
    {"notebook"},
    {"__main__"},
    {"integrations"},
    {"guards"},
    {"views"},
    {"explanations"},
    {"rules"},
    {"topics"},
    {"findings"},
    {"fixes"},
    {"analysis"},
    {"program"},
    {"capture"},
    {"safe"},
    {"exact"},
    {"trace"},
    {"stats"},
    {"formats", "operators", "paths"},
    {"errors"},
]
SETS_LAST = (
    "capture/",
    "guards/",
    "notebook/",
)  # bind `nanlab.last`, the package's one mutable global, inside a function
DOORS = (
    "__main__.py",
    "trace/",
    "analysis/epsilon.py",
    "topics/clipping.py",
    "explanations/",
)  # may import upwards, inside a function
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def rank(layer: str) -> int:
    found = [i for i, names in enumerate(LAYERS) if layer in names]
    assert found, f"{layer!r} belongs to no layer; give it a place in LAYERS"
    return found[0]


def imported_layers(path: Path, tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """Layer, line, and whether it stands inside a function, of each import of nanlab's own."""
    nodes = [*ast.walk(tree)]
    inside = {
        id(node)
        for function in nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    for node in nodes:
        for name in absolute_names(path, node):
            parts = name.split(".")
            if parts[0] == "nanlab":
                yield parts[1] if len(parts) > 1 else "", node.lineno, id(node) in inside


def absolute_names(path: Path, node: ast.AST) -> list[str]:
    """The dotted modules an import statement names; `from nanlab import views` names
    nanlab.views."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = list(path.relative_to(PACKAGE.parent).parent.parts)
    start = ".".join(base[: len(base) - node.level + 1]) if node.level else ""
    module = ".".join(part for part in (start, node.module) if part)
    return [f"nanlab.{alias.name}" for alias in node.names] if module == "nanlab" else [module]


def is_type_checking_only(tree: ast.AST) -> set[int]:
    """Lines of imports that only the type checker reads."""
    blocks = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)
    ]
    return {
        node.lineno for block in blocks for node in ast.walk(block) if isinstance(node, ast.stmt)
    }


def test_imports_point_down_only() -> None:
    wrong = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        relative = path.relative_to(PACKAGE)
        own = relative.parts[0].removesuffix(".py")
        typing_only = is_type_checking_only(tree)
        for layer, line, in_function in imported_layers(path, tree):
            down = layer != "" and (layer == own or rank(layer) > rank(own))
            door = relative.as_posix().startswith(DOORS) and (in_function or line in typing_only)
            last = layer == "" and in_function and relative.as_posix().startswith(SETS_LAST)
            if not (down or door or last):
                wrong.append(f"{relative}:{line} imports {layer or 'the package itself'}")
    assert FILES and wrong == []


def test_every_module_belongs_to_a_layer() -> None:
    assert FILES
    for path in FILES:
        rank(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))


def test_an_upward_import_is_seen() -> None:
    tree = ast.parse("from nanlab import views\ndef f():\n    from .rules.domain import x\n")
    seen = list(imported_layers(PACKAGE / "stats" / "row.py", tree))
    assert ("views", 1, False) in seen
    assert ("stats", 3, True) in seen  # one dot is the own package
    two_dots = ast.parse("def f():\n    from ..rules.domain import x\n")
    assert list(imported_layers(PACKAGE / "stats" / "row.py", two_dots)) == [("rules", 2, True)]


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }


def imported_modules(name: str, known: dict[str, Path]) -> set[str]:
    """Modules that a module takes names from, those inside of functions too."""
    tree = ast.parse(known[name].read_text())
    typing_only = is_type_checking_only(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.lineno not in typing_only:
            (module,) = (
                set(absolute_names(known[name], node)) if node.module != "nanlab" else {"nanlab"}
            )
            named = [f"{module}.{alias.name}" for alias in node.names]
            found |= {each if each in known else module for each in named}
    return {each for each in found if each in known and each != name}


def test_no_module_imports_one_that_imports_it() -> None:
    """But for the doors of Trace, which open every part of nanlab, and the package, which opens it."""
    known = modules()
    graph = {
        name: {each for each in imported_modules(name, known) if each != "nanlab"}
        for name in known
        if name != "nanlab"
    }
    graph["nanlab.trace"] = {
        each for each in graph["nanlab.trace"] if each.startswith("nanlab.trace.")
    }
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names a ring
