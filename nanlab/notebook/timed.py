"""Code that ``%%time`` compiles, under the name and with the lines of its cell."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable

from nanlab.capture.places import cell_names

NAMES = ("<timed exec>", "<timed eval>")  # of the code that %%time compiles
MOST_FRAMES = 6  # between the magic and a transformer that it calls


class TimedCells(ast.NodeTransformer):
    """IPython AST transformer: what ``%%time`` compiles has the lines that it has in its cell."""

    def __init__(self, typed: Callable[[], str], number: Callable[[], int]) -> None:
        """typed: gives the cell that runs, as its user wrote it; number: its number."""
        self.typed, self.number = typed, number

    def visit(self, tree: ast.AST) -> ast.AST:
        """The tree with the lines of the cell; unchanged where %%time does not run it."""
        found = self._timed() if isinstance(tree, ast.Module) else None
        for name in NAMES:
            cell_names.pop(name, None)  # of an earlier cell
        if found is None:
            return tree
        before, text = found
        for name in NAMES:
            cell_names[name] = f"In[{self.number()}]"
            rows = ["\n"] * before + text.splitlines(keepends=True)
            linecache.cache[name] = (len(text) + before, None, rows, name)
        return ast.increment_lineno(tree, before)

    def _timed(self) -> tuple[int, str] | None:
        """How many lines of the cell stand before what %%time runs, and that, as it is compiled;
        None where that is something else."""
        frame = sys._getframe(2)
        for _ in range(MOST_FRAMES):
            if frame.f_code.co_name == "time" and isinstance(frame.f_locals.get("expr"), str):
                break
            if frame.f_back is None:
                return None
            frame = frame.f_back
        else:
            return None
        cell = frame.f_locals.get("cell") or ""
        whole, inner = self.typed().rstrip().splitlines(), cell.rstrip().splitlines()
        if not inner or whole[-1:] != inner[-1:]:
            return None
        return max(len(whole) - len(inner), 0), frame.f_locals["expr"]
