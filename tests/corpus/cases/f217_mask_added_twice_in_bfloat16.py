"""Causal and padding masks, each the dtype's lowest number, are added in bfloat16 and overflow; padded queries see nothing."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "add",
    "phase": "forward",
    "cause": "mask-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "combine the masks as booleans",
}


class Att(nn.Module):
    def __init__(self, once):
        super().__init__()
        self.once = once
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 2)

    def forward(self, x, pad):
        q, k, v = self.qkv(x).chunk(3, -1)
        n, low = x.shape[1], torch.finfo(x.dtype).min
        future = torch.ones(n, n).triu(1).bool()
        if self.once:
            bias = torch.zeros(len(x), n, n, dtype=x.dtype).masked_fill(future | pad[:, None], low)
        else:
            causal = torch.zeros(n, n, dtype=x.dtype).masked_fill(future, low)
            padding = torch.zeros(len(x), 1, n, dtype=x.dtype).masked_fill(pad[:, None], low)
            bias = causal + padding  # ORIGIN
        score = q @ k.transpose(1, 2) + bias + bias.masked_fill(~pad[:, :, None], 0)  # ALSO
        return self.out(score.softmax(-1) @ v).mean(1)


def build(fixed: bool = False):
    torch.manual_seed(507)
    net = Att(fixed).to(torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)
    gen = torch.Generator().manual_seed(1007)

    def step(i):
        opt.zero_grad()
        x = torch.randn(3, 5, 6, generator=gen).to(torch.bfloat16)
        pad = torch.zeros(3, 5, dtype=torch.bool)
        if i == 2:
            pad[1] = True
        if fixed:
            pad = pad & False
        loss = F.cross_entropy(net(x, pad).float(), torch.tensor([0, 1, 0]))
        loss.backward()
        opt.step()
        return loss

    return net, step
