"""Topic proportions by breaking a stick, v_k prod (1 - v_j), where a fraction of sigmoid(20) has rounded to 1: e^-20 is left, not 0."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.019704727,
    "fix": "logsigmoid of the fractions and of their complements, summed",
}


class StickBreakingTopics(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[0.4, 20.0, -0.3], [-0.5, 0.2, 1.0]]))
        self.register_buffer("counts", torch.tensor([[4.0, 6.0, 0.5, 0.5], [2.0, 3.0, 3.0, 1.0]]))

    def log_proportions(self, fixed):
        if fixed:
            left = F.logsigmoid(-self.logits).cumsum(-1)
            taken = F.pad(F.logsigmoid(self.logits), (0, 1))
            return taken + F.pad(left, (1, 0))
        v = torch.sigmoid(self.logits)
        remaining = torch.cumprod(1 - v, dim=-1)
        weights = F.pad(v, (0, 1), value=1.0) * F.pad(remaining, (1, 0), value=1.0)
        return torch.log(weights)  # ORIGIN

    def forward(self, fixed):
        share = self.counts / self.counts.sum(-1, keepdim=True)
        return -torch.einsum("dk,dk->d", share, self.log_proportions(fixed)).mean()


def build(fixed: bool = False):
    net = StickBreakingTopics()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(logits, counts):
    share = counts / counts.sum(1, keepdim=True)
    loss = 0.0
    for k in range(3):  # stick k is broken for topic k and left whole for the later ones
        loss = loss + share[:, k] * F.softplus(-logits[:, k]) + share[:, k + 1 :].sum(1) * F.softplus(logits[:, k])
    return loss.mean()


def truth():
    net = StickBreakingTopics().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
