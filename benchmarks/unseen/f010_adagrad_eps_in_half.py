"""Adagrad on a half model: eps 1e-10 is zero in float16, an embedding row without gradient divides zero by zero."""
import torch
from torch import nn

META = {
    "origin_op": "addcdiv_", "phase": "optimizer", "cause": "optimizer-eps-underflow", "symptom": "param-nan",
    "first_bad_step": 0, "n_steps": 4, "fix": "eps=1e-5",
}


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(30, 8), nn.Embedding(50, 8)

    def forward(self, u, v):
        return (self.users(u) * self.items(v)).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(18)
    net = Recommender().half()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.02, eps=1e-5 if fixed else 1e-10)
    gen = torch.Generator().manual_seed(19)

    def step(i):
        u = torch.randint(0, 30, (40,), generator=gen)
        v = torch.randint(0, 50, (40,), generator=gen)
        r = torch.randn(40, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(u, v).float(), r)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
