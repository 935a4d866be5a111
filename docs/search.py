"""The index of the documentation's search: title, kind, address and text of every page and public
name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import gallery
import nbformat
import pages

import nanlab

ROOT = Path(__file__).resolve().parent.parent
TEXT = 600  # characters of a page that are kept
Entry = dict[str, str]


def entry(title: str, kind: str, url: str, text: str) -> Entry:
    """One page as the search knows it."""
    return {"title": title, "kind": kind, "url": url, "text": " ".join(text.split())[:TEXT]}


def causes_of(made: Iterable[gallery.Page]) -> Iterator[Entry]:
    """The pages of the causes."""
    for page in made:
        rules = [shown.rule for shown in page.exhibits]
        yield entry(
            page.slug,
            "cause",
            f"causes/{page.slug}.html",
            " ".join(rule.explanation for rule in rules),
        )


def notebooks() -> Iterator[Entry]:
    """The notebooks, found by their headings and their text."""
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        title, summary = pages.title_of(notebook)
        prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        headings = ". ".join(re.findall(r"^##+ (.+)$", prose, re.MULTILINE))
        yield entry(title, "notebook", f"notebooks/{path.stem}.html", f"{headings}. {summary}")


def guides(named: dict[str, str]) -> Iterator[Entry]:
    """The sections of the guides."""
    for source, name in named.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        title = text.partition("\n")[0].lstrip("# ")
        for heading, body in re.findall(r"^##? (.+)\n((?:(?!^##? ).*\n?)*)", text, re.MULTILINE):
            told = title if heading == title else f"{title}: {heading}"
            yield entry(told, "guide", name, re.sub(r"[`*|\[\]]|\([^)]*\)|<[^>]+>", " ", body))


def names() -> Iterator[Entry]:
    """The public names of the package, of a trace and of ``nanlab.safe``."""
    places = [
        (nanlab.__all__, nanlab, "nanlab", "api/nanlab.html#"),
        (
            [n for n in vars(nanlab.Trace) if not n.startswith("_")],
            nanlab.Trace,
            "trace",
            "api/nanlab.html#Trace.",
        ),
        (nanlab.safe.__all__, nanlab.safe, "nanlab.safe", "api/nanlab/safe.html#"),
    ]
    for found, owner, prefix, page in places:
        for name in found:
            thing = getattr(owner, name)
            address = f"api/nanlab/{name}.html" if inspect.ismodule(thing) else f"{page}{name}"
            yield entry(
                f"{prefix}.{name}", "name", address, (inspect.getdoc(thing) or "").split("\n\n")[0]
            )


def build(target: Path, causes: Iterable[gallery.Page], named: dict[str, str]) -> None:
    """Write the index and the script that looks into it."""
    index = [*causes_of(causes), *notebooks(), *names(), *guides(named)]
    (target / "search-index.js").write_text(
        f"const PAGES = {json.dumps(index)};\n", encoding="utf-8"
    )
    script = Path(__file__).resolve().parent / "templates" / "search.js"
    (target / "search.js").write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
