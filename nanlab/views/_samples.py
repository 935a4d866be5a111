"""The guilty samples themselves: the images, or the numbers of the tokens, of the batch that the
failing step read."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from nanlab.errors import NanlabError
from nanlab.program.window import Window, window
from nanlab.trace.program import Ref, Segment, refs_in
from nanlab.views._card import batch_size
from nanlab.views._html import escape, plural

if TYPE_CHECKING:
    from nanlab.rules import Finding
    from nanlab.trace import Trace

MOST = 8  # samples that are shown
SIDES = range(6, 1025)  # pixels of a side
TALL = 72  # pixels on the page
BYTES = 18_000  # of all pictures together, before they are packed
TOKENS = 24  # of a sequence that are shown


def samples(trace: Trace, finding: Finding) -> str:
    """Pictures, or tokens, of the samples that carry the fault; "" where the batch has none."""
    batch = max(batch_size(finding, trace), max(finding.samples, default=-1) + 1)
    if not finding.samples or batch < 2 or not hasattr(trace, "recording"):
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
            f"<figure>{_png(images[i, ::step, ::step])}"
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
    """The tensors with a row for each sample that the step read and no parameter is."""
    named = set(where.recording.program.names)
    for segment in where.segments:
        for call in segment.calls:
            if not where.start <= call.position < where.end:
                continue
            for ref in refs_in((call.args, tuple(call.kwargs.values()))):
                plain = ref.storage in segment.leaves and ref.storage not in named
                if plain and ref.size and ref.size[0] == batch and not ref.tracked:
                    yield _tensor(segment, ref)


def _tensor(segment: Segment, ref: Ref) -> torch.Tensor:
    """What the step read there."""
    storage = segment.saved.get(ref.storage, segment.leaves[ref.storage])
    _, offset, size, stride, dtype = ref[:5]
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


def as_images(tensor: torch.Tensor) -> torch.Tensor | None:
    """(samples, rows, columns, 1 or 3) from 0 to 255, each batch by its own range; None of what is
    no batch of images."""
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
    """Of how many pixels one is shown, so that a report stays small."""
    _, rows, columns, channels = images.shape
    return max(1, math.ceil(math.sqrt(rows * columns * channels * shown / BYTES)))


def _png(image: torch.Tensor) -> str:
    rows, columns, channels = image.shape
    raw = b"".join(b"\0" + bytes(row.reshape(-1).tolist()) for row in image)
    kind = 2 if channels == 3 else 0
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    ]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    wide = max(1, round(TALL * columns / rows))
    return (
        f'<img alt="" width="{wide}" height="{TALL}" style="image-rendering:pixelated"'
        f' src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    )


def _tokens(row: torch.Tensor) -> str:
    numbers = row.tolist()
    shown = " ".join(map(str, numbers[:TOKENS]))
    return f"{shown} …" if len(numbers) > TOKENS else shown
