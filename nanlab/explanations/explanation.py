"""Explanation: what an exception means; Meaning: how one is recognised and explained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pandas as pd

from nanlab.findings.rule import Fix
from nanlab.trace.escapes import Failure, Operand
from nanlab.trace.op import module_name
from nanlab.trace.recording import Recording


@dataclass(frozen=True)
class Explanation:
    """What an exception means: where it comes from, why, the evidence, what to write instead."""

    cause: str  # a slug: "graph-cut", "index-out-of-range", ...
    title: str  # one sentence with what was seen
    explanation: str
    file: str = ""  # of the line that is at fault, which need not be the one that raised
    line: int = 0
    source: str = ""
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame)
    fixes: list[Fix] = field(default_factory=list)
    module: str = ""
    # file, line and text of the line to change, where it is another
    change: tuple[str, int, str] | None = None

    def __str__(self) -> str:
        from nanlab.views.explanation import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from nanlab.views.explanation import as_html

        return as_html(self)


@dataclass(frozen=True)
class Case:
    """An exception with all that is known of it."""

    failure: Failure
    match: re.Match[str]  # of the pattern in the message
    recording: Recording | None  # of the watch it was raised in

    def explain(self, cause: str, title: str, explanation: str, **more: Any) -> Explanation:
        """An Explanation at the line that raised, unless ``more`` says another."""
        failure = self.failure
        here: dict[str, Any] = {
            "file": failure.file,
            "line": failure.line,
            "source": failure.source,
            "module": failure.module,
        }
        return Explanation(cause, title, explanation, **(here | more))

    @property
    def inside(self) -> str:
        """``, in encoder.0 (Linear)``; empty outside of every module."""
        module, kind = module_name(self.failure.module), self.failure.module_type
        if not module or module == kind:  # the outermost one bears the name of its class
            return f", in {kind}" if kind else ""
        return f", in {module} ({kind})" if kind else f", in {module}"


Judge = Callable[[Case], "Explanation | None"]


@dataclass(frozen=True)
class Meaning:
    """A message that is known, and the function that explains it."""

    pattern: re.Pattern[str]
    judge: Judge
    first: bool = False  # asked before the others, for its pattern is the narrower one


def meanings_of(module: ModuleType) -> list[Meaning]:
    """The meanings that a module defines, those in its tables too, in their order."""
    own: list[Meaning] = []
    for value in vars(module).values():
        own += [
            one
            for one in (value if isinstance(value, list) else [value])
            if isinstance(one, Meaning)
        ]
    return sorted(own, key=lambda one: not one.first)


def says(pattern: str, cause: str, title: str, why: str, *fixes: tuple[str, str]) -> Meaning:
    """A message of one meaning; ``{1}``: group, ``{inside}``: module."""

    def explained(case: Case) -> Explanation:
        words = ("", *(group or "" for group in case.match.groups()))
        told = [text.format(*words, inside=case.inside) for text in (title, why)]
        codes = [re.sub(r"\{(\d)\}", lambda n: words[int(n[1])], code) for _, code in fixes]
        return case.explain(
            cause,
            *told,
            evidence=operands_frame(case.failure.operands),
            fixes=advice(*zip((name for name, _ in fixes), codes, strict=True)),
        )

    return Meaning(re.compile(pattern), explained)


def means(pattern: str, first: bool = False) -> Callable[[Judge], Meaning]:
    """Decorate an explainer of messages that hold ``pattern``; ``first``: before the others."""
    return lambda judge: Meaning(re.compile(pattern), judge, first)


def advice(*pairs: tuple[str, str]) -> list[Fix]:
    """Fixes that cannot be tried on one operation: (title, code) of each."""
    return [Fix(title, code) for title, code in pairs]


def places_frame(recording: Recording, rows: Iterable[tuple[str, int]]) -> pd.DataFrame:
    """A table of rows, each with what it has to do with the error: (role, position)."""
    table: list[tuple[Any, ...]] = []
    for role, position in rows:
        row, source = recording.op(position), recording.sources.get(position)
        place: tuple[Any, ...] = ("", source.name or source.kind if source else "", "", pd.NA)
        if row is not None:
            place = row.name, row.module, row.file, row.line
        table.append((role, *place, position))
    return pd.DataFrame(table, columns=["role", "op", "module", "file", "line", "position"])


def operands_frame(operands: Iterable[Operand]) -> pd.DataFrame:
    """A table of the tensors that an operation was given."""
    table = [
        {"argument": o.name, "shape": shape_text(o.shape), "dtype": o.dtype, "device": o.device}
        for o in operands
    ]
    return pd.DataFrame(table)


def shape_text(shape: Iterable[int]) -> str:
    """``4 x 10``; ``scalar`` without dimensions."""
    return " x ".join(map(str, shape)) or "scalar"


def spot(file: str, line: int) -> str:
    """``train.py:41``; says so where it is unknown."""
    return f"{file.rsplit('/', 1)[-1]}:{line}" if file else "an unknown line"
