"""A library's function with one of its lines written anew, as code for a cell; and the report to
its authors."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import textwrap
from pathlib import Path

import torch

from nanlab.analysis.libraries import Place

_PATCH = """\
import importlib, inspect, textwrap
module = importlib.import_module({module!r})
function = inspect.unwrap({path})
text = textwrap.dedent(inspect.getsource(function)).replace(
    {old!r},
    {new!r},
)
made = {{}}
exec(compile(text, module.__file__, "exec"), vars(module), made)
function.__code__ = inspect.unwrap(made[{name!r}]).__code__"""


def patch(library: Place, old: str, new: str) -> str:
    """Code that replaces a line of a library's function in the running process; empty where that
    cannot be done.

    The function keeps its identity: whoever has imported it runs the new code.
    """
    file, line, path = library
    module = next(
        (n for n, m in list(sys.modules.items()) if getattr(m, "__file__", None) == file), ""
    )
    function = _function(file, line)
    if not module or not path or function is None or "<" in path or "nanlab" in new:
        return ""
    inner = any(
        isinstance(node, ast.Name) and node.id in ("super", "__class__")
        for node in ast.walk(function)
    )
    nested = path.rpartition(".")[0]
    if inner or (nested and not nested.rpartition(".")[2][:1].isupper()):
        return ""
    return _PATCH.format(
        module=module,
        path=f"module.{path}",
        name=function.name,
        old=textwrap.dedent(old),
        new=textwrap.dedent(new),
    )


def _function(file: str, line: int) -> ast.FunctionDef | None:
    """The innermost function around a line."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def text_of_library(library: Place) -> str:
    """The source of the library's file; empty where there is none."""
    try:
        return Path(library[0]).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def report(library: Place, title: str, explanation: str, evidence: str, patches: list[str]) -> str:
    """What to write to the authors of a library: versions, place, cause, values, and the patch."""
    file, line, function = library
    shown = file.rsplit("site-packages/", 1)[-1]
    package = shown.split("/", 1)[0]
    row = (text_of_library(library).splitlines()[line - 1 : line] or [""])[0].strip()
    parts = [
        f"{package}: {title}",
        f"`{shown}`, line {line}, in `{function}`:\n\n    {row}",
        explanation,
        f"Values that show it:\n\n{textwrap.indent(evidence, '    ')}" if evidence else "",
        "What mends it:\n\n" + textwrap.indent(patches[0], "    ") if patches else "",
        f"{package} {_version(package)}, torch {torch.__version__}, Python"
        f" {sys.version.split()[0]}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _version(package: str) -> str:
    names = importlib.metadata.packages_distributions().get(package, [package])
    try:
        return importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"
