"""Run some of the programs in this process, one after the other, and write what nanlab says of
each; with ``odd`` those in which the processes are not alike come last.

torchrun ... worker.py OUT PROGRAM:MODE:spoilt ... [odd]
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranked_programs import PROGRAMS

import nanlab
from nanlab.capture import ranks
from nanlab.rules import remedies

REPORTED = ("ddp:stop:spoilt", "ddp:stop:healthy")  # of the others nobody reads the report


def note(
    out: Path,
    wish: str,
    trace: Any,
    rank: int | None = None,
    error: Exception | None = None,
    **more: Any,
) -> None:
    """Write what nanlab says of a run; trace: None where this process did not watch."""
    rank = dist.get_rank() if rank is None else rank
    said: dict[str, Any] = {
        "wish": wish,
        "rank": rank,
        "finished": error is None,
        "error": str(error or ""),
    } | more
    if trace is not None:
        culprit = trace.culprit
        place = ("rank", "step", "line", "source", "cause", "title")
        said |= {
            "culprit": None
            if culprit is None
            else {name: getattr(culprit, name) for name in place},
            "errors": [f.cause for f in trace.findings if f.severity == "error"],
            "ended": trace.recording.ended,
            "steps": len(trace.recording.starts),
            "notes": trace.notes,
            "told": trace.ranks[["rank", "step", "line"]].to_numpy().tolist(),
            "reported": wish in REPORTED and "Ranks</div>" in trace.report().body(),
        }
    with (out / f"rank{rank}.jsonl").open("a") as file:
        file.write(json.dumps(said) + "\n")


def run(out: Path, wish: str) -> None:
    name, mode, state = wish.split(":")
    torch.manual_seed(0)
    model, train = PROGRAMS[name].make(dist.get_rank(), dist.get_world_size(), state == "spoilt")
    began, error = time.monotonic(), None
    remedies.WORK = 5_000_000 if mode == "stop" else 0.0  # the step is the same one in both modes
    try:
        with nanlab.watch(model, on_fault=mode) as trace:
            train()
    except Exception as raised:
        error = raised
    note(out, wish, trace, error=error, seconds=round(time.monotonic() - began, 2))


def main() -> None:
    torch.set_num_threads(1)
    patience, out = ranks.PATIENCE, Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    ranks.PATIENCE = 20.0  # all of them vote, but on a busy machine late
    for wish in sys.argv[2:]:
        if wish != "odd":
            run(out, wish)
            dist.barrier()
    ranks.PATIENCE = patience
    if "odd" in sys.argv:
        from odd import run_all

        run_all(out)
    else:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
