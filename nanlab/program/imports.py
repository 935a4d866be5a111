"""The imports that edits need, of modules that their lines name and their files do not import."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nanlab.program.edit_text import EditLike
from nanlab.program.expression import nodes_of, parsed
from nanlab.trace.op import is_installed

_MODULES = ("nanlab", "torch")  # that new lines name
_IMPORTS = {f"import {module}" for module in _MODULES}
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.With)


@dataclass(frozen=True)
class Rows:
    """Lines of a file, and what they become: an edit."""

    file: str
    first: int
    last: int
    text: str


def imported(edits: Sequence[EditLike], read: Callable[[str], str]) -> Iterator[Rows]:
    """For each file or cell the lines with the imports that its edits need; none for an installed
    package. read: gives a file's text."""
    for file in dict.fromkeys(edit.file for edit in edits):
        own = [edit for edit in edits if edit.file == file]
        if is_installed(file):
            continue
        try:
            text = read(file)
            tree = parsed(text)
        except (SyntaxError, ValueError):
            continue
        there = _known(tree) | (_of_notebook() if file.startswith("In[") else set())
        named = {name for edit in own for name in _named(edit.text)}
        needed = [each for each in _MODULES if each in named and each not in there]
        if text and needed:
            yield from _rows(file, text, tree, own, [f"import {each}" for each in needed])


def computing(edits: Sequence[EditLike], read: Callable[[str], str]) -> list[EditLike]:
    """The edits without their lines of imports."""
    found: list[EditLike] = []
    for edit in edits:
        rows = edit.text.splitlines()
        rest = [row for row in rows if row not in _IMPORTS]
        if len(rest) == len(rows):
            found.append(edit)
            continue
        old = textwrap.dedent("\n".join(read(edit.file).splitlines()[edit.first - 1 : edit.last]))
        if rest != [row for row in old.splitlines() if row not in _IMPORTS]:
            found.append(Rows(edit.file, edit.first, edit.last, "\n".join(rest)))
    return found


def _rows(
    file: str, text: str, tree: ast.Module, edits: Collection[EditLike], imports: list[str]
) -> Iterator[Rows]:
    """The last import above all that is edited or defined, or the docstring, with imports below
    it; without one the first statement, below them."""
    first, after = min(edit.first for edit in edits), None
    for at, node in enumerate(tree.body):
        if isinstance(node, _LATER) or (node.end_lineno or 0) >= first:
            break
        if isinstance(node, ast.Import | ast.ImportFrom) or (not at and _is_docstring(node)):
            after = node
    stands = after or next(iter(tree.body))
    lines = range(stands.lineno, (stands.end_lineno or stands.lineno) + 1)
    if after is None:
        lines = range(lines[0], lines[0] + 1)
    if any(edit.first <= lines[-1] and lines[0] <= edit.last for edit in edits):
        return
    old = text.splitlines()[lines[0] - 1 : lines[-1]]
    rows = [*imports, *old] if after is None else [*old, *imports]
    yield Rows(file, lines[0], lines[-1], "\n".join(rows))


def _of_notebook() -> set[str]:
    """The names that all cells of the running notebook share; without a notebook, as for a capsule,
    the modules that ``%load_ext nanlab`` gives."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return {*_MODULES} if shell is None else {*shell.user_ns}


def _is_docstring(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _named(text: str) -> Iterator[str]:
    """The names that lines read."""
    try:
        nodes = ast.walk(ast.parse(textwrap.dedent(text)))
    except SyntaxError:  # part of a statement
        return (module for module in _MODULES if f"{module}." in text)
    return (node.id for node in nodes if isinstance(node, ast.Name))


@lru_cache(maxsize=16)
def _known(tree: ast.Module) -> set[str]:
    """The names that a file imports or gets from elsewhere, as it reads them; imports within a
    function do not count."""
    inner = {
        id(each)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for each in nodes_of(node)
    }
    own: dict[bool, set[str]] = {True: set(), False: set()}
    for node in nodes_of(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.asname or alias.name.split(".")[0] for alias in node.names}
            own[id(node) in inner] |= names
    read = {node.id for node in nodes_of(tree) if isinstance(node, ast.Name)}
    return own[False] | (read - own[True])
