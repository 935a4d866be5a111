"""Hellinger distance sqrt(1 - sum sqrt(p q)) between a topic and its prior, with which it still agrees: a cone; slopes within 0.0766 are right."""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.1282726859,
    "bound": 0.0766,
    "fix": "sqrt(1 - bc + 1e-6), or a gradient of 0 where the distance is 0",
}


class TopicDrift(nn.Module):
    """distance between the topics of two time slices"""

    def __init__(self):
        super().__init__()
        self.now = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.5, -0.3, 0.9, 0.1]]))
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("before", torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.4, 0.3, 0.2]]))

    def distance(self, p, q, fixed):
        overlap = torch.sum(torch.sqrt(p * q), dim=-1)
        gap = 1 - overlap
        if fixed:
            apart = gap > 1e-7
            return torch.where(apart, torch.where(apart, gap, torch.ones_like(gap)).sqrt(), torch.zeros_like(gap))
        return torch.sqrt(gap)  # ORIGIN

    def forward(self, fixed):
        p = torch.softmax(self.now / self.temperature, dim=-1)
        return self.distance(p, self.before, fixed).mean()


def build(fixed: bool = False):
    net = TopicDrift()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(now, temperature, before):
    p = torch.softmax(now[1] / temperature, 0)
    return (1 - torch.exp(0.5 * (p.log() + before[1].log())).sum()) ** 0.5 / 2


def limits(grads):
    # H^2 = Var_p(d) / 8 for logits d next to the prior, so that a slope is p_i (d_i - mean) / sqrt(8 Var) / 2, at most 0.25 sqrt(3) / sqrt(8) / 2
    grads["now"][0] = float("nan")
    return grads


def truth():
    net = TopicDrift().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return limits(grads)
