"""A decoder allocates its key cache by torch.empty and reads one slot more than it has written."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "empty",
    "phase": "forward",
    "cause": "uninitialised-memory",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "read up to t",
}


class Decoder(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.extra = extra
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)  # fresh memory holds NaN, as from a used allocator
        keys = torch.empty(b, n + 2, d)  # ORIGIN
        torch.use_deterministic_algorithms(before)
        outs = []
        for t in range(n):
            keys = torch.cat([keys[:, :t], self.k(x[:, t : t + 1]), keys[:, t + 1 :]], 1)
            seen = keys[:, : t + 1 + self.extra]
            w = torch.softmax(self.q(x[:, t : t + 1]) @ seen.transpose(1, 2), -1)
            outs.append(w[..., : t + 1] @ self.v(x[:, : t + 1]))
        return self.out(torch.cat(outs, 1))


def build(fixed: bool = False):
    torch.manual_seed(316)
    net = Decoder(0 if fixed else 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(816)

    def step(i):
        opt.zero_grad()
        x = torch.randn(3, 5, 6, generator=gen)
        loss = F.mse_loss(net(x), x.flip(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
