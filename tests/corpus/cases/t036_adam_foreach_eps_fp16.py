"""Adam with foreach=True over a half-precision embedding table: rows that are not in the batch divide zero by an eps that is zero."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_addcdiv_",
    "also_ops": ("addcdiv_",),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("eps-underflow", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-4, or fused=True, which computes in float32",
}


class SkipGram(nn.Module):
    def __init__(self, vocab=70, dim=12):
        super().__init__()
        self.word, self.context = nn.Embedding(vocab, dim), nn.Embedding(vocab, dim)

    def forward(self, w, c):
        return (self.word(w).float() * self.context(c).float()).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(436)
    net = SkipGram().half()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=True, eps=1e-4 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(536)

    def step(i):
        w = torch.randint(0, 70, (24,), generator=gen)
        c = torch.randint(0, 70, (24,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.soft_margin_loss(net(w, c), (((w - c).abs() < 20).float() * 2 - 1))
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
