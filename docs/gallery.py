"""The gallery of causes: what each rule says of its own example, and that its cure is silent."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from glance import glance
from IPython.core.formatters import DisplayFormatter

import nanlab
from nanlab.rules import BUILTIN, Finding, Rule
from nanlab.views import register_formatters

IMPORTS = (
    "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
)
MARK = re.compile(r"\s*# here\b.*")
SECONDS = re.compile(r"; [\d.e-]+ s\.")  # at the end of a verdict; differs from run to run


@dataclass(frozen=True)
class Exhibit:
    """A rule, and what really came when its two programs were watched."""

    rule: Rule
    example: str  # without the mark at the end of the faulty line
    marked: tuple[int, ...]  # the faulty lines of the example, from 1
    finding: Finding
    html: str  # the finding as a notebook shows it
    picture: str  # the magnitudes around it, as SVG; "" where it belongs to no row
    verdict: str  # what nanlab says of the cured program
    left: tuple[str, ...]  # errors that nanlab still finds in it: none, or the gallery is not built


@dataclass(frozen=True)
class Page:
    """A cause with the rules that know it: more than one where it is met in more than one place."""

    slug: str
    topic: str  # subject of the module of its first rule
    exhibits: tuple[Exhibit, ...]


def watched(program: str, name: str) -> nanlab.Trace:
    """A watch of a program that lies in a file of the working folder, so that its lines can be
    shown."""
    Path(name).write_text(program + "\n", encoding="utf-8")
    linecache.checkcache(name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(IMPORTS, namespace)
    torch.manual_seed(0)
    code = compile(program, name, "exec")
    with nanlab.watch(on_fault="record") as trace:
        exec(code, namespace)
    return trace


def exhibit(rule: Rule) -> Exhibit:
    """Run the example and the fix of a rule.

    Raises LookupError where the rule does not find its own example.
    """
    marked = tuple(
        number
        for number, line in enumerate(rule.example.splitlines(), start=1)
        if MARK.search(line)
    )
    example = "\n".join(MARK.sub("", line) for line in rule.example.splitlines())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        trace = watched(example, "example.py")
        finding = next((f for f in trace.findings if f.cause == rule.name), None)
        if finding is None:
            raise LookupError(
                f"the rule {rule.name!r} does not find its own example; it found {trace.findings}"
            )
        html, picture = shown(finding), glance(trace, finding)
        cured = watched(rule.fix, "cured.py")
        left = tuple(str(f) for f in cured.findings if f.severity == "error")
        verdict = SECONDS.sub(".", str(cured.report()).splitlines()[0])
    return Exhibit(rule, example, marked, finding, html, picture, verdict, left)


@cache
def _formatter() -> DisplayFormatter:
    class Shell:
        display_formatter = DisplayFormatter()

    register_formatters(Shell)  # type: ignore[arg-type]
    return Shell.display_formatter


def shown(thing: object) -> str:
    """The HTML with which a notebook shows an object of nanlab."""
    return str(_formatter().format(thing)[0]["text/html"])


def pages(rules: tuple[Rule, ...] = BUILTIN) -> Iterator[Page]:
    """A page for each cause, in the order of the rules."""
    for slug, same in by_cause(rules).items():
        yield Page(slug, topic_of(same[0]), tuple(exhibit(rule) for rule in same if rule.example))


def by_cause(rules: Iterable[Rule] = BUILTIN) -> dict[str, list[Rule]]:
    """The rules of each cause, in the order of the rules."""
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        found.setdefault(rule.name, []).append(rule)
    return found


def topic_of(rule: Rule) -> str:
    """The subject of the module that a rule is in: the first line of its docstring."""
    return (sys.modules[rule.judge.__module__].__doc__ or "").strip().splitlines()[0].rstrip(".")
