"""A sinusoid table is allocated by empty and filled in pairs of columns; with an odd width its last column stays unwritten."""

import torch
from torch import nn

META = {
    "origin_op": "empty",
    "also_ops": ("add",),
    "phase": "init",
    "cause": "uninitialised-memory",
    "also_causes": ("poisoned-buffer",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "allocate with zeros, or demand an even width",
}


def sinusoids(length, width, clear):
    # deterministic mode fills fresh memory with NaN; it stands in for an allocator that hands out used memory
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    table = torch.empty(length, width)  # ORIGIN
    torch.use_deterministic_algorithms(before)
    if clear:
        table.zero_()
    place = torch.arange(length).float()
    for k in range(width // 2):
        angle = place / 100.0 ** (2 * k / width)
        table[:, 2 * k], table[:, 2 * k + 1] = angle.sin(), angle.cos()
    return table


class Encoder(nn.Module):
    def __init__(self, clear, width=13):
        super().__init__()
        self.emb = nn.Embedding(20, width)
        self.register_buffer("place", sinusoids(16, width, clear))
        self.gru = nn.GRU(width, 16, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, ids):
        h = self.emb(ids) + self.place[: ids.shape[1]]  # ALSO
        return self.out(self.gru(h)[0][:, -1])


def build(fixed: bool = False):
    torch.manual_seed(74)
    net = Encoder(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(174)

    def step(i):
        ids = torch.randint(0, 20, (6, 10), generator=gen)
        y = torch.randint(0, 2, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
