"""An additive mask of -1e9 is cast to the model's half precision, where it is -inf; an empty sentence is masked throughout."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "forward",
    "cause": "mask-overflow",
    "also_causes": ("dtype-overflow", "softmax-all-masked"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "torch.finfo(scores.dtype).min",
}


class Pooler(nn.Module):
    def __init__(self, fits, dim=12):
        super().__init__()
        self.fits = fits
        self.emb = nn.Embedding(25, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, dim))
        self.score, self.out = nn.Linear(dim, 1), nn.Linear(dim, 2)

    def forward(self, ids, keep):
        h = self.mlp(self.emb(ids))
        low = torch.finfo(h.dtype).min if self.fits else -1e9
        bias = ((1.0 - keep) * low).to(h.dtype)  # ORIGIN
        weight = torch.softmax(self.score(h).squeeze(-1) + bias, -1)
        return self.out((weight.unsqueeze(-1) * h).sum(1))


def build(fixed: bool = False):
    torch.manual_seed(65)
    net = Pooler(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(165)

    def step(i):
        ids = torch.randint(0, 25, (6, 7), generator=gen)
        length = torch.randint(2, 8, (6, 1), generator=gen)
        if i == 2:
            length[4] = 0
        keep = (torch.arange(7) < length).float()
        y = torch.randint(0, 2, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids, keep).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
