"""Four micro-batches are accumulated; in step 5 one of them holds a probability of exactly zero, and its gradient spoils the sum."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "log_softmax of the logits",
}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x) * 4


def log_probability(logits, stable):
    if stable:
        return torch.log_softmax(logits, -1)
    return torch.log(torch.softmax(logits, -1))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(450)
    net = Classifier()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(550)

    def step(i):
        opt.zero_grad()
        total = 0.0
        for micro in range(4):
            x = torch.randn(6, 4, generator=gen)
            y = torch.randint(0, 3, (6,), generator=gen)
            if (i, micro) == (5, 2):
                x[3] *= 400.0
                y[3] = net(x).argmin(-1)[3]
            picked = log_probability(net(x), fixed).gather(1, y.unsqueeze(1))
            loss = -picked.mean() / 4
            loss.backward()
            total = total + loss.detach()
        opt.step()
        return total

    return net, step
