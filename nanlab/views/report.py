"""The report of a trace: a card with the line and best fix, and a fold with the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nanlab.analysis.provenance import bad_number
from nanlab.operators import spoken
from nanlab.paths import path_of, writing
from nanlab.rules import Finding
from nanlab.trace import Trace
from nanlab.trace.op import location
from nanlab.trace.recording import PHASES
from nanlab.views import card, details, text
from nanlab.views.card import WAITING, guilty_samples
from nanlab.views.evidence import evidence, lens
from nanlab.views.html import capital, escape, plural, sentence, tag
from nanlab.views.text import first_of, headroom_line, known_first, reproduction_of
from nanlab.views.widget import style

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>nanlab report</title>
<style>
:root {{ color-scheme: light dark; --nl-page: #fff; --nl-ink: #111; }}
body {{ margin: 1.2em auto; max-width: 1150px; padding: 0 1em; background: var(--nl-page);
  color: var(--nl-ink); }}
h1 {{ font: 600 15px system-ui, sans-serif; margin: 0 0 8px; }}
{style}
@media (prefers-color-scheme: dark) {{
  :root {{ --nl-page: #141414; --nl-ink: #eee; }} .nanlab {{ {dark} }} }}
</style></head><body><main><h1>nanlab report</h1>{body}</main>
<script type="module">{script}</script></body></html>
"""
DARK = (
    "--nl-paper: #141414; --nl-text: #eee; --nl-dim: #b0b0b0; --nl-line: #444; --nl-hover: #2a2a2a;"
    " --nl-accent: #64a8ec; --nl-born: #ff6b62; --nl-turned: #f06ad8; --nl-carried: #ffab40;"
    " --nl-healed: #4dd0e1; --nl-normal: #6fb1e4;"
)
_HERE = Path(__file__).parent


class Report:
    """The report of a watch, for a notebook, a terminal or a file."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __repr__(self) -> str:
        parts = [self._part("verdict", lambda: [verdict_text(self._trace)])]
        parts += [self._part("losses", lambda: [text.line(self._trace)])]
        parts += [self._part("notes", lambda: [f"note: {note}" for note in notes(self._trace)])]
        return "\n".join(line for part in parts for line in part if line)

    def _repr_html_(self) -> str:
        return f"<style>{style('report')}</style>{self.body()}"

    def _ipython_display_(self) -> None:
        from nanlab.views.report_widget import show

        show(self)

    def early(self, waiting: str = WAITING) -> str:
        """The page before the fixes were tried: the card, with a placeholder for them."""
        without = of_first(lambda trace, f: card.card(f, trace, waiting=waiting), known_first)
        top = self._section("card", without)
        return f'<div class="nanlab nl-report">{top}{self._section("notes", notes_html)}</div>'

    def body(self) -> str:
        """The page without its style sheet: the card, then the fold."""
        rest = "".join(self._section(name, make) for name, make in SECTIONS)
        folded = (
            '<details class="nl-more">'
            f"<summary>{self._section('contents', contents)}</summary>{rest}</details>"
            if rest
            else ""
        )
        top = self._section("card", top_of) + self._section("notes", notes_html)
        return f'<div class="nanlab nl-report">{top}{folded}</div>'

    @property
    def trace(self) -> Trace:
        return self._trace

    def _section(self, name: str, make: Callable[[Trace], str]) -> str:
        return "".join(self._part(name, lambda: [make(self._trace)], html=True))

    def _part(self, name: str, make: Callable[[], list[str]], html: bool = False) -> list[str]:
        """The lines of a part; a note if it raises."""
        try:
            return make()
        except Exception as failure:
            told = (
                f"the part '{name}' of the report failed ({type(failure).__name__}: {failure}); the"
                " others are shown"
            )
            return [f'<div class="nl-note">{escape(told)}</div>'] if html else [told]

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one offline file; return its path. Raises UsageError."""
        file = path_of(path, 'report.to_html("nanlab.html")')
        script = (_HERE / "report_page.js").read_text("utf-8")
        page = PAGE.format(style=style("report"), dark=DARK, body=self.body(), script=script)
        with writing("the report", file):
            file.write_text(page, encoding="utf-8")
        return file


def number_of(trace: Trace, found: Finding) -> int:
    return next(i for i, each in enumerate(trace.findings) if each is found)


def top_of(trace: Trace) -> str:
    """The card; for a run without findings, one line."""
    found = first_of(trace)
    if found is None:
        return f"{healthy_html(trace)}{text.losses_section(trace, True)}"
    shown = card.card(found, trace, number_of(trace, found))
    if trace.culprit is None:
        shown += f'<div class="nl-dim">{escape(healthy_text(trace))}</div>'
    return shown


def healthy_html(trace: Trace) -> str:
    """The verdict on a run without a finding, its coverage and its headroom."""
    if has_failed(trace):
        kind, word = "warning", "incomplete"
    elif trace.guarded is not None:
        kind, word = "error", "stopped"
    elif bad_number(trace.recording) is not None:
        kind, word = "warning", "not finite"
    elif never_updated(trace):
        kind, word = "warning", "no update"
    elif not trace.findings and not text.line(trace):
        kind, word = "verified", "healthy"
    else:
        kind, word = "note", "finite"
    watched = len(trace.ops) or trace.guarded is not None
    told = escape(healthy_text(trace))
    return f'<div class="nl-healthy">{f"{tag(kind, word)} " if watched else ""}{told}</div>'


def contents(trace: Trace) -> str:
    """The contents of the fold, in a line."""
    found = first_of(trace)
    parts = ["why", "your code annotated"] if found is not None else ["your code annotated"]
    if found is not None:
        on_card = details.shown_fix(found, trace) is not None
        others = len(found.fixes) - on_card
        told = plural(others, "other fix" if on_card else "fix").replace("fixs", "fixes")
        parts += [told] if others else []
    rest = len(trace.findings) - (found is not None)
    parts += [plural(rest, "other finding")] if rest > 0 else []
    return escape(capital(", ".join([*parts, "training steps, tables"])))


def covered(trace: Trace) -> str:
    """The coverage of the watch: operations (folded ones too), steps, phases, seconds."""
    ops, steps_ = trace.ops, trace.steps
    results = int(steps_["ops"].sum()) if "ops" in steps_ else len(ops)
    present = set(ops["phase"].astype(str))
    phases = [name for name in PHASES if name in present]
    seconds = (
        float(steps_["seconds"].fillna(0).sum()) if "seconds" in steps_ and len(steps_) else 0.0
    )
    parts = [plural(results, "operation result"), _steps(trace), ", ".join(phases)]
    guarded = trace.guarded
    replayed = str(guarded) if guarded is not None and guarded.identical else ""
    return "; ".join(
        part for part in [*parts, f"{seconds:.3g} s" if seconds else "", replayed] if part
    )


def _steps(trace: Trace) -> str:
    """The number of training steps; turns without backward and optimizer do not count."""
    frame = trace.steps
    if len(trace.backward) or frame["loss"].notna().any() or frame["optimizer_steps"].gt(0).any():
        return plural(len(frame), "training step")
    if len(frame) < 2:
        return "no training step"
    return f"{plural(len(frame), 'turn')} of a loop, no training step"


def verdict_text(trace: Trace) -> str:
    """The culprit for a terminal, or one line that there is none."""
    found = trace.culprit
    warnings = [f for f in trace.findings if f is not found]
    lines = text.as_text(found).splitlines() if found is not None else [healthy_text(trace)]
    if (cure := card.cure_of(trace)) is not None:
        told = f"  cure ({cure.verdict}) of all faults of the step:  {cure.brief}"
        before = (at for at, line in enumerate(lines) if line.startswith("  fix "))
        lines.insert(next(before, len(lines)), told)
    lines += [f"{f.severity}: {f.title}  ({text.place(f)})" for f in warnings[:5]]
    return "\n".join(line for line in lines if line)


def has_failed(trace: Trace) -> bool:
    """Whether an internal error ended the watch."""
    return trace.recording.ended == "failed"


def never_updated(trace: Trace) -> bool:
    """Whether a loss scaler skipped every step that was watched."""
    skipped = trace.steps["skipped"]
    return bool(len(skipped) and skipped.all())


def healthy_text(trace: Trace) -> str:
    """One line for a run without a culprit: verdict, headroom, coverage."""
    if has_failed(trace):
        return (
            "Incomplete: nanlab itself failed (see the note). No fault showed before that; watched:"
            f" {covered(trace)}."
        )
    if (guarded := trace.guarded) is not None:
        told = str(guarded)[:1].upper() + str(guarded)[1:]
        return f"{told}; no cause was found for the stop." if guarded.identical else f"{told}."
    if not len(trace.ops):
        return "Nothing was watched: no operation ran in this thread."
    verdict = bad_number_text(trace) or "No harmful NaN or infinity."
    if never_updated(trace):
        verdict += " The loss scaler skipped every step: no parameter was updated."
    parts = [verdict, headroom_line(trace), f"Watched: {covered(trace)}."]
    return " ".join(part for part in parts if part)


def bad_number_text(trace: Trace) -> str:
    """What became of a result that is not finite, though no finding names it; "" without one."""
    found = bad_number(trace.recording)
    if found is None:
        return ""
    birth, result = map(trace.recording.at, found)
    what = "a NaN" if birth.stats.nan else "an infinity"
    places = (location(*trace.recording.line_at(op.place)[:2]) for op in (birth, result))
    born, end = (
        f"{spoken(op.name)}{f' at {place}' if place else ''}"
        for op, place in zip((birth, result), places, strict=True)
    )
    onward = "" if born == end else f", and it came through to {end}"
    known = "No loss, gradient or parameter that nanlab sees is bad"
    return f"{known}, but {what} was born in {born}{onward}."


def verdict(trace: Trace) -> str:
    """The culprit in one sentence, without a style sheet."""
    found = trace.culprit
    if found is None:
        return f"<div>{escape(healthy_text(trace))}</div>"
    return (
        f"<div><b>Culprit:</b> {sentence(found.title, found.op)}"
        f" ({escape(text.place(found))}).</div>"
    )


def trace_html(trace: Trace) -> str:
    """The verdict in one line, and the next things to type."""
    doors = " · ".join(
        f"<code>.{door}</code>"
        for door in ("report()", "stepper()", "underflow()", "ops", "backward")
    )
    return f'{verdict(trace)}<div style="opacity:0.8;font-size:12px">Look closer: {doors}</div>'


def finding_html(found: Finding) -> str:
    """A finding by itself."""
    parts = (card.card(found), details.why(found), details.section("Evidence", evidence(found)))
    body = "".join([*parts, details.path(found), details.other_fixes(found)])
    return f'<style>{style("report")}</style><div class="nanlab nl-report">{body}</div>'


def of_first(
    make: Callable[[Trace, Finding], str], first: Callable[[Trace], Finding | None] = first_of
) -> Callable[[Trace], str]:
    """A part about the first finding; "" without one."""

    def part(trace: Trace) -> str:
        found = first(trace)
        return "" if found is None else make(trace, found)

    return part


def proof(trace: Trace, found: Finding) -> str:
    """The run-up to a finding and its offending elements."""
    parts = [details.course(trace, found), details.section("Evidence", evidence(found))]
    parts.append(details.section("Samples", guilty_samples(trace, found)))
    shown = [part for part in [*parts, details.section("Lens", lens(trace, found))] if part]
    if len(shown) > 1:
        return f'<div class="nl-columns nl-even">{"".join(shown)}</div>'
    return "".join(shown)


def fixes(trace: Trace, found: Finding) -> str:
    return details.other_fixes(found, number_of(trace, found), trace)


def losses(trace: Trace) -> str:
    """Where low precision lost signal."""
    great = text.losses_section(trace, True) if first_of(trace) is not None else ""
    return great + text.losses_section(trace, False)


def minimal(trace: Trace, found: Finding) -> str:
    """A program of a dozen lines with the fault."""
    program = reproduction_of(trace, found)
    block = f'<pre class="nl-code nl-program" tabindex="0">{escape(program)}</pre>'
    return details.fold("A minimal reproduction", block) if program else ""


def watched(trace: Trace) -> str:
    """The coverage of a watch with a culprit."""
    if trace.culprit is not None:
        return f'<div class="nl-dim">Watched: {escape(covered(trace))}</div>'
    return ""


def notes(trace: Trace) -> list[str]:
    """nanlab's remarks, but for what the verdict says already."""
    said = str(trace.guarded) if trace.culprit is None else ""
    return [note for note in trace.notes if note != said]


def notes_html(trace: Trace) -> str:
    return "".join(f'<div class="nl-note">nanlab: {escape(note)}</div>' for note in notes(trace))


SECTIONS: list[tuple[str, Callable[[Trace], str]]] = [
    ("why", of_first(lambda trace, found: details.why(found))),
    ("annotated source", lambda trace: details.source(trace, first_of(trace))),
    ("evidence", of_first(proof)),
    ("fixes", of_first(fixes)),
    ("other findings", lambda trace: details.other_findings(trace, first_of(trace))),
    ("ranks", details.ranks),
    ("losses", losses),
    ("reproduction", of_first(minimal)),
    ("steps", details.steps),
    ("backward pass", details.backward),
    ("operations", details.operations),
    ("parameters", details.parameters),
    ("coverage", watched),
]


def report(trace: Trace) -> Report:
    """Culprit, evidence, path, tried fixes and tables of a trace, on one page."""
    return Report(trace)
