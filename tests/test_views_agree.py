"""One truth in all views: report, annotated source, stepper, path and `print` name one line for a
culprit."""

from __future__ import annotations

import re
import sys
import warnings
from html import unescape
from pathlib import Path

import pytest

import nanlab
from nanlab.rules import Finding
from nanlab.trace import Trace
from nanlab.trace.op import location
from nanlab.views import details
from nanlab.views.html import near_end
from nanlab.views.report import report

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness

FAULTS = [path.stem for path in harness.case_files(kind="ft")]
EVERY = 29  # of which a plain run takes one


def sampled(names: list[str]) -> pytest.MarkDecorator:
    """A test for each program; a plain run takes one of many."""
    marks = (pytest.mark.slow, pytest.mark.conformance)
    return pytest.mark.parametrize(
        "name",
        [pytest.param(n, marks=() if i % EVERY == 0 else marks) for i, n in enumerate(names)],
    )


def watched(name: str) -> Trace:
    module = harness.load(harness.CASES / f"{name}.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, step = module.build()
        with nanlab.watch(model, on_fault="record") as trace:
            for i in range(module.META["n_steps"]):
                step(i)
    return trace


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", html))


def lines_told(trace: Trace, found: Finding) -> dict[str, str]:
    """Where each view says that it began, as it is written there."""
    told = {"print": re.search(r"\((.*?)[,)]", str(found).rsplit("  ", 1)[-1])}
    early = report(trace).early()
    told["report"] = re.search(r'<code class="nl-place">(.*?)</code>', early)
    source = details.source(trace, found)
    marked = re.findall(r'nl-is-culprit[^"]*" data-place="(.*?)"', source)
    assert len(marked) <= 1, "one line is the culprit"
    places = {each: match[1] for each, match in told.items() if match}
    if marked:
        file, _, line = unescape(marked[0]).rpartition(":")
        places["annotated source"] = location(file, int(line))
    path = re.search(r'<ol class="nl-path"><li[^>]*><code>(.*?)</code>', source)
    if path and ":" in path[1]:
        places["path"] = path[1]
    culprit = re.search(r" in (\S+:\d+), step", trace.stepper().culprit.get("text", ""))
    if culprit:
        places["stepper"] = culprit[1]
    return {view: near_end(text_of(place)) for view, place in places.items()}


@sampled(FAULTS)
def test_every_view_names_the_line_of_the_culprit(name: str) -> None:
    trace = watched(name)
    found = trace.culprit
    if found is None or not found.file:
        pytest.skip("a silent fault, or one that has no line")
    told = lines_told(trace, found)
    assert {"print", "report", "stepper"} <= set(told)
    if len(trace.ops[(trace.ops["file"] == found.file).to_numpy(dtype=bool)]):
        assert "annotated source" in told
    assert set(told.values()) == {near_end(location(found.file, found.line))}, told
