"""Click probabilities are clamped to [1e-8, 1 - 1e-8]; in float32 that upper bound is one, and log(1 - p) is -inf."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("clamp",),
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "binary_cross_entropy_with_logits, or an epsilon of 1e-6",
}


class FactorisationMachine(nn.Module):
    def __init__(self, fields=5, size=12, dim=6):
        super().__init__()
        self.linear, self.factor = nn.Embedding(fields * size, 1), nn.Embedding(fields * size, dim)
        self.deep = nn.Sequential(nn.Linear(fields * dim, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("offset", torch.arange(fields) * size)

    def forward(self, ids, boost):
        v = self.factor(ids + self.offset)
        pair = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return self.linear(ids + self.offset).sum((1, 2)) + pair + self.deep(v.flatten(1)).squeeze(1) + boost


def log_loss(logit, y, eps):
    p = torch.sigmoid(logit).clamp(eps, 1 - eps)  # ALSO
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(63)
    net = FactorisationMachine()
    with torch.no_grad():
        net.factor.weight.mul_(0.3)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(163)

    def step(i):
        ids = torch.randint(0, 12, (16, 5), generator=gen)
        boost = torch.zeros(16)
        if i == 4:
            boost[3] = 30.0  # a pinned advertisement
        y = (torch.rand(16, generator=gen) < 0.3).float()
        opt.zero_grad()
        loss = log_loss(net(ids, boost), y, 1e-6 if fixed else 1e-8)
        loss.backward()
        opt.step()
        return loss

    return net, step
