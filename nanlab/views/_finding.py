"""A finding as HTML and as text: what, where, when, the evidence, its path, and the fixes that were tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.trace.locations import location
from nanlab.views._columns import known
from nanlab.views._html import LINE, SHADE, TINTS, badge, code, escape, number, plural, sentence, table
from nanlab.views._source import as_typed, excerpt

if TYPE_CHECKING:
    from nanlab.rules import Finding, Fix
    from nanlab.trace import Trace

EVIDENCE_ROWS = 12
PATH_STATIONS = 10
CODE = "font:12px monospace;white-space:pre-wrap;overflow-wrap:anywhere;min-width:16em"
WORDS = "white-space:normal;min-width:12em;max-width:26em"
DOT = f"display:inline-block;box-sizing:border-box;width:11px;height:11px;border-radius:8px;border:2px solid {LINE}"


def place(finding: Finding) -> str:
    """``train.py:41, in encoder.0, step 3, backward``; what is not known is left out."""
    module = f"in {finding.module}" if finding.module else ""
    step = f"step {finding.step}" if known(finding.step) != "" and finding.step >= 0 else ""
    return ", ".join(part for part in (location(finding.file, finding.line), module, step, finding.phase) if part)


_TINT = {"verified": "good", "finite": "warning", "fails": "error", "untried": "note"}


def verdict(fix: Fix) -> tuple[str, str]:
    """What became of a fix, in a word of the contract, and the tint that goes with it."""
    return fix.verdict, _TINT[fix.verdict]


def fix_title(fix: Fix) -> str:
    """What a fix does and, where it is not verified, why."""
    return f"{fix.title}: {fix.why}" if fix.why else fix.title


def card(finding: Finding, trace: Trace | None = None, titled: bool = True) -> str:
    """The finding on a card, with the source around its line where the trace has it.

    titled: False where its title stands above the card.
    """
    title = f'<div style="font-size:15px;font-weight:600">{sentence(finding.title, finding.op)}</div>' if titled else ""
    head = f"{title}<div>{badge(finding.severity)} {badge(finding.cause, 'plain')} {escape(place(finding))}</div>"
    body = f'<div style="margin:6px 0;max-width:75em">{sentence(finding.explanation, finding.op)}</div>'
    style = f"border-left:4px solid {_edge(finding)};padding:6px 12px;margin:6px 0;background:{SHADE}"
    return f'<div style="{style}">{head}{source(finding, trace)}{body}{samples(finding)}</div>'


def _edge(finding: Finding) -> str:
    return TINTS.get(finding.severity, LINE).replace("0.30", "0.85").replace("0.26", "0.85")


def source(finding: Finding, trace: Trace | None) -> str:
    """The line with two on either side; the line alone where no more is known."""
    if not finding.file:
        return ""
    lines = excerpt(trace, finding.file, finding.line) if trace is not None else []
    if not lines and finding.source:
        lines = [(finding.line, as_typed(finding.source))]
    return code(lines, finding.line) if lines else ""


def samples(finding: Finding) -> str:
    """Which samples of the batch carry the fault."""
    if not finding.samples:
        return ""
    first = ", ".join(map(str, finding.samples[:20]))
    more = f" and {len(finding.samples) - 20} more" if len(finding.samples) > 20 else ""
    return f"<div>In the batch: {'sample' if len(finding.samples) == 1 else 'samples'} {first}{more}</div>"


def evidence(finding: Finding) -> str:
    """The offending elements and the operands that made them."""
    frame = finding.evidence
    if frame is None or not len(frame):
        return ""
    aligns = ["right" if pd.api.types.is_numeric_dtype(frame[name]) else "left" for name in frame.columns]
    rows = [[_value(value) for value in row] for row in frame.head(EVIDENCE_ROWS).itertuples(index=False)]
    total = frame.attrs.get("total", len(frame))  # the frame itself may hold the first of them only
    caption = f"the first {len(rows)} of {plural(total, 'element')}" if total > len(rows) else plural(total, "element")
    return table([str(name).replace("_", " ") for name in frame.columns], rows, aligns, caption)


def _value(value: Any) -> str:
    text = number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(known(value))
    return badge(text, "error") if text in {"nan", "inf", "-inf"} else escape(text)


def path(finding: Finding) -> str:
    """The way from the origin to where it was seen, as stations on a line."""
    stations = list(finding.path)
    if not stations:
        return ""
    shown = stations if len(stations) <= PATH_STATIONS else [*stations[: PATH_STATIONS - 3], None, *stations[-2:]]
    left_out = len(stations) - len(shown) + 1
    parts = [
        _station(each, i == 0, i == len(shown) - 1) if each is not None else _gap(left_out)
        for i, each in enumerate(shown)
    ]
    return f'<div style="margin:4px 0 4px 6px">{"".join(parts)}</div>'


def _station(station: Any, first: bool, last: bool) -> str:
    get = station.get if hasattr(station, "get") else lambda name: getattr(station, name, None)
    role = "origin" if first else ("seen" if last else "")
    module = f"in {escape(get('module'))}" if known(get("module")) else ""
    where = f"{escape(str(get('file')).rsplit('/', 1)[-1])}:{known(get('line'))}" if known(get("file")) else ""
    count = known(get("nonfinite"))
    bad = f"{plural(int(count), 'non-finite value')}" if count != "" else ""
    facts = " · ".join(part for part in (escape(get("phase") or ""), module, where, bad) if part)
    dot = f"{DOT};background:{TINTS['born' if first else 'carried']}"
    line = f"width:2px;height:14px;margin:0 auto;background:{'transparent' if last else LINE}"
    name = f'<b style="font-family:monospace">{escape(get("op") or "leaf")}</b>'
    mark = badge(role, "born" if first else "carried") if role else ""
    return (
        '<div style="display:flex;align-items:flex-start;line-height:1.5"><div style="width:16px;text-align:center">'
        f'<span style="{dot}"></span><div style="{line}"></div></div>'
        f'<div style="padding-left:8px">{name} <span style="opacity:0.85">{facts}</span> {mark}</div></div>'
    )


def _gap(count: int) -> str:
    style = f"margin-left:7px;padding:0 0 6px 15px;border-left:2px dotted {LINE};opacity:0.8"
    return f'<div style="{style}">{plural(count, "operation")} more</div>'


def fixes(finding: Finding) -> str:
    """What to write instead, and what became of each when it was tried."""
    if not finding.fixes:
        return ""
    rows = []
    for fix in finding.fixes:
        word, tint = verdict(fix)
        written = f'<div style="{CODE}">{escape(fix.code)}</div>'
        title = f'<div style="{WORDS}">{sentence(fix_title(fix))}</div>'
        numbers = ["–", "–"] if fix.verdict == "fails" else [number(fix.distortion), number(fix.gradient_max)]
        rows.append([badge(word, tint), title, written, *numbers])
    heads = ["outcome", "fix", "write", "distortion", "largest gradient"]
    tried = sum(fix.verdict != "untried" for fix in finding.fixes)
    caption = f"{tried} of {len(rows)} tried, forward and backward, on the operands that failed" if tried else ""
    if any(known(fix.distortion) != "" for fix in finding.fixes):
        caption += "; distortion: the largest relative change of an element that was healthy"
    return table(heads, rows, ["left", "left", "left", "right", "right"], caption)


def as_text(finding: Finding) -> str:
    """The finding for a terminal."""
    lines = [f"{finding.severity}: {finding.title}", f"  at {place(finding)}"]
    lines += [f"    {finding.source}"] if finding.source else []
    lines += [f"  {finding.explanation}"]
    way = [str(s.get("op") or "leaf") if hasattr(s, "get") else str(getattr(s, "op", "")) for s in finding.path]
    lines += [f"  path: {' → '.join(way)}"] if way else []
    lines += [f"  fix ({verdict(fix)[0]}): {fix_title(fix)}:  {fix.code}" for fix in finding.fixes]
    return "\n".join(lines)
