"""A Cox loss takes log(cumsum(exp(risk))); a raw covariate makes one risk score larger than 88."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "logcumsumexp",
}


class Cox(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def partial_likelihood(risk, event, stable):
    if stable:
        at_risk = risk.logcumsumexp(0)
    else:
        expo = torch.exp(risk)  # ORIGIN
        at_risk = torch.log(torch.cumsum(expo, 0))
    return -((risk - at_risk) * event).sum() / event.sum()


def build(fixed: bool = False):
    torch.manual_seed(310)
    net = Cox()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(810)

    def step(i):
        opt.zero_grad()
        x = torch.randn(14, 5, generator=gen)
        if i == 2:
            net.net[2].bias.data.fill_(3.0)
            net.net[2].weight.data.abs_()
            x[4] = 3000.0 * torch.sign(net.net[0].weight.data.sum(0))
        loss = partial_likelihood(net(x), (torch.arange(14) % 3 > 0).float(), fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
