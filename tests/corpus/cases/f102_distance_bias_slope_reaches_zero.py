"""A distance bias with annealed slopes: the future is at distance inf, and a slope that its ReLU cut off makes it 0 * inf."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "mask the future by masked_fill, after the slopes",
}


class BiasedAttention(nn.Module):
    def __init__(self, mask_last, dim=16, heads=2):
        super().__init__()
        self.mask_last, self.heads = mask_last, heads
        self.register_buffer("slope", torch.tensor([0.5, 0.018]).view(heads, 1, 1))
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def bias(self, t):
        gap = (torch.arange(t).unsqueeze(1) - torch.arange(t)).float()
        future = gap < 0
        if self.mask_last:
            return (-torch.relu(self.slope) * gap).masked_fill(future, -torch.inf)
        gap = gap.masked_fill(future, torch.inf)
        return -torch.relu(self.slope) * gap  # ORIGIN

    def forward(self, h):
        b, t, d = h.shape
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + self.bias(t), -1)
        return h + self.out((w @ v).transpose(1, 2).reshape(b, t, d))


def build(fixed: bool = False):
    torch.manual_seed(102)
    net = nn.Sequential(nn.Embedding(15, 16), BiasedAttention(fixed), nn.LayerNorm(16), nn.Linear(16, 15))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(202)

    def step(i):
        ids = torch.randint(0, 15, (4, 7), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        net[1].slope.sub_(0.005)  # the recency bias is annealed away
        return loss

    return net, step
