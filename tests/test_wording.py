"""One concept, one word: the glossary of CONTRIBUTING.md, and the words that it replaces."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GLOSSARY = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Glossary")[2]
TERMS = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", GLOSSARY, re.MULTILINE)[1:]
INSTEAD_OF = {  # what would be a second word for a term of the glossary
    "absorbed update": r"standstills?|stand(s|ing)? still|vanish\w+ updates?|lost updates?",
    "born, carried, turned, healed, intended": r"self-?inflicted|contaminat\w+",
    "capsule": r"dump files?|trace archives?",
    "cause": r"error class(es)?|failure modes?|root causes?",
    "culprit": r"offenders?|guilty lines?|perpetrators?",
    "cure": r"remed(y|ies)|antidotes?",
    "distortion": r"relative damage",
    "exponent histogram": r"histograms? of exponents|magnitude histograms?",
    "fix": r"hot-?fix(es)?|work-?arounds?",
    "flush": r"squash\w* to zero|underflow(s|ed|ing)? to (zero|0)",
    "loss scale": r"scaling factors?|loss-scaling factors?|scale factors?",
    "module": r"sub-?modules?|nn-?modules?",
    "node": r"grad-?fns?|graph vert(ex|ices)",
    "operation, operator": r"op calls?|kernel calls?",
    "origin": r"birth ?places?|places? of birth|point of origin",
    "overflow": r"blow(s|n)? past the (range|maximum)",
    "path": r"trails?|provenance chains?",
    "position": r"row ids?|row indices",
    "replay": r"re-?execut\w+|re-?runs?",
    "sample": r"mini-?batch (item|element|entr)\w*",
    "sink": r"harm points?",
    "subnormal": r"denormal\w*|denorms?",
    "training step": r"optimi[sz]er iterations?|train steps?",
    "ulp": r"units? in the last place",
    "verdict": r"fix status(es)?",
}
# nobody acts; say who does
STIFF = r"\b(it is told|is told that|that which|those which|the which)\b"


def strings() -> Iterator[tuple[str, str]]:
    """(place, text) of every docstring and message of the package; a single word is a name."""
    for path in sorted((ROOT / "nanlab").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value.strip()
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def prose() -> Iterator[tuple[str, str]]:
    """(place, text) of every page and of the text of every notebook; code is left out."""
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]:
        text = path.read_text(encoding="utf-8").partition("## Glossary")[0]
        yield path.name, re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)
    import nbformat  # for which seconds go by, in the process alone that reads them

    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb")):
        for i, cell in enumerate(nbformat.read(path, as_version=4).cells):
            if cell.cell_type == "markdown":
                yield f"{path.name}[{i}]", re.sub(r"`[^`\n]+`", "", cell.source)


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    return [*strings(), *prose()]


def test_the_glossary_has_about_thirty_terms_in_order_each_with_one_meaning() -> None:
    names = [term for term, _ in TERMS]
    assert 30 <= len(names) <= 45
    assert names == sorted(set(names))
    assert all(meaning[0].islower() and not meaning.endswith(".") for _, meaning in TERMS)


@pytest.mark.parametrize("term", INSTEAD_OF)
def test_no_page_docstring_or_message_has_a_second_word_for_a_term(
    term: str, texts: list[tuple[str, str]]
) -> None:
    assert term in dict(TERMS)
    second = re.compile(rf"\b(?:{INSTEAD_OF[term]})\b", re.IGNORECASE)
    found = [
        f"{place}: {match[0]!r}, write: {term}"
        for place, text in texts
        if (match := second.search(text))
    ]
    assert found == []


def test_somebody_acts(texts: list[tuple[str, str]]) -> None:
    assert [place for place, text in texts if re.search(STIFF, text, re.IGNORECASE)] == []
