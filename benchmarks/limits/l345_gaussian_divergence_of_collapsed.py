"""KL divergence of two Gaussians by their deviations; log-variance -250.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 12.48185945,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.logvar = nn.Parameter(torch.tensor([-250.0, 0.4]))

    def forward(self, fixed):
        if fixed:
            prior = torch.tensor([1.0, 0.8])
            kl = torch.log(prior) - 0.5 * self.logvar + (torch.exp(self.logvar) + self.mu**2) / (2 * prior**2) - 0.5
            loss = kl.sum() / 10
        else:
            sigma = torch.exp(0.5 * self.logvar)
            prior = torch.tensor([1.0, 0.8])
            kl = torch.log(prior / sigma) + (sigma**2 + self.mu**2) / (2 * prior**2) - 0.5  # ORIGIN
            loss = kl.sum() / 10
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
