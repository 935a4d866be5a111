"""What a watch takes of memory beside the copies that its budget pays, and what a capsule takes.

    python benchmarks/budget.py [--width 2048] [--steps 4]

The model is an MLP under AdamW. Memory is the growth of the resident set while the watch runs, less
the same growth without one; the capsule is that of the last three steps of a transformer.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nanlab

MIB = 2**20


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB


def bytes_of(model: nn.Module) -> float:
    """MiB of parameters."""
    return sum(p.numel() * p.itemsize for p in model.parameters()) / MIB


def growth(watching: Any, step: Callable[[], None], steps: int) -> float:
    """MiB by which the process has grown after some steps, the watch still running."""
    gc.collect()
    before = resident()
    with watching:
        for _ in range(steps):
            step()
        return resident() - before


def measure_memory(width: int, steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(8, width)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    small = nn.Linear(2, 2)
    with nanlab.watch(small):  # loads what a watch loads at its first use
        small(torch.ones(1, 2)).sum().backward()
    size = bytes_of(model)
    growth(nullcontext(), step, steps)
    bare = growth(nullcontext(), step, steps)
    watching = nanlab.watch(model, on_fault="record")
    grown = growth(watching, step, steps) - bare
    program = watching.trace.recording.program
    copies = {id(s): s for segment in program.segments for s in segment.saved.values()}
    paid = sum(s.nbytes() for s in copies.values()) / MIB
    print(
        f"parameters {size:.1f} MiB; beyond bare {grown:.1f} MiB, of which copies {paid:.1f} MiB:"
        f" the rest is {(grown - paid) / size:.2f} times the parameters"
    )


def measure_capsule() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 5), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(8, 64, 128), torch.randint(0, 10, (8, 64))
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        start = time.thread_time()
        path = trace.save(Path(folder) / "a.nanlab")
        saved = time.thread_time()
        nanlab.load(path)
        loaded = time.thread_time()
        print(
            f"capsule of {len(trace.recording.program.segments)} steps of a"
            f" {bytes_of(model) * MIB / 1e6:.1f} MB transformer: {path.stat().st_size / 1e6:.1f}"
            f" MB, saved in {saved - start:.2f} s, loaded in {loaded - saved:.2f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    measure_memory(args.width, args.steps)
    measure_capsule()


if __name__ == "__main__":
    main()
