"""A line of an installed package written otherwise: code that patches the function around it."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from nanlab.errors import NotReplayable
from nanlab.program.edit_text import EditLike
from nanlab.program.expression import functions_around, lines_of, names_in

_PATCH = """\
import importlib, inspect, textwrap
module = importlib.import_module({module!r})
{imports}function = inspect.unwrap(module.{path})
text = textwrap.dedent(inspect.getsource(function))
text = text[("\\n" + text).index("\\ndef ") :].replace(  # without its decorators
    {old!r},
    {new!r},
)
made = {{}}
exec(compile(text, module.__file__, "exec"), vars(module), made)
function.__code__ = made[{name!r}].__code__"""


@lru_cache(maxsize=16)
def parsed_file(file: str) -> ast.Module:
    """A file or cell; an empty one where it is no Python."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=256)
def function_at(file: str, line: int) -> str:
    """Qualified name of the innermost function around a line; empty outside of one."""
    tree = parsed_file(file)
    classes = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    outer = [n for n in classes if line in lines_of(n)]
    around = sorted([*outer, *functions_around(tree, line)], key=lambda n: n.lineno)
    return ".".join(node.name for node in around)


def patch(edit: EditLike) -> str:
    """Code that makes an edit of a package's function in the running process; empty where that
    cannot be done.

    The function keeps its identity: whoever has imported it runs the new code.
    """
    file, path = edit.file, function_at(edit.file, edit.first)
    around = functions_around(parsed_file(file), edit.first)
    if not path or not around or "nanlab" in edit.text:
        return ""
    function, nested = around[-1], path.rpartition(".")[0]
    inner = not names_in(function).isdisjoint(("super", "__class__"))
    if inner or (nested and not nested.rpartition(".")[2][:1].isupper()):
        return ""
    if isinstance(function, ast.AsyncFunctionDef):
        return ""
    first, last = function.lineno, function.end_lineno or function.lineno
    if not first < edit.first <= edit.last <= last:
        return ""
    rows = [row[function.col_offset :] for row in linecache.getlines(file)[:last]]
    old = "".join(rows[edit.first - 1 : edit.last])
    if "".join(rows[first - 1 :]).count(old) != 1:
        return ""
    modules = list(sys.modules.items())
    module = next((name for name, m in modules if getattr(m, "__file__", None) == file), "")
    if not module:
        return ""
    new = textwrap.indent(edit.text, old[: len(old) - len(old.lstrip())])
    missing = _missing(vars(sys.modules[module]), edit)
    imports = "".join(f"module.{n} = importlib.import_module({n!r})\n" for n in missing)
    return _PATCH.format(
        module=module,
        imports=imports,
        path=path,
        name=function.name,
        old=old.rstrip("\n"),
        new=new,
    )


def _missing(known: Mapping[str, Any], edit: EditLike) -> list[str]:
    """The modules that an edit reads and that a module has not imported."""
    used = names_in(ast.parse(edit.text))
    return [name for name in ("math", "torch") if name in used and name not in known]


def patching(edit: EditLike) -> Callable[[], Any]:
    """A context in which the package's function runs the edit, by the code that ``patch`` shows;
    after it all is as it was. Raises NotReplayable."""
    text = patch(edit)
    if not text:
        raise NotReplayable("the function around it cannot be patched")
    *prepare, assign = text.splitlines(keepends=True)
    module = next(m for m in sys.modules.values() if getattr(m, "__file__", None) == edit.file)
    missing = _missing(vars(module), edit)
    space: dict[str, Any] = {}

    @contextmanager
    def context() -> Iterator[None]:
        function = space["function"]
        before = function.__code__
        vars(module).update({name: importlib.import_module(name) for name in missing})
        try:
            exec(assign, space)
            yield
        finally:
            function.__code__ = before
            for name in missing:
                vars(module).pop(name, None)

    try:
        exec("".join(prepare), space)
        with context():
            pass
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise NotReplayable(f"the patch cannot be made ({told})") from None
    return context
