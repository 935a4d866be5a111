"""Interval-censored Weibull lifetimes, log(S(l) - S(r)), with a unit that failed late in the second batch: e^-144 and e^-169 are both 0 in float32."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "overflow",
    "loss_truth": 48.79427009,
    "fix": "-H(l) + log(-expm1(H(l) - H(r)))",
}


class IntervalCensored(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.shape = nn.Parameter(torch.tensor(2.0))
        self.effect = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.register_buffer("left", torch.tensor([0.2, 12.0, 0.9, 0.5]))
        self.register_buffer("right", torch.tensor([0.6, 13.0, 1.4, 2.0]))
        self.register_buffer("x", torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.5, 1.0], [-1.0, 0.4]]))
        self.batch = [0, 1, 3]

    def cumulative_hazard(self, t):
        scale = torch.exp(self.log_scale + self.x[self.batch] @ self.effect)
        return (t[self.batch] / scale) ** self.shape

    def log_likelihood(self, fixed):
        early, late = self.cumulative_hazard(self.left), self.cumulative_hazard(self.right)
        if fixed:
            return -early + torch.log(-torch.expm1(early - late))
        failed = torch.exp(-early) - torch.exp(-late)
        return failed.log()  # ORIGIN

    def forward(self, fixed):
        return -self.log_likelihood(fixed).mean()


def build(fixed: bool = False):
    net = IntervalCensored()
    opt = torch.optim.Adam(net.parameters(), lr=1e-5)
    batches = [[2, 0, 3], [0, 1, 3]]

    def step(i):
        net.batch = batches[i % 2]
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(log_scale, shape, effect, left, right, x):
    scale = torch.exp(log_scale + x @ effect)
    a, b = (left / scale) ** shape, (right / scale) ** shape
    return (a - torch.log(1 - torch.exp(a - b)))[[0, 1, 3]].mean()  # the second batch


def truth():
    net = IntervalCensored().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
