"""Pretraining and fine-tuning are functions of their own with optimizers of their own; the fine-tuning loss divides by a class's share."""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 7,
    "n_steps": 10,
    "fix": "clamp the class counts to at least one",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
        self.dec, self.head = nn.Linear(6, 12), nn.Linear(6, 3)


def build(fixed: bool = False):
    torch.manual_seed(151)
    net = Net()
    gen = torch.Generator().manual_seed(152)
    opt_pre = torch.optim.Adam([*net.enc.parameters(), *net.dec.parameters()], lr=2e-3)
    opt_fine = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)

    def pretrain():
        x = torch.randn(16, 12, generator=gen)
        opt_pre.zero_grad()
        loss = nn.functional.mse_loss(net.dec(net.enc(x * (torch.rand(16, 12, generator=gen) > 0.2))), x)
        loss.backward()
        opt_pre.step()
        return loss

    def finetune(only_two):
        x = torch.randn(16, 12, generator=gen)
        y = torch.randint(0, 2 if only_two else 3, (16,), generator=gen)
        counts = torch.bincount(y, minlength=3).float()
        if fixed:
            counts = counts.clamp_min(1.0)
        weight = counts.reciprocal()  # ORIGIN
        weight = weight / weight.sum()
        opt_fine.zero_grad()
        loss = nn.functional.cross_entropy(net.head(net.enc(x)), y, weight=weight)
        loss.backward()
        opt_fine.step()
        return loss

    def step(i):
        return pretrain() if i < 4 else finetune(only_two=i == 7)

    return net, step
