"""A script that trains in several processes: rank 1 goes bad in step 10. torchrun ... training.py"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
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
