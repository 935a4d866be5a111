"""What watching takes: memory beyond the bare run, and the time to make a frame of a million rows.

    python benchmarks/memory.py [--rows 1000000] [--steps 12] [--output benchmarks/results/memory.md]

Rows: the operations are on small tensors with many exponents, so that each row has a full
histogram. Memory is the growth of the resident set.

Peak: each model trains in fresh processes, bare and watched; the difference of their highest
resident sets, less the copies that the budget pays, against the bytes of the parameters. Blocks
from 64 KiB are mapped by themselves: a heap that falls into pieces holds up to three times the
parameters more.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from models import MODELS, Step
from overhead import warm_up
from torch import nn

import nanlab
from nanlab.capture.buffers import CopyBuffers


def wide() -> tuple[nn.Module, Step]:
    """An MLP of 67 MB, whose parameters are most of its memory."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 2048)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return model, step


TRAINED = {"wide MLP": wide, **{name: MODELS[name] for name in ("transformer", "GPT-2", "CNN")}}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure(rows: int) -> dict[str, float]:
    """Seconds for the frame and bytes for each row."""
    torch.manual_seed(0)
    x = torch.randn(256)
    with nanlab.watch(keep=2) as warm:
        x.exp()
    len(warm.ops)
    gc.collect()
    before = _resident()
    with nanlab.watch(keep=2) as trace, torch.no_grad():
        for _ in range(rows):
            x.exp()
    gc.collect()
    recorded = _resident() - before
    start = time.thread_time()
    frame = trace.ops
    seconds = time.thread_time() - start
    assert len(frame) == rows
    return {"rows": rows, "bytes a row": recorded / rows, "seconds for trace.ops": seconds}


def train(name: str, detail: str, steps: int) -> tuple[int, int, int]:
    """Peak of this process in bytes, the largest sum of copies, and the bytes of parameters."""
    warm_up()
    copies = [0]
    copy = CopyBuffers.copy

    def counted(self: CopyBuffers, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        made = copy(self, storage)
        copies[0] = max(copies[0], self.spent + self._idle)
        return made

    CopyBuffers.copy = counted  # type: ignore[method-assign]
    model, step = TRAINED[name]()
    watching = (
        contextlib.nullcontext()
        if detail == "bare"
        else nanlab.watch(model, on_fault="record", detail=detail)  # type: ignore[arg-type]
    )
    with watching:
        for _ in range(steps):
            step()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak, copies[0], sum(p.numel() * p.itemsize for p in model.parameters())


def peaks(name: str, steps: int) -> str:
    """A line of the table for one model."""
    found = {}
    for detail in ("bare", "full", "fault"):
        command = [sys.executable, __file__, "--train", name, "--detail", detail]
        told = subprocess.run(
            [*command, "--steps", str(steps)],
            check=True,
            capture_output=True,
            text=True,
            env=dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536"),
        ).stdout
        found[detail] = tuple(int(word) for word in told.split()[-3:])
    bare, _, parameters = found["bare"]
    cells = [f"{parameters / 2**20:.1f}"]
    for detail in ("full", "fault"):
        peak, copies, _ = found[detail]
        rest = peak - bare - copies
        cells += [f"{copies / 2**20:.0f}", f"{rest / 2**20:.1f} ({rest / parameters:.2f})"]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--detail", default="full", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.train:
        return print(*train(args.train, args.detail, args.steps))
    text = (
        f"Peak beyond the bare run after {args.steps} steps, MiB (as a multiple of the"
        " parameters):\n\n| model | parameters | copies, full | rest, full |"
        " copies, fault | rest, fault |\n|---|---|---|---|---|---|\n"
    )
    print(text, end="")
    for name in TRAINED:
        line = peaks(name, args.steps) + "\n"
        print(line, end="", flush=True)
        text += line
    if args.rows:
        found = measure(args.rows)
        table = (
            "\n| rows | bytes a row | seconds for trace.ops |\n|---|---|---|\n"
            f"| {found['rows']:,} | {found['bytes a row']:.0f} |"
            f" {found['seconds for trace.ops']:.2f} |\n"
        )
        print(table)
        text += table
    if args.output:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
