"""All faults of the failing step, and the fewest edits that make it right."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from nanlab.analysis.verdict import Judge, Judgement
from nanlab.exact.numbers import work
from nanlab.findings.diff import diff_of
from nanlab.findings.rule import Edit, Finding, Fix, Verdict
from nanlab.program.replay import Replay
from nanlab.rules.remedies import (
    FORMS,
    LIMIT,
    distinct,
    file_text,
    imports_added,
    judge_for,
    nearest_first,
    proposed,
    with_imports,
    without_imports,
)
from nanlab.rules.titles import told_apart
from nanlab.trace import Trace
from nanlab.trace.frames import ops_frame
from nanlab.trace.op import location

WORK = 12_000_000  # for one cure: about 12 s
_ORDER = {"verified": 0, "finite": 1, "fails": 2, "untried": 3}
MOST_FAULTS = 6  # of one step that are looked for
MOST_BEGUN = 3  # further fixes of the first fault that a chain is begun with
MOST_TOLD = 4  # of a fault that shows once others are mended, whose fixes are not tried alone
MOST_TRIED = 8  # fixes of one fault that are tried with those of the others


@dataclass(frozen=True)
class Cure:
    """The fixes that together make the failing step right: one for each fault, none spare."""

    fixes: list[Fix]
    edits: tuple[Edit, ...]
    verdict: Verdict
    why: str = ""  # one clause, where the verdict is not "verified"
    replay: Replay | None = field(default=None, repr=False)  # the step as it is with them
    distortion: float | None = None
    gradient_max: float | None = None

    @property
    def verified(self) -> bool:
        """Whether the failing step was run again with it and came out right."""
        return self.verdict == "verified"

    @property
    def title(self) -> str:
        """What it does, in one line."""
        return "; ".join(dict.fromkeys(fix.title for fix in self.fixes))

    @property
    def code(self) -> str:
        """The lines to write."""
        return "\n".join(edit.text for edit in self.edits)

    @property
    def brief(self) -> str:
        """``line 47: y = x.exp(); line 60: ...``: what to write, in one line; of several files or
        cells ``model.py:47: ...``. What takes several lines stands below its place."""
        several = len({edit.file for edit in self.edits}) > 1
        places = [location(e.file, e.first) if several else f"line {e.first}" for e in self.edits]
        texts = [edit.imports or edit.text.splitlines() for edit in self.edits]
        if all(len(rows) == 1 for rows in texts):
            return "; ".join(f"{at}: {rows[0]}" for at, rows in zip(places, texts, strict=True))
        told = [[f"  {at}:", *rows] for at, rows in zip(places, texts, strict=True)]
        return "".join("\n" + "\n    ".join(rows) for rows in told)

    @property
    def tried(self) -> tuple[Edit, ...]:
        """The edits, all of the program."""
        return self.edits

    def diff(self) -> str:
        """The edits as a unified diff."""
        return diff_of(self.edits)

    def __str__(self) -> str:
        return f"{self.verdict}{f' ({self.why})' if self.why else ''}: {self.title}"

    def __repr__(self) -> str:
        return f"<cure, {self}>\n{self.diff()}".rstrip()


@dataclass
class Chain:
    """The faults of a step, one after the other, and for each what could be written instead."""

    faults: list[Finding]
    options: list[list[Fix]]
    cure: Cure | None = None
    halfway: bool = False  # whether a fault came back that a fix had mended in part of its line


def chain(trace: Trace, culprit: Finding) -> Chain:
    """The faults of the culprit's step, each shown by mending those before it; the cure."""
    with warnings.catch_warnings(action="ignore"):  # the run itself has warned
        found = _chain(trace, culprit)
    imports = partial(with_imports, trace)
    later = [
        replace(each, fixes=told_apart([*map(imports, each.fixes)])) for each in found.faults[1:]
    ]
    found.faults[1:] = later
    if (cure := found.cure) is not None:
        fixes = [*map(imports, cure.fixes)]
        found.cure = replace(cure, fixes=fixes, edits=imports_added(trace, cure.edits))
        _tell(culprit, found.cure)
    return found


def _tell(culprit: Finding, cure: Cure) -> None:
    """Let a fix that is a right cure by itself say so, where it was not tried for want of work."""
    for at, fix in enumerate(culprit.fixes if cure.verified else ()):
        if fix.edits == cure.edits and not fix.verified:
            right = replace(
                fix,
                verdict=cure.verdict,
                why=cure.why,
                distortion=cure.distortion,
                gradient_max=cure.gradient_max,
            )
            culprit.fixes[:] = [right, *culprit.fixes[:at], *culprit.fixes[at + 1 :]]
            return


def _chain(trace: Trace, culprit: Finding) -> Chain:
    """The same, of edits that compute something."""
    first = trace.recording.first_step  # by which a replay of a longer run is numbered
    judge = judge_for(trace, culprit, first)
    with nullcontext() if isinstance(judge, str) else judge.sharing():
        told = [f for f in culprit.fixes if f.edits and not (f.settings or f.left_out)]
        told = [without_imports(trace, fix) for fix in told]
        limit = next((fix for fix in told if fix.verified and fix.title.startswith(LIMIT)), None)
        told = [fix for fix in told if not fix.title.startswith(LIMIT)]
        best = next((fix for fix in told if fix.verified), None)
        told = [fix for fix in told if fix.verdict != "untried" or isinstance(judge, str)]
        # of what fails alone, the forms that keep the signal first
        told.sort(key=lambda fix: fix.verdict == "fails" and not fix.title.startswith(FORMS))
        # what fails alone is told of few, and may yet show the next fault
        more = [] if best is not None else nearest_first(proposed(trace, culprit), culprit)
        more = [fix for fix in more if fix.edits]
        known = {fix.edits for fix in told}
        found = Chain([culprit], [[*told, *(fix for fix in more if fix.edits not in known)]])
        if isinstance(judge, str):
            return found
        found = _completed(trace, judge, found, best)
        if limit is not None and not (found.cure is not None and found.cure.verified):
            alone = _cure([limit], limit.edits, judge.judge(limit.edits))
            return Chain([culprit], [[limit]], _with_replay(judge, alone))
        return found


def _completed(trace: Trace, judge: Judge, found: Chain, best: Fix | None) -> Chain:
    """The chain from its first fault on; best: one of its fixes, right alone."""
    if best is not None:
        found.cure = _with_replay(judge, _cure([best], best.edits, judge.judge(best.edits)))
        return found
    deadline = work() + WORK
    begun = Chain([*found.faults], [*found.options])
    last, taken = found, _followed(trace, judge, found, deadline)
    # where a fix mended its line in part, begin with another, which may mend all of it
    for _ in range(MOST_BEGUN):
        cured = found.cure is not None and found.cure.verified
        if cured or not last.halfway or work() > deadline:
            break
        begun.options[0] = [fix for fix in begun.options[0] if fix is not taken[0]]
        last = Chain([*begun.faults], [*begun.options])
        taken = _followed(trace, judge, last, deadline)
        longer = found.cure is None and len(last.faults) > len(found.faults)
        if longer or (last.cure is not None and last.cure.verified):
            found = last
    chosen = found.cure.fixes if found.cure is not None else []
    for at, options in enumerate(found.options[1:], 1):
        ranked = sorted(options, key=lambda fix: fix not in chosen)[:MOST_TOLD]
        told = [_with_others(fix, found.cure is not None) for fix in ranked]
        found.faults[at] = replace(found.faults[at], fixes=told)
    return found


def _followed(trace: Trace, judge: Judge, found: Chain, deadline: float) -> list[Fix]:
    """Find the further faults of a chain, and its cure; the fix with which each of them showed."""
    where, first = judge.where, trace.recording.first_step
    edits: tuple[Edit, ...] = ()
    taken: list[Fix] = []
    while len(found.faults) < MOST_FAULTS and work() < deadline:
        step = _next_fault(trace, judge, found, taken, edits)
        if isinstance(step, Cure):
            found.cure = _without_superfluous(judge, step)
        if step is None or isinstance(step, Cure):
            break
        fix, edits, nxt, then = step
        taken.append(fix)
        mended = partial(_text_with, trace, edits)
        proposals = proposed(then, replace(nxt, step=where.step), mended)
        options = [f for f in proposals if f.edits]
        # of a mended line it is not known where in it the operation stands: forms, and those
        # named after it or its operand (exp: the exponent)
        named = re.compile(rf"\b{re.escape(nxt.op.strip('_'))}")
        options.sort(key=lambda fix: not (fix.title.startswith(FORMS) or named.search(fix.title)))
        # with the names of mended lines followed, what follows may have had a form
        plain = proposed(then, replace(nxt, step=where.step), partial(file_text, trace))
        known = [*(f for each in found.options for f in each if _is_written(nxt, f)), *plain]
        forms = [f for f in known if f.title.startswith(FORMS) and f.edits]
        options = distinct([*(f for f in forms if _joined(edits, f.edits) is not None), *options])
        found.faults.append(_recorded(trace, replace(nxt, step=where.step + first)))
        found.options.append(options)
    if found.cure is None:
        found.cure = _search(judge, found, taken, deadline)
    if found.cure is not None:
        cure = _with_replay(judge, _with_fewer(judge, found, found.cure, deadline))
        found.cure = replace(cure, edits=tuple(_of_the_file(trace, e) for e in cure.edits))
    return taken


def _with_others(fix: Fix, cured: bool) -> Fix:
    """A fix of a fault that shows only once others are mended: by itself it was not tried."""
    if fix.verdict == "fails":
        return fix
    why = "another fault of the step comes first"
    why += "; trace.cure has the edits for all" if cured else ", and no cure of both is known"
    return replace(fix, verdict="untried", why=why, distortion=None, gradient_max=None)


def _recorded(trace: Trace, fault: Finding) -> Finding:
    """A fault of the mended step at the rows that its operations have in the recorded one."""
    ops = ops_frame(trace.recording)
    step = fault.step - trace.recording.first_step
    ops = ops[(ops["step"] == step).to_numpy(dtype=bool)]
    rows: dict[tuple[object, ...], int] = {}
    places = zip(ops["op"], ops["phase"], ops["file"], ops["line"], strict=True)
    for position, place in zip(ops.index, places, strict=True):
        rows.setdefault(place, int(position))
    at = rows.get((fault.op, fault.phase, fault.file, fault.line), -1)
    path = [{**each, "position": rows.get(tuple(map(each.get, _PLACE)), -1)} for each in fault.path]
    return replace(fault, position=at, path=type(fault.path)(path))


_PLACE = ("op", "phase", "file", "line")


def _next_fault(
    trace: Trace, judge: Judge, found: Chain, taken: Sequence[Fix], edits: tuple[Edit, ...]
) -> tuple[Fix, tuple[Edit, ...], Finding, Trace] | Cure | None:
    """A fix with which another fault shows, and that fault; or the cure, if it is right."""
    last = found.faults[-1]
    ended = False  # whether no further fault shows with a fix of the fault's own line
    brought: tuple[Fix, tuple[Edit, ...], Finding, Trace] | None = None
    for fix in found.options[-1][:MOST_TRIED]:
        joined = _joined(edits, fix.edits)
        if joined is None:
            continue
        made = judge.judge(joined)
        if made.verified:
            return _cure([*taken, fix], joined, made)
        if made.verdict == "finite" and not any(map(_binds_anew, fix.edits)):
            ended |= any(e.file == last.file and e.first <= last.line <= e.last for e in fix.edits)
        # what another fix brings in is no fault of the step; what a form leaves may be
        if made.verdict != "fails" or (ended and not fix.title.startswith(FORMS)):
            continue
        try:
            updates = made.gradient_max is not None  # else it goes wrong before
            then = judge.observed(joined, updates)
            nxt = then.culprit
        except Exception:
            continue
        if nxt is None or any(_same(nxt, fault) for fault in found.faults):
            found.halfway |= nxt is not None and not _same(nxt, last)
            continue
        row = then.recording.at(nxt.position)
        if made.read and (row is None or row.literal):  # the number that was read, not a fault
            continue
        if ended and not _is_recorded(trace, nxt, found.faults):
            continue
        if not _is_written(nxt, fix):
            return fix, joined, nxt, then
        is_new = nxt.phase != "forward" or _is_recorded(trace, nxt, found.faults)
        if brought is None and nxt.cause != last.cause and is_new:
            brought = fix, joined, nxt, then
    return brought


def _is_recorded(trace: Trace, fault: Finding, known: Sequence[Finding]) -> bool:
    """Whether the recorded step has a bad row for this fault; a fault without one, in a line that
    a fix wrote, comes from the fix. Rows of known faults do not count."""
    recording, place = trace.recording, (fault.file, fault.line, fault.op)
    ops = (op for op in map(recording.at, recording.status) if op)
    ops = (op for op in ops if op.backward == (fault.phase == "backward"))
    bad = {op.position for op in ops if place == (op.file, op.line, op.name)}
    return not bad <= {each.position for each in known}


def _binds_anew(edit: Edit) -> bool:
    """Whether an edit gives a name that its line reads another value, for later lines too."""
    before, after = (_names(textwrap.dedent(text)) for text in (edit.old, edit.text))
    return bool((after["Store"] - before["Store"]) & before["Load"])


def _names(text: str) -> dict[str, set[str]]:
    """The names that code binds and reads."""
    found: dict[str, set[str]] = {"Store": set(), "Load": set(), "Del": set()}
    with suppress(SyntaxError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name):
                found[type(node.ctx).__name__].add(node.id)
    return found


def _same(a: Finding, b: Finding) -> bool:
    return (a.file, a.line, a.cause, a.op) == (b.file, b.line, b.cause, b.op)


def _is_written(fault: Finding, fix: Fix) -> bool:
    """Whether a fault shows in the lines that a fix has written."""
    return any(e.file == fault.file and e.first <= fault.line <= e.last for e in fix.edits)


def _search(judge: Judge, found: Chain, taken: Sequence[Fix], deadline: float) -> Cure | None:
    """The smallest verified set of fixes; else the one that comes nearest."""
    best: Cure | None = None
    for fixes, edits in _combinations(found, taken):
        if work() > deadline:
            break
        made = _cure(fixes, edits, judge.judge(edits))
        # a last resort that is not right is no help
        presumes = any(fix.last_resort for fix in fixes)
        if not presumes and (best is None or _ORDER[made.verdict] < _ORDER[best.verdict]):
            best = made
        if made.verified:
            return _without_superfluous(judge, made)
    finite = best is not None and best.verdict == "finite"
    return _without_superfluous(judge, best) if best is not None and finite else None


def _combinations(
    found: Chain, taken: Sequence[Fix]
) -> Iterator[tuple[list[Fix], tuple[Edit, ...]]]:
    """One fix for each fault, those that showed the next fault first, each once."""
    options = []
    for at, each in enumerate(found.options):
        chosen = [taken[at]] if at < len(taken) else []
        options.append([*chosen, *(fix for fix in each if fix not in chosen)][:MOST_TRIED])
    every = next((at for at, each in enumerate(options) if not each), len(options))
    ranked = []
    for many in range(2, every + 1):
        for places in itertools.product(*(range(len(each)) for each in options[:many])):
            if many == every or places[-1] > 0:
                ranked.append((sum(places) + every - many, places))
    for _, places in sorted(ranked, key=lambda each: each[0]):
        fixes = [options[at][place] for at, place in enumerate(places)]
        if edits := _edits_of(fixes):
            yield fixes, edits


def _edits_of(fixes: Sequence[Fix]) -> tuple[Edit, ...] | None:
    """The edits of several fixes together; None where two of them do not go together."""
    edits: tuple[Edit, ...] | None = ()
    for fix in fixes:
        edits = _joined(edits, fix.edits) if edits is not None else None
    return edits


def _joined(edits: tuple[Edit, ...], more: tuple[Edit, ...]) -> tuple[Edit, ...] | None:
    """Both sets of edits; an edit of ``more`` on an edited line replaces that edit."""
    found = list(edits)
    for new in more:
        own = [e for e in found if e.file == new.file]
        over = [e for e in own if e.first <= new.last and new.first <= e.last]
        if any(e.text == new.text for e in over):
            continue
        if len(over) > 1:
            return None
        if over:
            old = over[0]
            if new.old.strip() != "\n".join(old.rows()).strip():
                return None
            found[found.index(old)] = replace(new, first=old.first, last=old.last, old=old.old)
        else:
            found.append(new)
    return tuple(found)


def _of_the_file(trace: Trace, edit: Edit) -> Edit:
    """An edit of a line as it stands, not as another edit has left it."""
    rows = file_text(trace, edit.file).splitlines()[edit.first - 1 : edit.last]
    return replace(edit, old="\n".join(rows)) if rows else edit


def _text_with(trace: Trace, edits: Sequence[Edit], file: str) -> str:
    """The text of a file with those edits in it that leave the number of its lines as it is."""
    rows = file_text(trace, file).splitlines()
    for edit in edits:
        new = edit.rows()
        if edit.file == file and len(new) == edit.last - edit.first + 1:
            rows[edit.first - 1 : edit.last] = new
    return "\n".join(rows) + "\n" if rows else ""


def _without_superfluous(judge: Judge, cure: Cure) -> Cure:
    """The cure without the fixes that it does not need."""
    for fix in cure.fixes:
        rest = [other for other in cure.fixes if other is not fix]
        edits = _edits_of(rest)
        if edits and edits != cure.edits:  # the later of two edits of a line holds the earlier
            found = judge.judge(edits)
            if _ORDER[found.verdict] <= _ORDER[cure.verdict]:
                return _without_superfluous(judge, _cure(rest, edits, found))
    return cure


def _with_fewer(judge: Judge, found: Chain, cure: Cure, deadline: float) -> Cure:
    """The cure with one edit at the makers of the first operands, if it mends others too."""
    first, line = found.faults[0], found.faults[0].line
    for fix in found.options[0]:
        here = any(e.file == first.file and e.first <= line <= e.last for e in fix.edits)
        if here or len(cure.fixes) < 2:
            continue
        for rest in ([], cure.fixes[1:] if fix not in cure.fixes else []):
            edits = _edits_of([fix, *rest])
            if not edits or (rest and work() > deadline):
                continue
            made = judge.judge(edits)
            if _ORDER[made.verdict] <= _ORDER[cure.verdict]:
                fewer = _without_superfluous(judge, _cure([fix, *rest], edits, made))
                if len(fewer.fixes) < len(cure.fixes) and fewer.edits != cure.edits:
                    return fewer
    return cure


def _with_replay(judge: Judge, cure: Cure) -> Cure:
    if cure.replay is not None or cure.verdict == "untried":
        return cure
    return replace(cure, replay=judge.replayed(cure.edits))


def _cure(fixes: list[Fix], edits: tuple[Edit, ...], found: Judgement) -> Cure:
    return Cure(
        fixes, edits, found.verdict, found.why, found.replay, found.distortion, found.gradient_max
    )
