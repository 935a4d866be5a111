"""The inverse square root schedule starts at step zero, where its rate is infinite: zero gradients become NaN, the others throw weights to infinity."""

import numpy as np
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "count the steps of the schedule from one",
}


class Bag(nn.Module):
    def __init__(self, vocab=50, dim=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.out = nn.Linear(dim, 3)

    def forward(self, ids):
        return self.out(torch.tanh(self.emb(ids).mean(1)))


def build(fixed: bool = False):
    torch.manual_seed(429)
    net = Bag()
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: np.power(np.float64(k + fixed), -0.5))  # ALSO
    gen = torch.Generator().manual_seed(529)

    def step(i):
        ids = torch.randint(0, 50, (6, 5), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 3)
        loss.backward()
        opt.step()  # ORIGIN
        plan.step()
        return loss

    return net, step
