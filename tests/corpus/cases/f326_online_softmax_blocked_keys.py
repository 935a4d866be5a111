"""Blockwise attention with a running maximum: a first block of keys that is all padding leaves the maximum at -inf, and -inf - -inf is NaN.

Source: well-known fault (flash attention by hand; the reason for the "safe" running maximum)
"""
import torch
from torch import nn

META = {
    "origin_op": "sub",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "also_causes": ["softmax-all-masked"],
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "subtract zero in place of a maximum that is still -inf",
}


def blockwise(q, k, v, keep, size, safe):
    m = torch.full(q.shape[:-1], float("-inf"))
    total = torch.zeros(q.shape[:-1])
    acc = torch.zeros_like(q)
    for s in range(0, k.shape[1], size):
        scores = q @ k[:, s : s + size].transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~keep[:, None, s : s + size], float("-inf"))
        new = torch.maximum(m, scores.amax(-1))
        shift = new.masked_fill(new == float("-inf"), 0.0) if safe else new
        p = torch.exp(scores - shift.unsqueeze(-1))  # ORIGIN
        decay = torch.exp(m - shift)  # ALSO
        total = total * decay + p.sum(-1)
        acc = acc * decay.unsqueeze(-1) + p @ v[:, s : s + size]
        m = new
    return acc / total.unsqueeze(-1)


class Reader(nn.Module):
    def __init__(self, safe, dim=16):
        super().__init__()
        self.safe = safe
        self.emb = nn.Embedding(32, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, 3)

    def forward(self, ids):
        h = self.emb(ids)
        a = blockwise(self.q(h), self.k(h), self.v(h), ids != 0, 4, self.safe)
        return self.out((h + a).mean(1))


def build(fixed: bool = False):
    torch.manual_seed(41)
    net = Reader(fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(42)

    def step(i):
        ids = torch.randint(1, 32, (5, 12), generator=gen)
        ids[0, :2] = 0
        if i == 3:
            ids[4, :5] = 0  # more left padding than one block
        y = torch.randint(0, 3, (5,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
