"""The public API as pages, from its docstrings."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from pathlib import Path

import pdoc
import pdoc.doc
import pdoc.render
from jinja2 import pass_context
from jinja2.runtime import Context
from pdoc.render_helpers import to_markdown_with_context

import nanlab

TEMPLATES = Path(__file__).resolve().parent / "templates" / "api"
MODULES = (
    "nanlab",
    "nanlab.rules",
    "nanlab.explanations",
    "nanlab.analysis.epsilon",
    "nanlab.analysis.compare",
    "nanlab.analysis.difference",
    "nanlab.topics.clipping",
    "nanlab.analysis.signal_loss",
    "nanlab.views.report",
    "nanlab.views.stepper",
    "nanlab.views.underflow",
    "nanlab.views.plots",
    "nanlab.notebook.magics",
    "nanlab.formats",
    "nanlab.errors",
)
# before the colon of `keep: how many steps ...`
NAMES = re.compile(r"[a-z_]\w*(, \*{0,2}[a-z_]\w*)*")
SENTENCE = re.compile(r"[A-Z]\w+ ")


def as_list(docstring: str) -> str:
    """Lines such as ``keep: how many steps ...`` as a Markdown list, with what runs on below each
    of them."""
    lines: list[str] = []
    inside = False
    first, *rest = docstring.splitlines() or [""]
    lines.append(first)
    for line in rest:
        name, colon, meaning = line.partition(": ")
        if colon and NAMES.fullmatch(name):
            lines += ([] if inside else [""]) + [f"- `{name}`: {meaning}"]
            inside = True
        elif inside and line.strip() and not SENTENCE.match(line):
            lines.append(f"  {line.strip()}")
        else:
            lines += ([""] if inside else []) + [line]
            inside = False
    return "\n".join(lines)


def comment(variable: pdoc.doc.Variable) -> str:
    """What stands beside a field of a class in its source or above it, where a docstring cannot:
    ``step: int  # from 0``."""
    owner = sys.modules[variable.modulename]
    for name in variable.qualname.split(".")[:-1]:
        owner = getattr(owner, name)
    try:
        source = inspect.getsource(owner)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    above, rest = r"((?:^    #.*\n)*)", r"(.*(?:\n(?:     .*|    \)))*)"
    field = re.search(rf"{above}^    {variable.name}: {rest}", source, re.MULTILINE)
    if field is None:
        return ""
    beside = re.search(r"#\s*(.+)", field[2])
    lines = [beside[1]] if beside else re.findall(r"#\s*(.+)", field[1])
    return " ".join(line.strip() for line in lines)


@pass_context
def _to_markdown(context: Context, docstring: str) -> str:
    return to_markdown_with_context(context, as_list(docstring))


def build(target: Path) -> None:
    """Write the reference to a folder; its links and its search work from a disk."""
    pdoc.render.configure(docformat="markdown", show_source=False, template_directory=TEMPLATES)
    pdoc.render.env.filters["to_markdown"] = _to_markdown
    pdoc.render.env.globals["comment"] = comment
    nanlab.last = None  # as a reader finds it
    with warnings.catch_warnings():
        # pandas has no Series[int] while running
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        pdoc.pdoc(*MODULES, output_directory=target)
