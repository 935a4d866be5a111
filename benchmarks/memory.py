"""What a recorded operation takes: memory, and the time to make a frame of a million rows.

    python benchmarks/memory.py [--rows 1000000] [--output benchmarks/results/memory.md]

The operations are on small tensors with many exponents, so that each row has a full histogram.
Memory is the growth of the resident set.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import torch

import nanlab


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
    start = time.perf_counter()
    frame = trace.ops
    seconds = time.perf_counter() - start
    assert len(frame) == rows
    return {"rows": rows, "bytes a row": recorded / rows, "seconds for trace.ops": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(args.rows)
    text = "| rows | bytes a row | seconds for trace.ops |\n|---|---|---|\n"
    text += (
        f"| {found['rows']:,} | {found['bytes a row']:.0f} |"
        f" {found['seconds for trace.ops']:.2f} |\n"
    )
    print(text)
    if args.output:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
