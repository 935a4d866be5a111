"""A CLIP-like model under float16 autocast forgets to normalise its features: the logits matmul overflows."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mm",
    "also_ops": ("matmul",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "normalise both embeddings",
}


class Clip(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.image = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32))
        self.text = nn.Sequential(nn.Embedding(30, 32), nn.Linear(32, 32))
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, img, ids):
        a, b = self.image(img), self.text(ids).mean(1)
        if self.norm:
            a, b = F.normalize(a.float(), dim=-1), F.normalize(b.float(), dim=-1)
        logits = a @ b.t()  # ORIGIN
        return logits * self.scale.exp()


def build(fixed: bool = False):
    torch.manual_seed(231)
    net = Clip(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(731)

    def step(i):
        opt.zero_grad()
        img = torch.randn(6, 12, generator=gen)
        ids = torch.randint(0, 30, (6, 5), generator=gen)
        if i == 2:
            img = img * 4e3
            net.text[1].weight.data.mul_(60)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(img, ids)
        loss = F.cross_entropy(logits.float(), torch.arange(6))
        loss.backward()
        opt.step()
        return loss

    return net, step
