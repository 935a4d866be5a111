"""The card of a finding: headline, line, best fix, samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from nanlab.errors import NanlabError
from nanlab.program.rerun import Window, window
from nanlab.rules import Edit, Finding, Fix
from nanlab.rules.cure import Cure
from nanlab.trace import Trace
from nanlab.trace.op import location, module_name
from nanlab.trace.program import Ref, Segment
from nanlab.views.charts import png
from nanlab.views.columns import as_typed, excerpt, known
from nanlab.views.html import TINTS, capital, ended, escape, inline, plural, sentence, tag

# Fixes and cures as blocks to copy and to try.

CURE = "cure"  # the page's name for the cure of the step; a fix is "finding.fix", by number
ORDER = ("verified", "finite", "untried", "fails")  # of fixes, the best first
VERDICTS = {
    "verified": "the failing step was run again with it: finite and right",
    "finite": "the failing step was run again with it: finite, but not known to be right",
    "fails": "the failing step was run again with it: still not finite",
    "untried": "the failing step was not run again with it",
}
WAITING = "Trying fixes on the recorded step … (interrupting the kernel does no harm)"
INTERRUPTED = "Trying the fixes was interrupted; trace.report() resumes it."


def best_fix(finding: Finding) -> Fix | None:
    """The fix with the best verdict, that may raise last; of equals, the first."""

    def rank(fix: Fix) -> tuple[bool, int]:
        return fix.may_raise, ORDER.index(fix.verdict)

    return min(finding.fixes, key=rank, default=None)


def cure_of(trace: Trace | None) -> Cure | None:
    """The cure of a step with several faults; None for a single fault, or if unknown."""
    cure = trace.cure if trace is not None else None
    return cure if cure is not None and len(cure.fixes) > 1 else None


def first_remedy(finding: Finding, trace: Trace | None, which: int) -> str:
    """The cure of a step with several faults, else the best fix, or a line that none helps."""
    cure = cure_of(trace)
    if cure is not None and trace is not None and finding is trace.culprit:
        return cure_block(cure)
    fix = best_fix(finding)
    if fix is None:
        return ""
    if fix.verdict == "fails":
        count = len(finding.fixes)
        told = f"None of the {count} fixes tried makes"
        told = told if count > 1 else "The one fix tried does not make"
        return f'<div class="nl-fix">{tag("fails", "fails")} {told} the step finite.</div>'
    return fix_block(fix, finding.fixes.index(fix), which)


def fix_block(fix: Fix, number: int, which: int = -1, reason: bool = True) -> str:
    """A fix with verdict, title and code, as a diff where it is of several places; ``which``:
    number of its finding.

    reason: whether to show why it is not verified.
    """
    key = f"{which}.{number}" if which >= 0 and fix.tried else ""
    if len(fix.edits) > 1:
        body = difference(fix.edits)
        return _block(fix, sentence(fix.title), body, key, fix.diff(), reason)
    body = f'<pre class="nl-code nl-written" tabindex="0">{escape(written(fix))}</pre>'
    return _block(fix, sentence(fix.title), body, key, written(fix), reason)


def cure_block(cure: Cure) -> str:
    """The edits for all faults of a step, as a diff."""
    head = "Several faults in this step, "  # one edit may mend more than one
    head += "cured together: " if cure.verified else "no cure known; these edits come nearest: "
    title = sentence(cure.title) if len(cure.fixes) == 1 else head + inline(cure.title)
    return _block(cure, title, difference(cure.edits), CURE, cure.diff())


def _block(
    tried: Fix | Cure, head: str, body: str, key: str, text: str, with_reason: bool = True
) -> str:
    reason = reason_of(tried) if with_reason else ""
    why = f'. <span class="nl-dim">{inline(reason)}</span>' if reason else ""
    return (
        f'<div class="nl-fix" data-try="{key}" data-copy="{escape(text)}"><div'
        f' class="nl-fix-head">{verdict(tried)} <span'
        f' class="nl-fix-title">{head}{why}</span></div>{body}</div>'
    )


def reason_of(tried: Fix | Cure) -> str:
    """Why a fix is not verified: ``The loss is 3.2e-05, its limit 0.``"""
    return f"{capital(tried.why)}." if tried.verdict != "verified" and tried.why else ""


def verdict(tried: Fix | Cure) -> str:
    """The verdict as a coloured tag."""
    return tag(tried.verdict, tried.verdict, VERDICTS[tried.verdict])


def written(fix: Fix) -> str:
    """The lines to write: those of the edit, or the code."""
    return "\n".join(edit.text for edit in fix.edits) if fix.edits else fix.code


def difference(edits: Sequence[Edit]) -> str:
    """Edits as a diff with line numbers."""
    if not edits:
        return ""
    files = dict.fromkeys(edit.file for edit in edits)
    rows = []
    for file in files:
        if len(files) > 1:
            rows.append(f'<span class="nl-no">{ended(location(file, "").rstrip(":"))}</span>')
        for edit in sorted((e for e in edits if e.file == file), key=lambda e: e.first):
            rows += [_row("-", edit.first + i, row) for i, row in enumerate(edit.old.splitlines())]
            rows += [_row("+", edit.first + i, row) for i, row in enumerate(edit.rows())]
    places = ", ".join(location(edit.file, edit.first) for edit in edits)
    return (
        f'<pre class="nl-code nl-diff" tabindex="0" aria-label="Edits at {escape(places)}">'
        f"{chr(10).join(rows)}</pre>"
    )


def _row(sign: str, number: int, text: str) -> str:
    kind = "nl-goes" if sign == "-" else "nl-comes"
    return (
        f'<span class="nl-row {kind}"><span class="nl-no">{number:>4} </span>{sign}'
        f" {escape(as_typed(text))} </span>"
    )


RANGES = 8  # of sample numbers that are shown
EDGES = {
    "error": "rgba(217,69,61,0.9)",
    "warning": "rgba(217,138,31,0.9)",
    "note": "rgba(92,107,192,0.9)",
}


def card(finding: Finding, trace: Trace | None = None, which: int = -1, waiting: str = "") -> str:
    """Headline with place, three lines of code, the best fix, the samples.

    which: number of the finding in ``trace.findings``. waiting: text in place of untried fixes.
    """
    if waiting:
        remedy = f'<div class="nl-fix nl-dim" role="status">{escape(waiting)}</div>'
    else:
        remedy = first_remedy(finding, trace, which)
    parts = [headline(finding), facts(finding), code(finding, trace), before(finding, trace)]
    parts += [remedy, samples(finding, trace)]
    edge = EDGES.get(finding.severity, EDGES["note"])
    style = f"border-left:4px solid {edge};padding-left:10px"
    return f'<div class="nl-card nl-{finding.severity}" style="{style}">{"".join(parts)}</div>'


def headline(finding: Finding) -> str:
    """Place and title."""
    place = location(finding.file, finding.line)
    where = f'<code class="nl-place">{ended(place)}</code> ' if place else ""
    words = sentence(finding.title, finding.op)
    return f'<div class="nl-headline" role="heading" aria-level="2">{where}<b>{words}</b></div>'


def facts(finding: Finding) -> str:
    """Module, step, phase, symptom and cause, in one line."""
    step = finding.when if known(finding.step) != "" and finding.step >= 0 else ""
    module = f"in <code>{escape(module_name(finding.module))}</code>" if finding.module else ""
    symptom = SYMPTOMS.get(finding.symptom, "")
    rank = finding.rank
    ranked = f"rank {rank}" if rank is not None else ""
    parts = [module, step, finding.phase, symptom, ranked, escape(finding.cause)]
    if finding.library:
        file, line, function = finding.library
        parts.append(f"inside <code>{escape(function)}</code> ({escape(location(file, line))})")
    return f'<div class="nl-dim">{" · ".join(part for part in parts if part)}</div>'


SYMPTOMS = {
    "loss-nan": "NaN in the loss",
    "loss-inf": "infinity in the loss",
    "grad-nan": "NaN in a gradient",
    "grad-inf": "infinity in a gradient",
    "param-nan": "NaN in a parameter",
    "param-inf": "infinity in a parameter",
    "state-nan": "NaN in an optimizer state",
    "state-inf": "infinity in an optimizer state",
}


def code(finding: Finding, trace: Trace | None, context: int = 1) -> str:
    """The line with its neighbours; alone if those are unknown."""
    lines = []
    if trace is not None and finding.file:
        lines = excerpt(trace, finding.file, finding.line, context)
    if not lines and finding.source:
        lines = [(finding.line, as_typed(finding.source))]
    return source_block(lines, finding.line)


def source_block(lines: Iterable[tuple[int, str]], marked: int) -> str:
    """Numbered lines, one of them marked."""
    rows = "\n".join(
        f'<span class="nl-row{" nl-hit" if n == marked else ""}"{HIT if n == marked else ""}>'
        f'<span class="nl-no">{"→" if n == marked else " "}{n:>4} </span>{escape(text)} </span>'
        for n, text in lines
    )
    return f'<pre class="nl-code" tabindex="0">{rows}</pre>' if rows else ""


def before(finding: Finding, trace: Trace | None) -> str:
    """The update of the step before that moved a parameter behind the culprit far."""
    if trace is None or finding is not trace.culprit:
        return ""
    thrown = (
        each
        for each in trace.own_findings
        if (each.cause, each.phase, each.step) == ("learning-rate", "optimizer", finding.step - 1)
    )
    found = next(thrown, None)
    if found is None:
        return ""
    place = f"<code>{ended(location(found.file, found.line))}</code> " if found.file else ""
    return f'<div class="nl-samples">Just before: {place}{sentence(found.title)}</div>'


HIT = f' style="background:{TINTS["error"]}"'


def samples(finding: Finding, trace: Trace | None) -> str:
    """Samples that carry the fault: ``all 128 samples``, ``samples 4, 7–8 (3 of 128)``."""
    if not finding.samples:
        return ""
    batch = batch_size(finding, trace)
    count = len(finding.samples)
    if batch == count:
        told = "the only sample" if count == 1 else f"all {count:,} samples"
        return f'<div class="nl-samples">In the batch: {told}</div>'
    of = f"{count:,}{f' of {batch:,}' if batch > count else ''}"
    told = f"sample{'' if count == 1 else 's'} {ranges(finding.samples)}"
    many = f" ({of})" if batch > count or count > 1 else ""
    return f'<div class="nl-samples">In the batch: {told}{many}</div>'


def batch_size(finding: Finding, trace: Trace | None) -> int:
    """Batch size: the leading dimension of the faulty result; 0 if unknown."""
    if trace is None:
        return 0
    for position in [finding.position, *(station.get("position", -1) for station in finding.path)]:
        if position in trace.ops.index:
            shape = str(trace.ops.at[position, "shape"]).strip("()[] ").split(",")
            if shape[0].strip().isdigit() and int(shape[0]) > max(finding.samples, default=-1):
                return int(shape[0])
    return 0


def ranges(numbers: Iterable[int]) -> str:
    """``0–3, 7, 9 and 4 more``."""
    found = runs(sorted(numbers))
    shown = ", ".join(
        str(a) if a == b else f"{a}{', ' if b == a + 1 else '–'}{b}" for a, b in found[:RANGES]
    )
    left = sum(b - a + 1 for a, b in found[RANGES:])
    return f"{shown} and {left:,} more" if left else shown


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers; ``numbers`` ascend."""
    found: list[tuple[int, int]] = []
    for n in numbers:
        first = found.pop()[0] if found and n == found[-1][1] + 1 else n
        found.append((first, n))
    return found


# The samples with the fault, as images or token numbers.

MOST = 8  # samples that are shown
SIDES = range(6, 1025)  # pixels of a side
TALL = 72  # pixels on the page
BYTES = 18_000  # of all pictures together, before they are packed
TOKENS = 24  # of a sequence that are shown


def guilty_samples(trace: Trace, finding: Finding) -> str:
    """Pictures or tokens of the samples with the fault; "" for other data."""
    batch = max(batch_size(finding, trace), max(finding.samples, default=-1) + 1)
    if not finding.samples or batch < 2:
        return ""
    first = trace.recording.first_step
    try:
        where = window(trace.recording, finding.step - first if finding.step >= 0 else None)
    except NanlabError:
        return ""
    read = list(_read(where, batch))
    images = next((shown for t in read if (shown := as_images(t)) is not None), None)
    chosen = finding.samples[:MOST]
    if images is not None:
        step = _every(images, len(chosen))
        body = "".join(
            f"<figure>{_picture(images[i, ::step, ::step])}"
            f'<figcaption class="nl-dim">{i}</figcaption></figure>'
            for i in chosen
        )
        return _told(finding, f'<div class="nl-pictures">{body}</div>')
    tokens = next((t for t in read if t.dim() == 2 and not t.is_floating_point()), None)
    if tokens is None or tokens.shape[1] < 2 or tokens.dtype is torch.bool:
        return ""
    lines = (f"{i:>5}  {_tokens(tokens[i])}" for i in chosen)
    text = "\n".join(map(escape, lines))
    return _told(finding, f'<pre class="nl-code" tabindex="0">{text}</pre>')


def _told(finding: Finding, body: str) -> str:
    left = len(finding.samples) - MOST
    return body + (
        f'<div class="nl-dim">and {plural(left, "sample")} more</div>' if left > 0 else ""
    )


def _read(where: Window, batch: int) -> Iterator[torch.Tensor]:
    """The input tensors of the step with a row per sample, parameters left out."""
    named = set(where.recording.program.names)
    for segment in where.segments:
        for call in segment.calls:
            if not where.start <= call.position < where.end:
                continue
            for ref in call.read:
                plain = ref.storage in segment.leaves and ref.storage not in named
                if plain and ref.size and ref.size[0] == batch and not ref.tracked:
                    yield _tensor(segment, ref)


def _tensor(segment: Segment, ref: Ref) -> torch.Tensor:
    """The tensor that the step read."""
    storage = segment.saved.get(ref.storage, segment.leaves[ref.storage])
    _, offset, size, stride, dtype = ref[:5]
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


def as_images(tensor: torch.Tensor) -> torch.Tensor | None:
    """(samples, rows, columns, 1 or 3) from 0 to 255, scaled per sample; None: no images."""
    if tensor.dim() == 4 and tensor.shape[1] in (1, 3):
        shown = tensor.permute(0, 2, 3, 1)
    elif tensor.dim() == 4 and tensor.shape[-1] in (1, 3):
        shown = tensor
    elif tensor.dim() == 3:
        shown = tensor.unsqueeze(-1)
    else:
        return None
    if shown.shape[1] not in SIDES or shown.shape[2] not in SIDES or shown.is_complex():
        return None
    values = shown.detach().to("cpu", torch.float32)
    finite = values[torch.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    scaled = (values - low) * (255 / (high - low) if high > low else 0.0)
    return torch.nan_to_num(scaled, 0.0, 255.0, 0.0).clamp(0, 255).to(torch.uint8)


def _every(images: torch.Tensor, shown: int) -> int:
    """The stride between shown pixels that keeps a report small."""
    _, rows, columns, channels = images.shape
    return max(1, math.ceil(math.sqrt(rows * columns * channels * shown / BYTES)))


def _picture(image: torch.Tensor) -> str:
    rows, columns, channels = image.shape
    wide = max(1, round(TALL * columns / rows))
    cells = image.numpy() if channels == 3 else image[..., 0].numpy()
    return (
        f'<img alt="" width="{wide}" height="{TALL}" style="image-rendering:pixelated"'
        f' src="{png(cells)}">'
    )


def _tokens(row: torch.Tensor) -> str:
    numbers = row.tolist()
    shown = " ".join(map(str, numbers[:TOKENS]))
    return f"{shown} …" if len(numbers) > TOKENS else shown
