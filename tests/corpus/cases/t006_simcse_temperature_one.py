"""The same contrastive loss with temperature 1 and dropout 0.1: the norms need longer, then the product of embeddings itself overflows."""

import torch
from torch import nn

META = {
    "origin_op": "mm",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "chaotic": True,
    "n_steps": 110,
    "fix": "L2-normalise the embeddings",
}


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.tokens = nn.Embedding(150, dim)
        self.drop = nn.Dropout(0.1)
        self.proj = nn.Linear(dim, dim)

    def forward(self, ids):
        return self.proj(self.drop(self.tokens(ids)).sum(1))


def build(fixed: bool = False):
    torch.manual_seed(406)
    net = Encoder()
    opt = torch.optim.SGD(net.parameters(), lr=0.012, momentum=0.9)
    gen = torch.Generator().manual_seed(506)

    def step(i):
        ids = torch.randint(0, 150, (24, 6), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            first, second = net(ids), net(ids)
            if fixed:
                first = nn.functional.normalize(first.float(), dim=-1)
                second = nn.functional.normalize(second.float(), dim=-1)
            sim = first @ second.T  # ORIGIN
        loss = nn.functional.cross_entropy(sim.float(), torch.arange(24))
        loss.backward()
        opt.step()
        return loss

    return net, step
