"""Finding, Fix and Rule: the report of a fault, its repair, and the function that finds it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import wraps
from operator import attrgetter
from types import ModuleType
from typing import Any, Literal

import pandas as pd

from nanlab.analysis.libraries import report
from nanlab.errors import UsageError
from nanlab.findings.diff import diff_of
from nanlab.program.batch import LeftOut
from nanlab.trace.mode import aside
from nanlab.trace.op import location, module_name

# Lists of findings, fixes and path stations that print well.

STATIONS = 6  # of a path that are printed
LINES = 30  # of a list


class Findings(list["Finding"]):
    """``trace.findings``: a line for each."""

    def __repr__(self) -> str:
        return _numbered([f"{each.severity}: {each}" for each in self], "no findings")


class Fixes(list["Fix"]):
    """``finding.fixes``: verdict, title and code of each."""

    tried = True  # nothing is left to wait for

    def __repr__(self) -> str:
        lines = []
        for fix in self:
            why = f" ({fix.why})" if fix.why else ""
            code = "\n      ".join(fix.lines)
            lines.append(f"{fix.verdict}: {fix.title}{why}\n      {code}")
        return _numbered(lines, "no fixes")


class TriedFixes(Fixes):
    """Fixes tried on first access, as each trial replays the failing step."""

    def __init__(self, make: Callable[[], list[Fix]], given: Sequence[Fix] = ()) -> None:
        super().__init__()
        self._make: Callable[[], list[Fix]] | None = make
        self.given = given  # what the rule itself proposes, untried

    @property
    def tried(self) -> bool:  # type: ignore[override]
        """Whether the fixes were already tried."""
        return self._make is None

    @aside()
    def _fill(self) -> None:
        make, self._make = self._make, None
        if make is not None:
            try:
                super().extend(make())
            except BaseException:  # interrupted: whoever asks next waits for it
                self._make = make
                raise

    def __reduce__(self) -> Any:
        return Fixes, (list(self),)


def _filled(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    @wraps(method)
    def run(self: TriedFixes, *given: Any) -> Any:
        self._fill()
        return method(self, *given)

    return run


for _name in "__iter__ __len__ __getitem__ __contains__ __eq__ __add__ append index".split():
    setattr(TriedFixes, _name, _filled(_name))


class Path(list[dict[str, Any]]):
    """``finding.path``: the results from origin to symptom; prints six stations."""

    def __repr__(self) -> str:
        return "\n".join(self.told()) or "no path"

    def told(self) -> list[str]:
        """A line for each station that is printed."""
        return self._shown(_station)

    def chain(self) -> str:
        """``sqrt → pow → ... 4,990 more → addmm``."""
        return " → ".join(self._shown(lambda each: str(each.get("op") or "leaf")))

    def _shown(self, text: Callable[[dict[str, Any]], str]) -> list[str]:
        left = len(self) - STATIONS
        if left <= 0:
            return [text(each) for each in self]
        return [*map(text, self[: STATIONS - 1]), f"... {left:,} more", text(self[-1])]


def _station(station: dict[str, Any]) -> str:
    place = location(str(station.get("file") or ""), int(station.get("line") or 0))
    where = place or str(station.get("module") or "")
    bad = int(station.get("nonfinite") or 0)
    parts = [str(station.get("phase") or ""), where, f"{bad:,} bad" if bad else ""]
    return f"{station.get('op') or 'leaf'}  ({', '.join(part for part in parts if part)})"


def _numbered(lines: list[str], none: str) -> str:
    shown = [f"{i}  {line}" for i, line in enumerate(lines[:LINES])]
    more = [f"... {len(lines) - LINES:,} more"] if len(lines) > LINES else []
    return "\n".join([*shown, *more]) or none


Severity = Literal["error", "warning", "note"]
Phase = Literal["", "forward", "backward", "update"]
Verdict = Literal["verified", "finite", "fails", "untried"]
# Of several matching rules the most specific names the cause: a later family wins, or a rule
# that says so.
FAMILIES = {
    "fallback": "anything that no other rule explains",
    "general": "arithmetic with zeros and infinities, in any operator",
    "operation": "one operator outside of its domain, or at its edge",
    "composite": "several operations that form a function: a norm, a softmax, a loss",
    "context": "the source or the fate of the value: data, masks, hooks",
    "training": "the training loop: updates, rates, loss scale",
    "arrival": "values sent by another process",
}


@dataclass(frozen=True)
class Edit:
    """Lines ``first`` to ``last`` of a file become ``text``, written without indentation."""

    file: str
    first: int
    last: int
    text: str
    # those lines as they stand, with their indentation
    old: str = field(default="", compare=False)

    def rows(self) -> list[str]:
        """The new lines, indented as the old ones are."""
        indent = self.old[: len(self.old) - len(self.old.lstrip())]
        return [indent + row if row else row for row in self.text.splitlines()]

    @property
    def imports(self) -> list[str]:
        """The lines that it adds, where these only import something."""
        old, rows = self.old.splitlines(), self.text.splitlines()
        new = [row for row in rows if row not in old]
        only = [row for row in rows if row in old] == old
        return new if only and all(row.startswith("import ") for row in new) else []


@dataclass(frozen=True)
class Fix:
    """Code to write instead, and the outcome of replaying the failing step with it.

    ``verified``: all finite, right at the offending elements, healthy ones changed by at most 1 %.
    ``finite``: finite, but not all of that. ``fails``: something is not finite. ``untried``: not
    replayed.
    """

    title: str
    code: str
    verdict: Verdict = "untried"
    why: str = ""  # one clause, where the verdict is not "verified"
    edits: tuple[Edit, ...] = ()
    # the line of an installed package that the code writes otherwise, in the running process alone
    patch: Edit | None = field(default=None, repr=False)
    # largest relative change of a healthy element, against float64; None: not measured, or of what
    # is between edit and loss, where these values are others and loss and gradients are right
    distortion: float | None = None
    gradient_max: float | None = None
    # the rows of the batch that its lines leave out
    left_out: LeftOut | None = field(default=None, repr=False)
    # worth its line only where no other is right
    last_resort: bool = field(default=False, repr=False)
    # numbers of the optimizer, or the loss scale, by name; the step does not run their lines
    settings: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    # the number of an earlier step from which on they hold; -1: none
    since: int = field(default=-1, repr=False)

    def __repr__(self) -> str:
        return f"<{self.verdict} fix: {self.title}: {self.code}>"

    @property
    def may_raise(self) -> bool:
        """Whether it leaves out samples that the step could not be replayed without."""
        return self.left_out is not None and self.verdict == "untried"

    @property
    def verified(self) -> bool:
        """Whether the replayed step came out right."""
        return self.verdict == "verified"

    @property
    def head(self) -> str:
        """``fix``, with the verdict where it is not verified: ``fix (untried: ...)``."""
        why = f": {self.why}" if self.why else ""
        return "fix" if self.verified else f"fix ({self.verdict}{why})"

    @property
    def lines(self) -> list[str]:
        """The lines to write, those first that import what they name."""
        imports = (row for edit in self.edits for row in edit.imports)
        return [*dict.fromkeys(imports), *self.code.splitlines()]

    @property
    def tried(self) -> tuple[Edit, ...]:
        """The edits of the program, or that of an installed package."""
        return self.edits if self.patch is None else (self.patch,)

    def diff(self) -> str:
        """The edits as a unified diff, those of an installed package too; "" without edits."""
        return diff_of(self.tried)


@dataclass(frozen=True)
class Finding:
    """One fault: what, where and why, with evidence and tried fixes."""

    cause: str
    severity: Severity
    title: str
    explanation: str
    _: KW_ONLY
    phase: str
    op: str = ""
    node: int | None = field(default=None, compare=False)  # counted by torch, from run to run
    module: str = ""
    step: int
    file: str = ""
    line: int = 0
    source: str = ""
    symptom: str
    # what follows from the rest is not compared: it may wait to be made
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)
    samples: list[int] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list, compare=False)
    fixes: list[Fix] = field(default_factory=list, compare=False)
    position: int = -1  # row of trace.ops where it began, -1 if there is none
    harmful: bool = False  # it explains the symptom: may be the culprit
    ran: int | None = None  # the step in which its line did, where the harm shows in a later one
    rank: int | None = None  # process of a distributed run in which it began
    # file, line, function inside a package or torch where it was born
    library: tuple[str, int, str] | None = None

    def __post_init__(self) -> None:
        # a list that is of its kind already stays as it is: fixes may wait to be tried
        for name, kind in (("path", Path), ("fixes", Fixes)):
            if not isinstance(getattr(self, name), kind):
                object.__setattr__(self, name, kind(getattr(self, name)))

    def __repr__(self) -> str:
        return f"<{self.severity}: {self}>"

    @property
    def brief(self) -> str:
        """Title, place and first fix in a few lines."""
        lines = [str(self), f"    {self.source}" if self.source else ""]
        first = next(iter(self.fixes), None)
        if first is not None and first.verdict == "fails":
            lines.append("  no single fix helps; trace.cure tries those of all faults together")
        elif first is not None:
            lines += [f"  {first.head}: {first.title}", *(f"    {x}" for x in first.lines)]
        return "\n".join(line for line in lines if line)

    def bug_report(self) -> str:
        """A bug report for the library's authors; "" for a fault in the user's own code."""
        if self.library is None:
            return ""
        patches = [fix.code for fix in self.fixes if fix.patch is not None]
        values = self.evidence.head().to_string() if len(self.evidence) else ""
        return report(self.library, self.title, self.explanation, values, patches)

    @property
    def when(self) -> str:
        """``step 3``; ``step 1, showed in step 3``."""
        shown = f"step {self.step}"
        return shown if self.ran is None else f"step {self.ran}, showed in {shown}"

    def __str__(self) -> str:
        place = location(self.file, self.line) or "unknown line"
        module = f", in {module_name(self.module)}" if self.module else ""
        rank = f", rank {self.rank}" if self.rank is not None else ""
        rank = "" if rank and self.title.startswith(f"{rank[2:]}: ") else rank
        return f"{self.title}  ({place}{module}, {self.when}{rank})"


@dataclass(frozen=True)
class Match:
    """The result of a rule; omitted fields come from the rule and the row."""

    title: str  # one sentence with numbers
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame)
    explanation: str = ""  # added to the rule's own
    samples: list[int] = field(default_factory=list)
    position: int | None = None  # a row of trace.ops; None: the row of the fault
    step: int | None = None
    phase: str | None = None
    op: str | None = None
    symptom: str | None = None
    severity: Severity | None = None
    harmful: bool = False  # a rule over the trace says so itself; a fault is harmful


_HERE = "  # here"  # ends the faulty line of an example


@dataclass(frozen=True)
class Rule:
    """A cause, the function that recognises it, an example program and its fixed version."""

    name: str  # the slug in Finding.cause
    severity: Severity
    explanation: str
    example: str
    fix: str
    judge: Callable[[Any], Any]
    over: Literal["fault", "trace"]
    family: str = "operation"
    more_specific_than: tuple[str, ...] = ()
    origins: Collection[str] = ()
    phase: Phase = ""
    events: Collection[str] = ()

    def finding(
        self, title: str, more: str = "", severity: Severity | None = None, **fields: Any
    ) -> Finding:
        """A finding of this rule over a run; errors are harmful. more: explanation to append."""
        severity = severity or self.severity
        given = {"severity": severity, "harmful": severity == "error", **fields}
        return Finding(
            cause=self.name, title=title, explanation=f"{self.explanation} {more}".strip(), **given
        )

    def retold(self, found: Finding, title: str, more: str = "", **fields: Any) -> Finding:
        """The finding of a fault with this rule's cause, title and explanation."""
        explanation = f"{self.explanation} {more}".strip()
        return replace(found, cause=self.name, title=title, explanation=explanation, **fields)

    def concerns(self, subject: Any) -> bool:
        """Whether the rule applies to a subject, by origin kind, phase and recorded events."""
        if self.events and not any(attrgetter(name)(subject.recording) for name in self.events):
            return False
        if self.over == "trace":
            return True
        if self.origins and subject.kind not in self.origins:
            return False
        if self.phase == "update":
            return bool(subject.in_update)
        return not self.phase or subject.backward == (self.phase == "backward")

    def matches(self, subject: Any) -> list[Match | Finding]:
        """The matches of the rule in a Fault or a Trace.

        A rule may return or yield a Match, a title, (position, title) or a whole Finding; None is
        no match.
        """
        found = self.judge(subject) if self.concerns(subject) else None
        if found is None or isinstance(found, (Match, Finding, str, tuple)):
            found = [found]
        found = [(None, item) if isinstance(item, str) else item for item in found]
        return [
            Match(item[1], position=item[0]) if isinstance(item, tuple) else item
            for item in found
            if item is not None
        ]


def rule(
    severity: Severity = "error",
    *,
    example: str = "",
    fix: str | Mapping[str, str] = "",
    family: str = "operation",
    more_specific_than: tuple[str, ...] = (),
    origins: Collection[str] = (),
    phase: Phase = "",
    events: Collection[str] = (),
) -> Callable[[Callable[[Any], Any]], Rule]:
    """Turn a function into a Rule: its name is the cause (underscores become dashes), its docstring
    the explanation.

    The function takes a ``fault`` (one origin of a symptom, see Fault) or the whole ``trace``: the
    name of its parameter decides. It returns what :meth:`Rule.matches` describes. A Rule is not
    registered: pass it along, ``diagnose(trace, rules=[*BUILTIN, my_rule])``.

    example: a program with the fault; the faulty line ends in ``# here``. fix: the fixed program,
    or replacements in the example.
    family: how specific the rule is, one of FAMILIES. more_specific_than: causes, or its own
    family, whose rules it precedes.
    origins: kinds of origin that the rule is asked about; empty: all. phase: "forward", "backward"
    (derivatives), "update" (writes of a parameter); empty: all. events: attributes of
    ``trace.recording``, such as ``training.flushes``; the rule is asked if one is not empty.

    Raises UsageError for another parameter name or an unknown family.
    """

    def make(judge: Callable[[Any], Any]) -> Rule:
        subject = next(iter(inspect.signature(judge).parameters), "")
        if subject not in ("fault", "trace"):
            raise UsageError(
                "expected a rule with a parameter called 'fault' or 'trace', got"
                f" {judge.__name__}({subject}); rename it"
            )
        if family not in FAMILIES:
            raise UsageError(f"expected one of the families {', '.join(FAMILIES)}, got {family!r}")
        name = judge.__name__.strip("_").replace("_", "-")
        text = " ".join((inspect.getdoc(judge) or "").split())
        over: Literal["fault", "trace"] = "fault" if subject == "fault" else "trace"
        shown = textwrap.dedent(example).strip()
        cured = textwrap.dedent(fix).strip() if isinstance(fix, str) else shown.replace(_HERE, "")
        for old, new in () if isinstance(fix, str) else fix.items():
            cured = cured.replace(old, new)
        about = (family, more_specific_than, origins, phase, events)
        return Rule(name, severity, text, shown, cured, judge, over, *about)

    return make


def ranked(rules: Sequence[Rule]) -> list[Rule]:
    """Rules, the most specific first; of equals, the later one.

    Raises UsageError if ``more_specific_than`` forms a circle.
    """
    families = list(FAMILIES)
    order = sorted(
        rules, key=lambda one: (families.index(one.family), one.family in one.more_specific_than)
    )[::-1]
    for _ in rules:
        moved = False
        for one in [r for r in order if r.more_specific_than]:
            own, names = order.index(one), one.more_specific_than
            first = next(
                (i for i in range(own) if order[i].name in names and order[i].family == one.family),
                own,
            )
            if first < own:
                order.insert(first, order.pop(own))
                moved = True
        if not moved:
            return order
    circle = ", ".join(sorted({one.name for one in rules if one.more_specific_than}))
    raise UsageError(f"more_specific_than of these rules forms a circle: {circle}")


def rules_of(module: ModuleType) -> list[Rule]:
    """The rules that a module defines, in their order."""
    return [
        one
        for one in vars(module).values()
        if isinstance(one, Rule) and one.judge.__module__ == module.__name__
    ]
