"""The documentation is built from the rules, the docstrings and the notebooks, holds what they
hold, and is whole."""

from __future__ import annotations

import html
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nanlab
from nanlab.rules import BUILTIN, rule
from nanlab.views.html import plural

ROOT = Path(__file__).parent.parent
SLUGS = list(dict.fromkeys(subject.name for subject in BUILTIN))
WHOLE = pytest.mark.examples(every=0)  # CI alone builds all of it
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb"))


@pytest.fixture(scope="module")
def build() -> Iterator[Any]:
    """The module docs/build.py."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        yield importlib.import_module("build")
    finally:
        sys.path.remove(str(ROOT / "docs"))
        sys.modules.pop("build")


@pytest.fixture(scope="module")
def built(build: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All of the documentation, as `make docs` builds it: its folder, and what the pages of the
    causes were made of."""
    target = tmp_path_factory.mktemp("site") / "docs"
    return target, {page.slug: page for page in build.main(target)}


@pytest.fixture(scope="module")
def site(built: tuple[Path, dict[str, Any]]) -> Path:
    return built[0]


@pytest.fixture(scope="module")
def causes(built: tuple[Path, dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    return built[0] / "causes", built[1]


def test_the_list_of_causes_says_what_the_rules_say(build: Any) -> None:
    text = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")
    assert text == build.list_of_causes(), "make docs writes it anew"
    assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == SLUGS


def words(page: Path) -> str:
    """The text of a page without its tags, with single spaces."""
    body = re.sub(
        r"<(script|style).*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return " ".join(
        html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<(?=td|th|div|br|p\b)", " <", body))).split()
    )


def flat(text: str) -> str:
    """A text without white space and the marks of code and stress."""
    return "".join(text.replace("`", "").replace("*", "").split())


@WHOLE
@WHOLE
@pytest.mark.parametrize("slug", SLUGS)
def test_a_cause_has_a_page_with_its_explanation_output_and_cure(
    slug: str, causes: tuple[Path, dict[str, Any]]
) -> None:
    folder, made = causes
    said = flat(words(folder / f"{slug}.html"))
    for subject in (s for s in BUILTIN if s.name == slug and s.example):
        assert flat(subject.explanation) in said
        assert flat(re.sub(r"# here\b.*", "", subject.example)) in said
        assert flat(subject.fix) in said
    assert [exhibit.rule.name for exhibit in made[slug].exhibits] == [
        s.name for s in BUILTIN if s.name == slug
    ]


def elements(finding: Any) -> int:
    """How many elements the evidence is of; the frame may hold the first of them only."""
    return int(finding.evidence.attrs.get("total", len(finding.evidence)))


@WHOLE
@WHOLE
@pytest.mark.parametrize("slug", SLUGS)
def test_a_page_shows_what_the_rule_really_finds_in_its_example(
    slug: str, causes: tuple[Path, dict[str, Any]]
) -> None:
    folder, made = causes
    said = words(folder / f"{slug}.html")
    for exhibit in made[slug].exhibits:
        finding = exhibit.finding
        marked = [
            i for i, line in enumerate(exhibit.rule.example.splitlines(), 1) if "# here" in line
        ]
        assert finding.cause == slug
        assert finding.line in marked
        assert f"example.py:{finding.line}" in said
        assert flat(finding.title)[1:] in flat(said)  # its first letter may be set as a capital
        assert not len(finding.evidence) or plural(elements(finding), "element") in said
        for fix in finding.fixes:  # of several places as a diff, row by row
            rows = [row for edit in fix.edits for row in edit.text.splitlines()]
            shown = rows if len(fix.edits) > 1 else [fix.code]
            assert all(flat(each) in flat(said) for each in shown)
        assert exhibit.html.count(">verified<") == sum(fix.verified for fix in finding.fixes)


@WHOLE
@WHOLE
@pytest.mark.parametrize("slug", SLUGS)
def test_a_cure_is_proved_silent_on_its_page(
    slug: str, causes: tuple[Path, dict[str, Any]]
) -> None:
    folder, made = causes
    said = words(folder / f"{slug}.html")
    assert [exhibit.left for exhibit in made[slug].exhibits] == [()] * len(made[slug].exhibits)
    assert said.count("No harmful NaN or infinity.") >= len(made[slug].exhibits)


@WHOLE
def test_the_list_of_causes_leads_to_every_page(causes: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = causes
    index = (folder / "index.html").read_text(encoding="utf-8")
    assert sorted(re.findall(r'<a class="card" href="([\w-]+)\.html"', index)) == sorted(SLUGS)


def test_a_rule_that_misses_its_example_stops_the_build(build: Any, tmp_path: Path) -> None:
    @rule("error", example="x = torch.ones(2)  # here", fix="x = torch.ones(2)")
    def never_seen(fault: Any) -> None:
        """Finds nothing."""

    with pytest.raises(LookupError, match="never-seen"):
        build.build_gallery(tmp_path, build.gallery.pages((never_seen,)))


def test_a_cure_that_is_not_silent_stops_the_build(build: Any, tmp_path: Path) -> None:
    log = next(subject for subject in BUILTIN if subject.name == "log-of-zero")
    bad = type(log)(**{**vars(log), "fix": log.example})
    with pytest.raises(ValueError, match="the cure of 'log-of-zero' is not silent: log of 1 zero"):
        build.build_gallery(tmp_path, build.gallery.pages((bad,)))


def test_a_folder_with_other_things_is_not_emptied(build: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(FileExistsError, match="other things"):
        build.main(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "three years"


def test_a_build_that_broke_off_can_be_repeated(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, told = tmp_path / "docs", "the disk is full"

    def fail(target: Path) -> None:
        raise OSError(told)

    monkeypatch.setattr(build, "build_guides", fail)
    for _ in range(2):
        with pytest.raises(OSError, match=told):
            build.main(target)


@WHOLE
def test_the_reference_has_every_public_name_with_its_docstring(site: Path) -> None:
    page = site / "api" / "nanlab.html"
    source, said = page.read_text(encoding="utf-8"), flat(words(page))
    for name in nanlab.__all__:
        assert f'id="{name}"' in source or f"nanlab/{name}.html" in source, name
    doors = [name for name in vars(nanlab.Trace) if not name.startswith("_")]
    for name in doors:
        document = inspect.getdoc(getattr(nanlab.Trace, name)) or ""
        assert f'id="Trace.{name}"' in source
        assert flat(document.split("\n\n")[0]) in said, name
    operators = (site / "api" / "nanlab" / "safe.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in operators for name in nanlab.safe.__all__)


@WHOLE
def test_a_field_of_a_dataclass_is_explained_by_the_comment_beside_it(site: Path) -> None:
    said = words(site / "api" / "nanlab" / "rules.html")
    assert "largest relative change of a healthy element, against float64" in said


@WHOLE
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_a_page_with_its_text_its_outputs_and_its_pictures(
    name: str, site: Path
) -> None:
    import nbformat

    page = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    said = flat(html.unescape(re.sub(r"<[^>]+>", "", page)))
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(flat(cell.source) in said for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert all(flat(o.text) in said for o in outputs if o.output_type == "stream")
    assert len(re.findall(r'<img[^>]+src="data:image/png', page)) >= sum(
        "image/png" in o.get("data", {}) for o in outputs
    )
    widgets = sum("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs)
    assert page.count("Above is a static view") == widgets
    assert "widget-view+json" not in page


@WHOLE
def test_every_link_of_the_site_leads_somewhere_and_none_loads_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        body = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        assert not re.search(r'<(?:script|img|source|iframe)[^>]+src(?:set)?="https?:', text), page
        assert not re.search(r'<link[^>]+href="https?:', text), page
        for target in re.findall(r'(?:href|src|srcset)="([^"#?]+)', body):
            if not target.startswith(("http:", "https:", "data:")):
                assert (page.parent / target).exists(), (
                    f"{page.relative_to(site)} links to {target}"
                )


@WHOLE
def test_a_link_to_a_heading_of_a_guide_finds_it(build: Any, site: Path) -> None:
    for name in build.GUIDES.values():
        body = (site / name).read_text(encoding="utf-8")
        for target, anchor in re.findall(r'<a[^>]+href="([\w.-]*)#([\w-]+)"', body):
            linked = (site / (target or name)).read_text(encoding="utf-8")
            assert f'id="{anchor}"' in linked, f"{name} links to {target}#{anchor}"


@WHOLE
def test_no_page_names_a_place_of_the_machine_it_was_made_on(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert [place for place in ("/tmp/", "/home/", "/root/") if place in text] == [], page.name


@WHOLE
def test_a_cause_that_begins_at_a_row_has_a_picture_with_its_operation(
    causes: tuple[Path, dict[str, Any]],
) -> None:
    folder, made = causes
    exhibits = [(slug, exhibit) for slug, page in made.items() for exhibit in page.exhibits]
    drawn = [(slug, exhibit) for slug, exhibit in exhibits if exhibit.picture]
    assert len(drawn) > 0.8 * len(exhibits)
    for slug, exhibit in drawn:
        assert exhibit.picture in (folder / f"{slug}.html").read_text(encoding="utf-8")
        assert exhibit.picture.count('class="g-op g-found"') == 1, slug
        assert "nan" not in re.findall(r'(?:y|height|cy)="([^"]+)"', exhibit.picture), slug


@WHOLE
def test_every_page_of_the_search_exists(site: Path) -> None:
    text = (site / "search-index.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("const PAGES = ").strip().removesuffix(";"))
    assert {entry["kind"] for entry in index} == {"cause", "notebook", "guide", "name"}
    for entry in index:
        page, _, anchor = entry["url"].partition("#")
        assert (site / page).is_file(), entry
        assert (
            not anchor
            or "safe" in page
            or f'id="{anchor}"' in (site / page).read_text(encoding="utf-8")
        ), entry
    assert {entry["title"] for entry in index} >= {
        *SLUGS,
        "trace.ops",
        "nanlab.safe.sqrt",
        "The first NaN",
    }
