"""A preallocated key cache filled with -inf "so that unused slots get no attention": products with mixed signs are inf - inf."""
import torch
from torch import nn

META = {
    "origin_op": "bmm",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "also_causes": ["zero-times-inf"],
    "also_ops": ["matmul", "mm"],
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "fill the cache with zeros and mask the scores",
}


class CachedAttention(nn.Module):
    def __init__(self, dim, slots, fill):
        super().__init__()
        self.slots, self.fill = slots, fill
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        b, n, d = x.shape
        keys = torch.full((b, self.slots, d), self.fill)
        values = torch.zeros(b, self.slots, d)
        keys[:, :n], values[:, :n] = self.k(x), self.v(x)
        scores = torch.bmm(self.q(x), keys.transpose(1, 2)) / d**0.5  # ORIGIN
        later = torch.arange(self.slots)[None] > torch.arange(n)[:, None]
        scores = scores.masked_fill(later, float("-inf")) if self.fill == 0 else scores
        return torch.bmm(torch.softmax(scores, -1), values)


class Decoder(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.emb = nn.Embedding(20, 12)
        self.att = CachedAttention(12, 10, fill)
        self.out = nn.Linear(12, 20)

    def forward(self, ids):
        h = self.emb(ids)
        return self.out(h + self.att(h))


def build(fixed: bool = False):
    torch.manual_seed(81)
    net = Decoder(0.0 if fixed else float("-inf"))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(82)

    def step(i):
        n = 10 if i < 2 else 7  # full blocks first, then a shorter prompt
        ids = torch.randint(0, 20, (4, n + 1), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        return loss

    return net, step
