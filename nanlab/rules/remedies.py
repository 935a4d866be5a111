"""The fixes of a finding: what could be written instead, each tried on the whole failing step."""

from __future__ import annotations

import ast
import io
import itertools
import math
import re
import textwrap
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nanlab.analysis.libraries import (
    PASS,
    UNLIKELY,
    bounded_where_made,
    forms_between,
    is_told_elsewhere,
    rewritings,
    scripted_at,
    text_of_library,
)
from nanlab.analysis.verdict import RAISES, ROUNDED, WITHIN, Judge, Move
from nanlab.errors import NanlabError
from nanlab.exact.numbers import work
from nanlab.findings.fault import listed
from nanlab.findings.rule import Edit, Finding, Fix, TriedFixes
from nanlab.fixes.candidates import Candidate, candidates
from nanlab.fixes.example import Place
from nanlab.fixes.guards import FILL, INPUTS, PRESENT, TARGETS
from nanlab.fixes.pages import Pages
from nanlab.fixes.proposals import (
    at_makers,
    carried,
    dtypes_by_name,
    filled,
    library_proposals,
    makes_weight,
    pages_of,
    proposals,
    proposals_at,
    reads_masks,
    reads_probabilities,
    scores_shares,
    spans_of_makers,
)
from nanlab.fixes.removable import Removable, removables
from nanlab.program.edit import CHANGES_NOTHING, NOT_FOUND
from nanlab.program.expression import names_of
from nanlab.program.imports import computing, imported
from nanlab.program.limited import DECORATOR, under_limit
from nanlab.program.patched import patch
from nanlab.program.readings import text_of as source_text
from nanlab.program.rerun import first_of_fault, grouped, step_that_shows, window
from nanlab.rules.advice import advised, with_arguments
from nanlab.rules.left_out import (
    DEVIATIONS,
    WEIGH_MORE,
    is_mean_of_samples,
    left_out,
    without_last_batch,
    without_samples,
)
from nanlab.rules.readers import other_readers
from nanlab.rules.settings import tried_settings
from nanlab.rules.titles import told_apart
from nanlab.rules.untried import left_alike, likeliest_first
from nanlab.trace import Trace
from nanlab.trace.recording import Recording

ROUNDING = 1e-6  # relative; a distortion up to this is no reason to prefer a fix in float32
FOREIGN = 1.0  # relative change of healthy values with which a program is another one
WORK = 6_000_000  # for the fixes of all findings together: about 6 s


def with_fixes(trace: Trace, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their fixes, which are tried when somebody asks for them; a note on the
    operation of an error leaves them to it."""
    clock = Clock()
    errors = {(f.step, f.file, f.line, f.op) for f in findings if f.severity == "error"}
    return [
        replace(f, fixes=TriedFixes(partial(_tried_fixes, trace, f, clock), f.fixes))
        if f.severity != "note" or (f.step, f.file, f.line, f.op) not in errors
        else f
        for f in findings
    ]


@dataclass
class Clock:
    """Work that the fixes of a trace may take together."""

    left: float = field(default_factory=lambda: WORK)

    def spent(self) -> bool:
        """Whether it is done."""
        return self.left <= 0


def judge_for(trace: Trace, finding: Finding, first: int = 0) -> Judge | str:
    """The judge of the step in which a finding shows; first: the number of the trace's first step,
    by which that of the finding counts."""
    step = finding.step - first if finding.step >= 0 else finding.step
    shown = step_that_shows(trace.recording, step, finding)
    begin = first_of_fault(trace.recording, shown, finding.position)
    lost = finding.symptom == "silent-underflow" and finding.harmful and finding.cause in _LOSSES
    lost = lost and finding.phase != "optimizer"
    dead = finding.cause == "dead-gradient"
    return judge_of(trace, shown, finding.cause if lost or dead else "", begin)


def _tried_fixes(trace: Trace, finding: Finding, clock: Clock) -> list[Fix]:
    """What to write instead, each tried on the whole step; what fails here becomes a note."""
    shown = _shown_last(trace, finding)
    judge = judge_for(trace, shown)
    sharing = nullcontext() if isinstance(judge, str) else judge.sharing()
    with warnings.catch_warnings(action="ignore"), sharing:  # the run itself has warned
        found = _tried(trace, shown, clock, partial(_beyond, trace, finding))
    return [with_imports(trace, _with_readers(trace, finding, fix)) for fix in told_apart(found)]


def _with_readers(trace: Trace, finding: Finding, fix: Fix) -> Fix:
    """A fix that says where else is read what it makes a function return."""
    lines = other_readers(fix, finding.line, partial(file_text, trace))
    if not lines:
        return fix
    places = "line" if len(lines) == 1 else "lines"
    told = f"{places} {listed([*map(str, lines)], 3)} {'reads' if len(lines) == 1 else 'read'}"
    return replace(fix, title=f"{fix.title}; {told} what it changes, too: adapt that")


def with_imports(trace: Trace, fix: Fix) -> Fix:
    """A fix with an edit more for what its lines name and their file does not import."""
    return replace(fix, edits=imports_added(trace, fix.edits))


def without_imports(trace: Trace, fix: Fix) -> Fix:
    """A fix with the edits alone that compute something."""
    left = computing(fix.edits, partial(file_text, trace))
    return replace(fix, edits=tuple(edit for edit in fix.edits if edit in left))


def imports_added(trace: Trace, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Edits, and those that import what they name."""
    found = list(edits)
    for rows in imported(edits, partial(file_text, trace)):
        old = file_text(trace, rows.file).splitlines()[rows.first - 1 : rows.last]
        found.append(Edit(rows.file, rows.first, rows.last, rows.text, "\n".join(old)))
    return tuple(found)


def _shown_last(trace: Trace, finding: Finding) -> Finding:
    """A finding of every step as it shows in the last, where its own is no longer kept."""
    if finding.symptom != "silent-underflow" or trace.recording.at(finding.position):
        return finding
    ops = trace.ops
    same = (ops["file"] == finding.file) & (ops["line"] == finding.line) & (ops["op"] == finding.op)
    own = same & (ops["phase"] == finding.phase)
    again = ops[own if own.any() else same]  # of a derivative its operation
    last = [*zip(again["step"].tolist(), again["position"].tolist(), strict=True)][::-1]
    # of a backward pass the last: a gradient that is cast to half again before is lost again
    forward = finding.phase != "backward"
    lost = (each for each in last if forward and _became_zero(trace.recording, each[1]))
    step, at = next(lost, next(iter(last), (finding.step, finding.position)))
    return replace(finding, step=step, position=at)


def _became_zero(recording: Recording, position: int) -> bool:
    """Whether a result is all zero, and nothing that it was made of is."""
    made, *read = map(recording.stats, (position, *recording.parents(position)))
    return made is not None and made.all_zero and not any(s is None or s.all_zero for s in read)


def _tried(
    trace: Trace, finding: Finding, clock: Clock, beyond: Callable[[], list[Fix]]
) -> list[Fix]:
    """What to write instead, tried while the judge shares what goes before.

    beyond: what concerns more than the line.
    """
    started = work()
    pages = _pages(trace, finding, partial(file_text, trace))
    named = _named(trace, finding, pages)
    at_line = [fix for fix in named if not fix.edits or _is_at(fix, finding)]
    elsewhere = [fix for fix in named if not any(fix is other for other in at_line)]
    guards = guarded(trace, finding, pages)
    if scripted_at(trace.recording, finding.position, finding.op) is not None:
        at_line, elsewhere, *guards = map(_compilable, (at_line, elsewhere, *guards))
    # forms of other lines last, and before them what runs its expression many times: one that
    # fails can take all the work
    slow = [fix for fix in at_line if fix.title.startswith(REMOVABLE)]
    at_line = [fix for fix in at_line if not fix.title.startswith(REMOVABLE)]
    groups = [at_line, *guards[:1], slow, elsewhere, *guards[1:]]
    if finding.cause in _MASKS:
        groups.insert(0, groups.pop())
    clock.left -= work() - started
    found: list[Fix] = []
    first: list[Fix] = []  # before which nothing is put that was tried later
    for group in groups:
        is_form = any(group is forms for forms in (at_line, slow, elsewhere))
        if is_form or group is guards[0] or finding.cause in _MASKS or not _has_verified(found):
            fresh = [f for f in distinct([*found, *group]) if f not in found]
            tried: list[Fix] = []
            for fix in fresh:
                if not (fix.last_resort and _has_verified([*found, *tried])):
                    tried.append(_judged(trace, finding, fix, clock))
            kept = tried if is_form else _worth_telling(tried, _has_verified(found))
            before = len(first) if group is slow else len(found)
            found[before:before] = kept
            first = [*found] if group is at_line else first
    if not _has_verified(found) and finding.cause != "dead-gradient":  # which is finite
        limited = _limited(trace, finding, pages, clock)
        told = {"verified", "finite"} - {fix.verdict for fix in found}
        found += [fix for fix in limited if fix.verdict in told]
    if not _has_verified(_of_library(found, False)) and finding.cause not in _OF_NO_SAMPLE:
        found += _leaving_out(trace, finding, judged=True)
    found += without_last_batch(trace, finding)
    if finding.cause in _GAPS:
        found = _without_data(trace, finding, found)
    advice = [fix.title for fix in found if not fix.edits]
    # of what the program passes, and of the library's lines
    found = [f for own in (False, True) for f in _helpful(_of_library(found, own), finding)]
    helps = any(fix.verdict in ("verified", "finite") for fix in found)
    found = distinct([*found, *(() if helps and finding.cause in _GAPS else beyond())])
    found = [_said_of_none(with_arguments(f, finding.source), finding, pages) for f in found]
    if finding.library is not None:  # what the user can write comes before what cannot be written
        found.sort(key=lambda fix: not fix.tried)
        found.sort(key=_rank_in_library)
        patches = [f for f in found if f.patch is not None]
        found = [f for f in found if f.patch is None or f in patches[:MOST_PATCHES]]
        fed = (f for f in found if f.title.startswith(PASS) and f.verdict == "untried")
        rest = [*fed][MOST_TOLD:]
        return [f for f in found if not any(f is other for other in rest)]
    found = sorted(found, key=lambda fix: _rank(fix, _stands_for(fix, advice)))
    found = nearest_first(found, finding)
    span = trace.recording.spans[trace.recording.at(finding.position).place]
    return likeliest_first(found, file_text(trace, finding.file), span)


def _compilable(fixes: Sequence[Fix]) -> list[Fix]:
    """The fixes that torch.jit.script compiles: it knows no function of nanlab."""
    return [fix for fix in fixes if "nanlab." not in fix.code]


def _leaving_out(trace: Trace, finding: Finding, judged: bool = False) -> list[Fix]:
    """The batch without the samples that it failed for; judged: where these have no right value,
    it is the right one if each of the others counts by itself."""
    judge = judge_for(trace, finding)
    if isinstance(judge, str):
        return []
    try:
        found = without_samples(trace, finding, judge.where, judge.values)
        if judged and any(fix.left_out for fix in found) and _is_undefined(trace, finding, judge):
            found = [is_mean_of_samples(judge.where, fix) for fix in found]
        return found
    except Exception as error:
        _note(trace, f"no samples to leave out ({type(error).__name__}: {error})")
        return []


def _is_undefined(trace: Trace, finding: Finding, judge: Judge) -> bool:
    """Whether there is nothing right to compute for what failed: the deviation of one sample, and
    a loss that tends to no number."""
    deviates = trace.recording.at(finding.position).base_name in DEVIATIONS
    if finding.cause == "empty-reduction" and deviates:
        return True
    return finding.cause not in _GAPS and judge.tends_nowhere()


def _without_data(trace: Trace, finding: Finding, fixes: Sequence[Fix]) -> list[Fix]:
    """The fixes of bad data, without those that fail, which are part of no cure; and what leaves
    such data out, whose verdict says so."""
    kept = [fix for fix in fixes if fix.verdict != "fails"]
    if not any(fix.left_out for fix in kept):
        kept += _leaving_out(trace, finding)
    return [_honest(trace.recording, finding, fix) for fix in kept]


def _honest(recording: Recording, finding: Finding, fix: Fix) -> Fix:
    """A fix which says so where all it changes is that bad targets are not counted, and where it
    makes targets up."""
    if fix.title == FILL and fix.verified and finding.cause == _TARGET:
        return replace(fix, verdict="finite", why=_MADE_UP)
    if fix.title != PRESENT:
        return fix
    known = (recording.stats(at) for at in recording.at(finding.position).inputs)
    bad = [(stats.nonfinite, stats.numel) for stats in known if stats and stats.nonfinite]
    for count, numel in bad if fix.verdict == "finite" else ():
        weight = count / (numel - count) if count < numel else math.inf
        if math.isclose(weight, fix.distortion or 0.0, rel_tol=WITHIN):
            return replace(fix, why=left_out(count, numel, "target"))
    return fix


def _has_verified(fixes: Sequence[Fix]) -> bool:
    return any(fix.verified for fix in fixes)


def nearest_first(fixes: Sequence[Fix], finding: Finding) -> list[Fix]:
    """Of fixes of one kind that are as good, the one at the finding's line first, then what leaves
    the fewest operations alike as they are, and the shorter; each kind keeps its places."""
    groups = grouped(fixes, lambda fix: (fix.title, _rank(fix)))

    def size(fix: Fix) -> tuple[bool, tuple[int, int], int]:
        return not _is_at(fix, finding), left_alike(fix, finding.op), len(fix.code)

    ordered = {kind: iter(sorted(group, key=size)) for kind, group in groups.items()}
    return [next(ordered[fix.title, _rank(fix)]) for fix in fixes]


def _is_at(fix: Fix, finding: Finding) -> bool:
    """Whether a fix writes the finding's line."""
    return any(e.file == finding.file and e.first <= finding.line <= e.last for e in fix.edits)


def _beyond(trace: Trace, finding: Finding) -> list[Fix]:
    """What concerns more than the line: a setting that was tried, else advice."""
    try:
        return tried_settings(trace, finding) or [_explained(f) for f in advised(trace, finding)]
    except Exception as error:
        _note(trace, f"no advice for {finding.cause} ({type(error).__name__}: {error})")
        return []


def _helpful(fixes: Sequence[Fix], finding: Finding) -> list[Fix]:
    """The fixes without those nobody would take: failing or untried beside right, distorting beside
    finite, of lines that did not run, and what cannot be run. What fails by itself may yet be part
    of a cure."""
    right = any(fix.verified for fix in fixes)
    silent = finding.symptom == "silent-underflow"  # what changes no value loses as much
    kept = [
        fix
        for fix in fixes
        if not (fix.tried and fix.verdict == "fails" and (right or fix.why.startswith(RAISES)))
        and not (fix.tried and fix.verdict == "untried" and right)
        and (fix.why not in (CHANGES_NOTHING, NOT_FOUND) or (_is_at(fix, finding) and not silent))
    ]
    advice = [f.title for f in kept if not f.edits]
    foreign = (f for f in kept if f.verdict == "finite" and (f.distortion or 0.0) >= FOREIGN)
    left = [f for f in foreign if not _stands_for(f, advice)]
    mild = [f for f in kept if not any(f is other for other in left)]
    if any(f.verdict in ("verified", "finite") for f in mild):
        kept = mild
    told = [f.title for f in kept if f.edits]  # in the program's words
    kept = [f for f in kept if f.tried or not any(each.startswith(f.title) for each in told)]
    failing = [f for f in kept if f.verdict == "fails"][MOST_TOLD:]
    return [f for f in kept if not any(f is other for other in failing)]


def _said_of_none(fix: Fix, finding: Finding, pages: Pages) -> Fix:
    """Advice whose ``x`` is no variable of the program, but for the finding's own."""
    if fix.edits or "x" not in names_of(pages.text) or re.search(r"\bx\b", finding.source):
        return fix
    return replace(fix, code=re.sub(r"\bx\b", "values", fix.code))


def _stands_for(fix: Fix, advice: Sequence[str]) -> bool:
    """Whether a fix says in the program's words what the rule advises, and changes what it is to
    change."""
    return bool(fix.edits) and any(fix.title.startswith(each) for each in advice)


def _of_library(fixes: Sequence[Fix], own: bool) -> list[Fix]:
    """The fixes that patch a library, or those that write the program's lines."""
    return [fix for fix in fixes if (fix.patch is not None) is own]


def _worth_telling(guards: Sequence[Fix], cured: bool) -> list[Fix]:
    """Of bounded operations what helps; else what could not be tried, and some that come near."""
    good = [f for f in guards if f.verified]
    finite = (f for f in guards if f.verdict == "finite")
    near = sorted(finite, key=lambda f: f.distortion or 0.0)[:MOST_TOLD]
    open_ = [f for f in guards if f.verdict == "untried"][:MOST_TOLD]
    if good or cured:
        return [*good, *near]
    return [*open_, *near] or [f for f in guards if f.verdict == "fails"][:MOST_TOLD]


def _pages(trace: Trace, finding: Finding, read: Callable[[str], str]) -> Pages:
    """The text of a finding's file, its line alone where that is not at hand, and of others."""
    text = read(finding.file) or finding.source
    return pages_of(trace.recording, finding.position, finding.file, text, read)


def _named(trace: Trace, finding: Finding, pages: Pages) -> list[Fix]:
    """The line by the catalogue of expressions, and what rule and settings give."""
    found = list(finding.fixes)
    try:
        found = [
            *passed_otherwise(trace, finding, pages),
            *patched_library(trace, finding),
            *rewritten(trace, finding, pages),
            *found,
        ]
    except Exception as error:
        _note(trace, f"no fixes for {finding.cause} ({type(error).__name__}: {error})")
    return distinct([_explained(fix) for fix in found])


def proposed(trace: Trace, finding: Finding, read: Callable[[str], str] | None = None) -> list[Fix]:
    """What could be written instead, untried.

    read: gives the text of a file by its name, where it is not that on disk.
    """
    pages = _pages(trace, finding, read or partial(file_text, trace))
    finding = replace(finding, fixes=list(getattr(finding.fixes, "given", finding.fixes)))
    groups = [_named(trace, finding, pages), *guarded(trace, finding, pages)]
    return distinct([fix for group in groups for fix in group])


def _judged(trace: Trace, finding: Finding, fix: Fix, clock: Clock) -> Fix:
    """A fix with the verdict of the whole step."""
    if not fix.tried or fix.verdict == "fails" or fix.why:
        return fix
    if clock.spent():
        why = "trying others took all the work that is allowed"
        return replace(fix, verdict="untried", why=why)
    started = work()
    judge = judge_for(trace, finding)
    if isinstance(judge, str):
        return replace(fix, verdict="untried", why=judge)
    found = judge.judge(fix.tried, another_form=REWRITTEN in fix.title)
    clock.left -= work() - started
    if found.read:
        return replace(fix, verdict="untried", why=found.read)
    return replace(
        fix,
        verdict=found.verdict,
        why=found.why,
        distortion=found.distortion,
        gradient_max=found.gradient_max,
    )


def judge_of(trace: Trace, step: int, revives: str = "", begin: int = -1) -> Judge | str:
    """The judge of a step, which finds out its truth once; why there is none. begin: the step that
    it runs from, where that is an earlier one."""
    begin = begin if 0 <= begin < step else step
    name = f"judge {step} {revives} {begin}"
    return trace._cached(name, lambda recording: _judge_of(recording, step, revives, begin))


def _judge_of(recording: Recording, step: int, revives: str, begin: int) -> Judge | str:
    try:
        where = window(recording, step, begin) if step >= 0 else window(recording)
        return Judge(where, revives, _moves)
    except NanlabError as error:
        return str(error)


def _moves(file: str, text: str, line: int) -> Iterator[Move]:
    """What moves a variable of a line, in all its places at once."""
    for site in removables(text, line):
        yield partial(_moved, file, site)


def _moved(file: str, site: Removable, distance: float) -> Edit:
    return Edit(file, site.first, site.last, site.moved(distance))


def distinct(fixes: Sequence[Fix]) -> list[Fix]:
    """Each way of writing the program once."""
    seen: set[Any] = set()
    found = []
    for fix in fixes:
        key = tuple((e.first, e.last, _plain_text(e.text)) for e in fix.edits) or (
            fix.title,
            fix.code,
        )
        if key not in seen:
            seen.add(key)
            found.append(fix)
    return found


def _plain_text(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:
        return text


def passed_otherwise(trace: Trace, finding: Finding, pages: Pages) -> list[Fix]:
    """What the user's line could pass to the library in which the fault arose."""
    if finding.library is None or not finding.file or not finding.line:
        return []
    library, recording = finding.library, trace.recording
    if makes_weight(recording, finding.position):
        return []
    span = pages.span(finding.file, recording.spans[recording.at(finding.position).place])
    line = pages.line(finding.file, finding.line)
    found = rewritings(
        pages.text,
        line,
        library,
        library[0],
        finding.cause,
        (scores_shares if finding.cause == UNLIKELY else reads_probabilities)(
            recording, finding.position
        ),
        reads_masks(recording, finding.position),
        span,
        kept := _kept_inside(trace, finding),
        dtypes_by_name(recording, finding.position),
    )[:MOST_PASSED]
    made = spans_of_makers(recording, finding.position, pages)
    found += bounded_where_made(pages.text, made, finding.cause, kept)
    return _as_fixes([Candidate(*astuple(e)) for e in found], pages)


def _kept_inside(trace: Trace, finding: Finding) -> list[str]:
    """The forms in which an operand of a library's operation would be within its domain: what the
    program passes may be that operand."""
    library = finding.library
    if library is None or finding.phase == "optimizer" or not (text := text_of_library(library)):
        return []
    found = dict[str, None]()
    for each in library_proposals(trace.recording, finding.position, text, library[1]):
        rows = text.splitlines()[each.first - 1 : each.last]
        with suppress(SyntaxError):
            trees = (ast.parse(textwrap.dedent(t)) for t in ("\n".join(rows), each.text))
            found |= dict.fromkeys(forms_between(*trees))
    plain = (form for form in found if not any(each in form for each in (":=", "torch.", "nanlab")))
    return [form for form in plain if form.count("{x}") == 1][:MOST_KEPT]  # it may be a call


def patched_library(trace: Trace, finding: Finding) -> list[Fix]:
    """Patches of the library's own line; torch itself is patched by nobody."""
    library = finding.library
    if library is None or finding.cause in BEYOND_ONE_OPERATION:
        return []
    if Path(library[0]).is_relative_to(Path(torch.__file__).parent):
        return []
    if not (text := text_of_library(library)):
        return []
    rows, found = text.splitlines(), list[Fix]()
    forms = candidates(text, library[1], _precision_of(trace, finding))[:MOST_FORMS_PATCHED]
    guards = library_proposals(trace.recording, finding.position, text, library[1])
    for each in (*forms, *guards):
        old = "\n".join(rows[each.first - 1 : each.last])
        edit = Edit(library[0], each.first, each.last, each.text, old)
        if not each.also and (code := patch(edit)):
            title = f"patch {library[2]} in this process: {each.title}"
            found.append(Fix(title, code, patch=edit, last_resort=each.last_resort))
    return found


def rewritten(trace: Trace, finding: Finding, pages: Pages) -> list[Fix]:
    """The line, or what feeds it, in a form that keeps its signal: catalogue or series."""
    if not finding.file or not finding.line:
        return []
    dtype = _precision_of(trace, finding)
    line = pages.line(finding.file, finding.line)
    every = candidates(pages.text, line, dtype)
    # the last takes the least of the program with it
    found = [*every[: MOST_REWRITTEN - 1], *every[MOST_REWRITTEN - 1 :][-1:]]
    found += carried(trace.recording, finding.position, pages, dtype)
    if finding.cause == "norm-at-zero":  # whose largest element is 0, too
        found = [c for c in found if not c.title.endswith(" scaled first")]
    return _as_fixes(found, pages)


def _precision_of(trace: Trace, finding: Finding) -> torch.dtype:
    """The format in which the operation computes."""
    dtype = trace.recording.at(finding.position).dtype
    known = (torch.float16, torch.bfloat16, torch.float64)
    return dtype if dtype in known else torch.float32


def guarded(trace: Trace, finding: Finding, pages: Pages) -> list[list[Fix]]:
    """The operation kept inside domain and range; the same of what makes its operands."""
    if not finding.file or not finding.line or finding.cause in BEYOND_ONE_OPERATION:
        return []
    found = []
    ways: tuple[Any, ...] = (proposals, at_makers)
    if finding.cause in _GAPS:
        ways = (partial(filled, TARGETS if finding.cause == _TARGET else INPUTS),)
    if is_told_elsewhere(trace.recording, finding.position, finding.op):
        line = pages.line(finding.file, finding.line)
        ways = (lambda r, at, p: proposals_at(r, at, p.text, Place(line, None)),)
    for of in ways:
        try:
            made = of(trace.recording, finding.position, pages)
        except Exception as error:
            _note(trace, f"no fixes for {finding.cause} ({type(error).__name__}: {error})")
            made = []
        found.append(_as_fixes(made, pages))
    return found


def _limited(trace: Trace, finding: Finding, pages: Pages, clock: Clock) -> list[Fix]:
    """The functions that compute the line, the innermost first, each tried under
    ``nanlab.safe.limit`` until one is right."""
    tried: list[Fix] = []
    try:
        for fix in under_limits(finding, pages):
            tried.append(_judged(trace, finding, fix, clock))
            if tried[-1].verified:
                break
    except Exception as error:
        _note(trace, f"no limits for {finding.cause} ({type(error).__name__}: {error})")
    return tried


def under_limits(finding: Finding, pages: Pages) -> list[Fix]:
    """The functions that compute the line under ``nanlab.safe.limit``, untried."""
    if not finding.file or not finding.line or finding.cause in BEYOND_ONE_OPERATION:
        return []
    rows = pages.text.splitlines()
    functions = under_limit(pages.text, pages.line(finding.file, finding.line))
    found = [
        Candidate(LIMIT, f.lineno, f.lineno, f"{DECORATOR}\n{rows[f.lineno - 1].strip()}", True)
        for f in itertools.islice(functions, MOST_FUNCTIONS)
    ]
    return _as_fixes(found, pages)


LIMIT = "the exact value or limit of the function where it is not finite (slow there)"
MOST_FUNCTIONS = 3
REWRITTEN = "rewritten with "  # how a form begins that computes the same
REMOVABLE = "nanlab.safe.removable"
FORMS = (REWRITTEN, "the series", REMOVABLE)  # such forms, and series of them
MOST_REWRITTEN = 12
MOST_PASSED = 26  # forms of what a library is given
MOST_KEPT = 3  # of them such as its own operation needs
MOST_PATCHES = 2  # of a library's line that are told
MOST_FORMS_PATCHED = 6  # of it that are tried
MOST_TOLD = 3  # of those that are finite and no more, that fail, or that could not be tried
_MASKS = ("softmax-all-masked", "mask-overflow")  # what is wrong is the mask, at its own line
_TARGET = "nan-in-target"
_MADE_UP = "the missing targets are made up, and the model learns them"
_LOSSES = ("dtype-underflow", "dtype-overflow")  # of a whole gradient
_GAPS = ("nan-in-input", "inf-in-input", _TARGET)
# What memory holds that nobody wrote is by chance: without some samples it may be finite.
_OF_NO_SAMPLE = ("dead-gradient", "uninitialised-memory")
# Their origin is no single operation: what the rule itself proposes is all there is.
BEYOND_ONE_OPERATION = frozenset(
    "learning-rate exploding-gradient scaler-misuse absorbed-update clip-nonfinite-norm"
    " poisoned-parameter poisoned-buffer poisoned-gradient".split()
)


def _uncommented(code: str) -> str:
    """Code without comments: they were written about the code as it was."""
    rows = code.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                rows[row - 1] = rows[row - 1][:column].rstrip()
    except (tokenize.TokenError, IndentationError):
        return code
    return "\n".join(row for row in rows if row)


def _as_fixes(candidates: Sequence[Candidate], pages: Pages) -> list[Fix]:
    """The candidates as edits of their files, without those whose lines are of two."""
    rows, found = pages.text.splitlines(), []
    for one in candidates:
        lines = sorted(((one.first, one.last, one.text), *one.also))
        places = [pages.place(first, last) for first, last, _ in lines]
        edits = tuple(
            _edit(place, body, "\n".join(rows[first - 1 : last]))
            for place, (first, last, body) in zip(places, lines, strict=True)
            if place is not None
        )
        if len(edits) == len(lines):
            code = _uncommented("\n".join(edit.text for edit in edits))
            found.append(Fix(one.title, code, edits=edits, last_resort=one.last_resort))
    return found


def _edit(place: tuple[str, int, int], text: str, old: str) -> Edit:
    """What becomes of old lines, in their own short word for the module of functions."""
    return Edit(*place, text.replace(_FUNCTIONAL, "F.") if _BRIEFLY.search(old) else text, old)


_FUNCTIONAL, _BRIEFLY = "torch.nn.functional.", re.compile(r"(?<![\w.])F\.[a-z_]+\(")


def _explained(fix: Fix) -> Fix:
    """What a rule proposes itself concerns more than the operation that failed: it says so."""
    if fix.verdict != "untried" or fix.why or fix.tried:
        return fix
    return replace(fix, why="it concerns the program, not one operation")


def _note(trace: Trace, text: str) -> None:
    if text not in trace.notes:
        trace.notes.append(text)


def file_text(trace: Trace, file: str) -> str:
    """The text of a file or cell by the name that tables show; empty if not at hand."""
    return source_text(trace.recording, file)


def _order(fix: Fix) -> int:
    """Settings before lines, and advice before wrong lines and settings that make another program,
    these before untried; last a program that nothing shows to run."""
    if fix.may_raise:
        return 7
    if fix.settings and fix.verdict == "finite" and (fix.distortion or 0.0) >= FOREIGN:
        return 4
    line = bool(fix.tried)
    untried = 5 if line else 3
    return {"verified": 0 + line, "finite": 2 + 2 * line, "untried": untried, "fails": 6}[
        fix.verdict
    ]


def _leaves_out(fix: Fix) -> bool:
    """Whether it changes nothing but that some of the data is not counted."""
    return fix.why.endswith(WEIGH_MORE)


def _rank_in_library(fix: Fix) -> tuple[int, bool, bool, float]:
    """Verified first, what draws random numbers after what does not, and small gradients before
    large ones; then finite, what leaves samples out and the least distorting first; then untried.
    The program's lines before those of the library."""
    patched = fix.patch is not None
    if fix.verdict == "verified":
        size = math.floor(math.log10(max(fix.gradient_max or 0.0, 1.0)))
        return 0, patched, "randn" in fix.code, size
    if fix.verdict == "finite":
        return 1, patched, not _leaves_out(fix), _rounded(fix.distortion or 0.0)
    return 2 + (fix.verdict == "fails"), patched, False, 0.0


def _rank(fix: Fix, advised: bool = False) -> tuple[int, bool, bool, bool, float]:
    """Verified first, then what is right but for rounding, then what leaves samples out;
    gradient-stopping last; the least distorting first, but for rounding.

    advised: no worse than advice is.
    """
    distortion = math.inf if fix.distortion is None else fix.distortion
    off = not fix.why.startswith(ROUNDED)
    order = min(_order(fix), 3) if advised and fix.verdict == "finite" else _order(fix)
    return (order, off, not _leaves_out(fix), fix.gradient_max is None, _rounded(distortion))


def _rounded(distortion: float) -> float:
    """A distortion, as far as a smaller one is a reason to prefer a fix."""
    return float(f"{distortion:.1g}") if distortion > ROUNDING else 0.0
