"""KL of Gaussians as (s1 / s2)^2 of exponentials of learned log-scales near 90.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.2953505297,
}


def kl(mu, log_p, log_q):
    sp, sq = torch.exp(log_p), torch.exp(log_q)  # ORIGIN
    return torch.log(sq / sp) + (sp.pow(2) + mu.pow(2)) / (2 * sq.pow(2)) - 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_p = nn.Parameter(torch.tensor([90.0, 0.3]))
        self.log_q = nn.Parameter(torch.tensor([90.5, 0.1]))

    def forward(self, fixed):
        mu = torch.tensor([0.0, 0.4])
        if fixed:
            d = self.log_q - self.log_p
            return (d + (torch.exp(-2 * d) + (mu * torch.exp(-self.log_q)) ** 2) / 2 - 0.5).sum()
        return kl(mu, self.log_p, self.log_q).sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
