"""A Sequential of lambda modules for cosine features: the row of a cold-start user is zero."""
import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "norm-at-zero", "symptom": "loss-nan",
    "also_causes": ["div-by-zero"], "first_bad_step": 2, "n_steps": 4, "fix": "clamp the norm from below",
}


class Lambda(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


def tower(eps):
    return nn.Sequential(
        nn.Linear(10, 8, bias=False),
        Lambda(lambda x: x.clamp(-5, 5)),
        Lambda(lambda x: x / x.pow(2).sum(-1, keepdim=True).sqrt().clamp_min(eps)),  # ORIGIN
        Lambda(lambda x: 5.0 * x),
    )


def build(fixed=False):
    torch.manual_seed(123)
    net = nn.ModuleDict({"user": tower(1e-8 if fixed else 0.0), "item": tower(1e-8)})
    if fixed:
        net["user"][2] = Lambda(lambda x: nn.functional.normalize(x, dim=-1, eps=1e-6))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(124)

    def step(i):
        users, items = torch.rand(6, 10, generator=gen), torch.rand(6, 10, generator=gen)
        if i >= 2:
            users[4] = 0  # has not clicked anything yet
        scores = net["user"](users) @ net["item"](items).T
        loss = nn.functional.cross_entropy(scores, torch.arange(6))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
