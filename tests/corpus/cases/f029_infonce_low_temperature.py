"""InfoNCE written out, with an annealed temperature: exp(similarity / temperature) overflows once it falls below 1/88."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 7,
    "n_steps": 9,
    "fix": "cross-entropy on the scaled similarities",
}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 12))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=-1)


def info_nce(logits, stable):
    if stable:
        return nn.functional.cross_entropy(logits, torch.arange(logits.shape[0]))
    e = torch.exp(logits)  # ORIGIN
    return -torch.log(e.diagonal() / e.sum(1)).mean()


def build(fixed: bool = False):
    torch.manual_seed(29)
    net = Encoder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(129)

    def step(i):
        x = torch.randn(6, 8, generator=gen)
        view = x + 0.01 * torch.randn(6, 8, generator=gen)
        temperature = 0.05 * 0.8**i
        opt.zero_grad()
        loss = info_nce(net(x) @ net(view).t() / temperature, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
