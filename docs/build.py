"""Build the documentation: ``python docs/build.py [folder]``, by default build/docs; nothing is
asked of the network."""

from __future__ import annotations

import functools
import html
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import gallery
import nbformat
import pages
import reference
import search
import torch

T = TypeVar("T")
CAUSES = """# Causes

What `finding.cause` may say. `make docs` writes this list from the rules, and a page for each cause
with a program, the run at a glance and the fix."""
MARK = ".nanlab-docs"  # lies in a folder that a build may empty, one that broke off included
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
GUIDES = {
    "README.md": "index.html",
    "CONTRIBUTING.md": "contributing.html",
    "docs/tour.md": "tour.html",
    "CHANGELOG.md": "changes.html",
    "docs/limits.md": "limits.html",
    "docs/ranks.md": "ranks.html",
    "docs/causes.md": "cause-list.html",
    "benchmarks/results/tools.md": "tools.html",
    "benchmarks/results/overhead-cpu.md": "overhead.html",
}


def build_guides(target: Path) -> None:
    """The README and its companions, with their links turned to the pages built here."""
    shutil.copytree(HERE / "images", target / "images", dirs_exist_ok=True)
    for source, name in GUIDES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        body = anchored(linked(pages.markdown(text)))
        pages.write(target, name, "page.html.jinja2", title=source, body=body)


def anchored(body: str) -> str:
    """The headings' anchors as they are named in the repository's pages: in small letters."""
    return re.sub(r'(\sid=|href="#)"?[^"]*"', lambda found: found[0].lower(), body)


def linked(body: str) -> str:
    """Links to the repository's files as links of the site."""
    body = re.sub(r'href="notebooks/([\w-]+)\.ipynb"', r'href="notebooks/\1.html"', body)
    body = re.sub(r'(src|srcset)="docs/images/', r'\1="images/', body)
    for source, page in GUIDES.items():
        for address in (source, source.removeprefix("docs/")):
            for end in '"#':  # the page, or a place in it
                body = body.replace(f'href="{address}{end}', f'href="{page}{end}')
    return body


def build_notebooks(target: Path) -> None:
    """Each notebook as it lies in the repository, with its outputs."""
    rows = []
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        title, summary = pages.title_of(notebook)
        name = f"{path.stem}.html"
        pages.write(
            target,
            f"notebooks/{name}",
            "page.html.jinja2",
            title=title,
            body=pages.notebook_html(notebook),
        )
        rows.append((name, f"{path.stem[:2]}  {title}", pages.markdown(summary)))
    pages.write(target, "notebooks/index.html", "list.html.jinja2", title="Notebooks", rows=rows)


def build_gallery(target: Path, causes: Iterable[gallery.Page] | None = None) -> list[gallery.Page]:
    """A page for each cause, from the programs of its rules, which run now; and their list, by
    topic.

    Raises LookupError where a rule does not find its example, ValueError where a cure is not
    silent.
    """
    made = []
    for page in gallery.pages() if causes is None else causes:
        for shown in page.exhibits:
            if shown.left:
                raise ValueError(
                    f"the cure of {page.slug!r} is not silent: {'; '.join(shown.left)}"
                )
        pages.write(
            target,
            f"causes/{page.slug}.html",
            "cause.html.jinja2",
            page=page,
            python=pages.python,
            words=words,
        )
        made.append(page)
    topics: dict[str, list[gallery.Page]] = {}
    for page in made:
        topics.setdefault(page.topic, []).append(page)
    pages.write(target, "causes/index.html", "causes.html.jinja2", topics=topics, words=words)
    return made


def list_of_causes() -> str:
    """``docs/causes.md``: what each cause means, as its rules say, by topic."""
    lines, topic = [CAUSES], ""
    for slug, rules in gallery.by_cause().items():
        if (of := gallery.topic_of(rules[0])) != topic:
            topic = of
            lines += [
                "",
                f"## {topic}",
                "",
                "| cause | what it means, and what helps |",
                "|---|---|",
            ]
        told = " ".join(dict.fromkeys(rule.explanation for rule in rules))
        lines.append(f"| `{slug}` | {told.replace('``', '`').replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def words(explanation: str) -> str:
    """An explanation as HTML: code in backticks is set as code, a word between asterisks is
    stressed."""
    text = re.sub(
        r"(?<![\w*])\*(\w+)\*(?![\w*])", r"<em>\1</em>", html.escape(explanation, quote=False)
    )
    return re.sub(r"`+([^`]+)`+", r"<code>\1</code>", text)


def main(target: Path) -> list[gallery.Page]:
    """Build everything anew in ``target`` and tell how long each part took; the pages of the causes
    come back.

    Raises FileExistsError for a folder that holds other things.
    """
    if target.exists() and any(target.iterdir()) and not (target / MARK).is_file():
        raise FileExistsError(
            f"{target} holds other things than this documentation; name an empty folder"
        )
    torch.set_num_threads(1)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / MARK).touch()
    (target / "style.css").write_text(pages.stylesheet(), encoding="utf-8")
    (HERE / "causes.md").write_text(list_of_causes(), encoding="utf-8")
    _timed("guides", build_guides, target)
    _timed("notebooks", build_notebooks, target)
    causes = _timed("causes", build_gallery, target)
    _timed("api", reference.build, target / "api")
    _timed("search", functools.partial(search.build, causes=causes, named=GUIDES), target)
    print(f"open {target / 'index.html'}")
    return causes


def _timed(name: str, part: Callable[[Path], T], target: Path) -> T:
    begin = time.perf_counter()
    made = part(target)
    print(f"{name:10} {time.perf_counter() - begin:5.1f} s", flush=True)
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs")
