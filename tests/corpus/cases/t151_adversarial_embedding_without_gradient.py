"""Adversarial training on embeddings: the perturbation is the gradient over its norm, and a batch of zero weight has no gradient."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "skip the attack where the norm is zero",
    "twin_rests": (3,),
}


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids, delta=0.0):
        return self.head(torch.tanh(self.emb(ids) + delta).mean(1))


def build(fixed: bool = False):
    torch.manual_seed(651)
    net = Text()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(751)

    def loss_of(logits, y, weight):
        return (nn.functional.cross_entropy(logits, y, reduction="none") * weight).mean()

    def step(i):
        ids = torch.randint(0, 40, (16, 5), generator=gen)
        y, weight = ids[:, 0] % 3, torch.full((16,), 0.0 if i == 3 else 1.0)
        delta = torch.zeros(16, 5, 8, requires_grad=True)
        (g,) = torch.autograd.grad(loss_of(net(ids, delta), y, weight), delta)
        norm = g.norm()
        if fixed and norm == 0:
            norm = torch.ones(())
        attack = 0.5 * g / norm  # ORIGIN
        opt.zero_grad()
        loss = loss_of(net(ids), y, weight) + loss_of(net(ids, attack), y, weight)
        loss.backward()
        opt.step()
        return loss

    return net, step
