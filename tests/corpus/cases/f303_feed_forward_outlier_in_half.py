"""A transformer block under autocast: an outlier of the gated feed-forward layer is more than half precision holds
after the second matrix.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mm",
    "also_ops": ["addmm"],
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "run the second matrix in float32",
}


class RootMeanNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = x.float()
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class GatedFeedForward(nn.Module):
    def __init__(self, dim, wide):
        super().__init__()
        self.wide = wide
        self.wi0, self.wi1 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, 4 * dim, bias=False)
        self.wo = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        h = F.gelu(self.wi0(x)) * self.wi1(x)
        if self.wide:
            with torch.autocast("cpu", enabled=False):
                return self.wo(h.float())
        return self.wo(h)  # ORIGIN


class Encoder(nn.Module):
    def __init__(self, wide, vocab=20, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList(RootMeanNorm(dim) for _ in range(3))
        self.blocks = nn.ModuleList(GatedFeedForward(dim, wide) for _ in range(2))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for norm, block in zip(self.norms[:2], self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(self.norms[2](x))


def build(fixed: bool = False):
    torch.manual_seed(956)
    net = Encoder(fixed)
    with torch.no_grad():
        net.embed.weight[:, 15], net.embed.weight[19, 15] = 0.0, 20.0  # as in some pretrained checkpoints
        net.blocks[0].wo.weight[15] = 0.0
        for layer, size in ((net.blocks[1].wi0, 3.0), (net.blocks[1].wi1, 30.0)):
            layer.weight[0] = 0.0
            layer.weight[0, 15] = size
        net.blocks[1].wo.weight[3, 0] = 70.0
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(56)

    def step(i):
        ids = torch.randint(0, 19, (4, 8), generator=gen)
        if i >= 3:
            ids[1, 2] = 19
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(ids)
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        loss.backward()
        opt.step()
        return loss

    return net, step
