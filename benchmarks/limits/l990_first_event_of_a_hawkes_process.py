"""Hawkes process without immigrants: the first event has no intensity, and its log-likelihood is multiplied by 0."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 4.818041396,
    "fix": "an intensity of 1 where there is no history",
}


SHIFT = 0.0


def near(h):
    global SHIFT
    SHIFT = abs(h)


class SelfExciting(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_jump = nn.Parameter(torch.tensor(-0.2))
        self.log_decay = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("times", torch.tensor([[0.3, 0.9, 1.4, 2.7], [0.1, 0.5, 2.0, 2.2]]))
        self.register_buffer("observed", torch.tensor([[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]))
        self.horizon = 3.0

    def intensity(self):
        state = torch.full_like(self.times[:, 0], SHIFT)
        last, rates = self.times[:, 0], []
        for t in self.times.unbind(1):
            state = state * torch.exp(-self.log_decay.exp() * (t - last))
            rates.append(state)
            state, last = state + self.log_jump.exp(), t
        return torch.stack(rates, 1)

    def compensator(self):
        beta = self.log_decay.exp()
        return (self.log_jump.exp() / beta * -torch.expm1(-beta * (self.horizon - self.times))).sum(1)

    def forward(self, fixed):
        rate = self.intensity()
        if fixed:
            rate = rate.masked_fill(self.observed == 0, 1.0)
        each = self.observed * torch.log(rate)  # ORIGIN
        return (self.compensator() - each.sum(1)).mean()


def build(fixed: bool = False):
    net = SelfExciting()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(log_jump, log_decay, times, observed):
    a, b, loss = log_jump.exp(), log_decay.exp(), 0.0
    for row in times.tolist():
        for i, t in enumerate(row):
            loss = loss + a / b * (1 - torch.exp(-b * (3 - t)))
            if i > 0:
                loss = loss - torch.log(a * sum(torch.exp(-b * (t - s)) for s in row[:i]))
    return loss / 2


def truth():
    net = SelfExciting().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
