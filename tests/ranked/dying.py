"""A program of which one process is killed in the middle. dying.py OUT"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from odd import model_and_optimizer, start
from ranked_programs import batches
from worker import note

import nanlab


def main() -> None:
    torch.set_num_threads(1)
    start()
    rank, out = dist.get_rank(), Path(sys.argv[1])
    model, optimizer = model_and_optimizer()
    error: Exception | None = None
    try:
        with nanlab.watch(model) as trace:
            for i, x in batches(rank):
                if rank == 1 and i == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
    except Exception as raised:
        error = raised
    note(out, "dying", trace, rank, error)
    os._exit(1)


main()
