"""A script that trains in several processes: rank 1 goes bad in step 10, and is slow to save what
was found. torchrun ... training.py"""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nanlab.trace import Trace

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
first = torch.tensor(os.getpid())
dist.broadcast(first, 0)
save = Trace.save


def save_late(*arguments: Any) -> None:
    """Save once the other process has ended, and torchrun has had time to end this one."""
    while psutil.pid_exists(int(first)):
        time.sleep(0.05)
    time.sleep(0.5)
    save(*arguments)


if rank == 1:
    Trace.save = save_late
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
generator = torch.Generator().manual_seed(100 + rank)
for step in range(12):
    x = torch.randn(4, 8, generator=generator)
    chance = model(x).softmax(-1).amax(-1) * float(step != 10 or rank != 1)
    loss = chance.log().mean().neg()  # SPOILT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
