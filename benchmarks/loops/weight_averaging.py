"""Stochastic weight averaging with a focal loss; confident predictions make its power's base zero. pow-fraction-at-zero"""
import argparse

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=400)
p.add_argument("--late", type=int, default=300)
p.add_argument("--repaired", action="store_true")
cfg = p.parse_args()


def focal(logits, y, gamma=0.5):
    logp = logits.log_softmax(1).gather(1, y[:, None])[:, 0]
    miss = 1 - logp.exp()
    if cfg.repaired:
        miss = miss.clamp_min(1e-6)
    return -(miss**gamma * logp).mean()  # FAULT


torch.manual_seed(5)
net = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
swa_net = AveragedModel(net)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
swa_sched = SWALR(opt, swa_lr=0.01)
centres = torch.randn(3, 10)
per_epoch = 50


def epoch_of(number):
    for i in range(per_epoch):
        y = torch.randint(0, 3, (40,))
        x = centres[y] + 0.8 * torch.randn(40, 10)
        if number * per_epoch + i == cfg.late:
            x[4] = 300 * centres[y[4]]  # forgot to normalise
        yield x, y


swa_start = 0.5 * cfg.steps / per_epoch
for epoch in range(cfg.steps // per_epoch):
    total = 0.0
    for x, y in epoch_of(epoch):
        opt.zero_grad()
        loss = focal(net(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    if epoch > swa_start:
        swa_net.update_parameters(net)
        swa_sched.step()
    else:
        sched.step()
update_bn((x for x, _ in epoch_of(0)), swa_net)
print(f"{total / per_epoch:.4f}")
