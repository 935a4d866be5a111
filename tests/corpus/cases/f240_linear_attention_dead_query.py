"""Linear attention with a ReLU feature map: a query whose features are all zero has normaliser zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "reciprocal",
    "also_ops": ("div", "mul"),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("zero-times-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add an epsilon to the normaliser",
}


class LinearAttention(nn.Module):
    def __init__(self, dim, heads, eps):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.to_qkv, self.merge = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        q, k = q.relu(), k.relu()
        z = 1.0 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(2)) + self.eps)  # ORIGIN
        out = torch.einsum("bhnd,bhde,bhn->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v), z)
        return x + self.merge(out.transpose(1, 2).reshape(b, n, d))


class Net(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.body = nn.Sequential(LinearAttention(16, 2, 1e-6 if fixed else 0.0), nn.LayerNorm(16), nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x).mean(1)


def build(fixed: bool = False):
    torch.manual_seed(991)
    net = Net(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(996)

    def step(i):
        opt.zero_grad()
        x = torch.randn(3, 5, 16, generator=gen)
        if i == 2:
            x[1, 4] = 0  # a padded token
        loss = F.cross_entropy(net(x), torch.tensor([0, 2, 1]))
        loss.backward()
        opt.step()
        return loss

    return net, step
