"""Policy ratio exp(new) / exp(old) of sequence log-probabilities near -120: 0 / 0.

Source: well-known fault (PPO over sequences)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.9098243379,
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.logp = nn.Parameter(torch.tensor([-120.0, -2.0]))

    def forward(self, fixed):
        old = torch.tensor([-120.5, -2.2])
        if fixed:
            ratio = torch.exp(self.logp - old)
        else:
            ratio = torch.exp(self.logp) / torch.exp(old)  # ORIGIN
        loss = -(ratio * torch.tensor([0.7, -0.2])).sum()
        return loss


def build(fixed: bool = False):
    net = Policy()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    logp = torch.tensor([-120.0, -2.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-120.5, -2.2])
    ratio = torch.exp(logp - old)
    loss = -(ratio * torch.tensor([0.7, -0.2])).sum()
    dlogp_, = torch.autograd.grad(loss, [logp])
    return {"logp": dlogp_}
