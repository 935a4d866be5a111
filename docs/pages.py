"""Pages of the documentation: one frame for all, Markdown and notebooks put into it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import Environment, FileSystemLoader
from nbconvert import HTMLExporter
from nbconvert.filters.markdown import markdown2html
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

HERE = Path(__file__).resolve().parent
# asks for a kernel or for a script from the network
WIDGET = "application/vnd.jupyter.widget-view+json"

_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def stylesheet() -> str:
    """The site's own style, and the colours of code in light and dark."""
    own = (HERE / "templates" / "style.css").read_text(encoding="utf-8")
    light = HtmlFormatter(style="default", cssclass="highlight").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark", cssclass="highlight").get_style_defs(".highlight")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{own}"


def write(target: Path, name: str, template: str, **values: Any) -> None:
    """Render a template into ``target/name``; links are relative, so that the pages work from a
    disk."""
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    values |= {"up": "../" * name.count("/"), "here": name.split("/")[0]}
    path.write_text(_templates.get_template(template).render(**values), encoding="utf-8")


def python(code: str, marked: tuple[int, ...] = ()) -> str:
    """Code as HTML, with its marked lines (from 1) set off."""
    return str(
        highlight(code, PythonLexer(), HtmlFormatter(cssclass="highlight", hl_lines=list(marked)))
    )


def markdown(text: str) -> str:
    """Markdown as HTML; the cells of nbconvert go through the same."""
    return str(markdown2html(text))


def title_of(notebook: nbformat.NotebookNode) -> tuple[str, str]:
    """The heading of a notebook and the sentences below it, without the link back."""
    heading, _, rest = notebook.cells[0].source.partition("\n")
    return heading.lstrip("# ").strip(), rest.partition("\n\nBefore:")[0].strip()


def notebook_html(notebook: nbformat.NotebookNode) -> str:
    """The cells of a notebook with their outputs; a widget as its words, its static picture stands
    before it."""
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    return re.sub(r'href="([\w-]+)\.ipynb"', r'href="\1.html"', body)
