"""Log-domain Sinkhorn with forbidden pairs: one source may go nowhere, and its row of -inf is normalised by itself."""

import torch
from torch import nn

META = {
    "origin_op": "sub",
    "also_ops": ("logsumexp",),
    "phase": "forward",
    "cause": "softmax-all-masked",
    "also_causes": ("inf-minus-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "give every source a dummy target",
}


class Match(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, a, b, forbid):
        s = self.f(a) @ self.f(b).t()
        s = s.masked_fill(forbid, float("-inf"))
        for _ in range(4):
            s = s - torch.logsumexp(s, 1, keepdim=True)  # ORIGIN
            s = s - torch.logsumexp(s, 0, keepdim=True)
        return s.exp()


def build(fixed: bool = False):
    torch.manual_seed(404)
    net = Match()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(904)

    def step(i):
        opt.zero_grad()
        a, b = torch.randn(2, 6, 3, generator=gen)
        forbid = torch.zeros(6, 6, dtype=torch.bool)
        forbid[0, 3] = True
        if i == 2:
            forbid[4] = True
            if fixed:
                forbid[4, 4] = False
        plan = net(a, b, forbid)
        loss = (plan * torch.arange(36.0).view(6, 6)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
