"""Growth-optimal portfolio, the logarithm of the wealth after 160 leveraged periods: the product itself passes 3e38 on one path."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.1803820389,
    "fix": "the sum of log1p of the returns",
}


class GrowthOptimal(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.2, 0.8]))
        t = torch.arange(160.0)
        boom = torch.stack([0.45 + 0.3 * torch.sin(t), 0.4 + 0.2 * torch.cos(2 * t)], -1)
        calm = torch.stack([0.02 + 0.1 * torch.sin(t + 1), 0.01 + 0.08 * torch.cos(3 * t)], -1)
        self.register_buffer("returns", torch.stack([boom, calm]))

    def log_wealth(self, fixed):
        step = torch.einsum("pta,a->pt", self.returns, self.weights)
        if fixed:
            return torch.log1p(step).sum(1)
        wealth = torch.cumprod(1 + step, dim=1)  # ORIGIN
        return wealth[:, -1].log()

    def forward(self, fixed):
        leverage = (self.weights.sum() - 1).square()
        return -self.log_wealth(fixed).mean() / 160 + 0.5 * leverage


def build(fixed: bool = False):
    net = GrowthOptimal()
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(weights, returns):
    return -torch.log(1 + (returns * weights).sum(-1)).sum(1).mean() / 160 + 0.5 * (weights.sum() - 1) ** 2


def truth():
    net = GrowthOptimal().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
