"""MAML with a normalised inner gradient: a task whose margin loss is already met has a zero gradient, and g / ||g|| is 0 / 0."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 7,
    "n_steps": 10,
    "fix": "an epsilon beside the norm",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(16, 3) * 0.5), nn.Parameter(torch.zeros(16))
        self.w2, self.b2 = nn.Parameter(torch.randn(1, 16) * 0.3), nn.Parameter(torch.zeros(1))

    def forward(self, x, weights=None):
        w1, b1, w2, b2 = weights or (self.w1, self.b1, self.w2, self.b2)
        return F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2).squeeze(-1)


def adapt(net, x, y, eps, steps=2, lr=0.1):
    weights = [net.w1, net.b1, net.w2, net.b2]
    for _ in range(steps):
        margin = torch.relu(0.2 - y * net(x, weights)).mean()
        grads = torch.autograd.grad(margin, weights, create_graph=True)
        total = torch.stack([(g * g).sum() for g in grads]).sum()
        size = (total + eps).sqrt() if eps else total.detach().sqrt()
        weights = [w - lr * g / size for w, g in zip(weights, grads, strict=True)]  # ORIGIN
    return weights


def build(fixed: bool = False):
    torch.manual_seed(20)
    net = Net()
    meta = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(21)
    eps = 1e-8 if fixed else 0.0

    def task(easy):
        direction = F.normalize(torch.randn(3, generator=gen), dim=0)
        x = torch.randn(12, 3, generator=gen)
        y = torch.sign(x @ direction)
        if easy:  # the labels are what the net says already, with room to spare
            with torch.no_grad():
                score = net(x)
                keep = score.abs() > 0.25
                x, y = x[keep], torch.sign(score[keep])
        return x, y

    def step(i):
        meta.zero_grad()
        losses = []
        for k in range(3):
            x, y = task(easy=(i == 7 and k == 1))
            weights = adapt(net, x, y, eps)
            losses.append(F.softplus(-y * net(x, weights)).mean())
        loss = torch.stack(losses).mean()
        loss.backward()
        meta.step()
        return loss

    return net, step
