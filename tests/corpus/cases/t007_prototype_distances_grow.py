"""Prototypical network with repelling classes in fp16: squared distances grow batch after batch until their square leaves half precision."""

import torch
from torch import nn

META = {
    "origin_op": "sum",
    "also_ops": ("pow",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 13,
    "n_steps": 60,
    "fix": "compute the distances in float32 on normalised embeddings",
}


class Embedder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, dim))
        self.prototypes = nn.Parameter(torch.randn(5, dim))

    def distances(self, x, safe):
        z, c = self.body(x), self.prototypes
        if safe:
            z, c = nn.functional.normalize(z.float(), dim=-1), nn.functional.normalize(c, dim=-1)
        gap = z.unsqueeze(1) - c.to(z.dtype)
        return (gap**2).sum(-1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(407)
    net = Embedder()
    opt = torch.optim.Adam(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(507)

    def step(i):
        y = torch.randint(0, 5, (20,), generator=gen)
        x = torch.randn(20, 10, generator=gen) + 0.5 * y.unsqueeze(1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            d = net.distances(x, fixed)
        pull = d.float().gather(1, y.unsqueeze(1)).squeeze(1)
        loss = (pull - d.float().mean(1)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
