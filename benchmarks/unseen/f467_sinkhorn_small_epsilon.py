"""Sinkhorn in linear space: an outlier's kernel row exp(-C / eps) underflows to zero, and the scaling divides by it."""
import torch
from torch import nn

META = {
    "origin_op": "div", "also_ops": ["exp"], "phase": "forward", "cause": "div-by-zero", "symptom": "loss-nan",
    "also_causes": ["dtype-underflow"], "first_bad_step": 2, "n_steps": 4, "fix": "Sinkhorn in log space",
}


def sinkhorn(cost, eps=0.05, n=8):
    kernel = torch.exp(-cost / eps)  # ALSO
    a = torch.full((cost.shape[0],), 1 / cost.shape[0])
    b = torch.full((cost.shape[1],), 1 / cost.shape[1])
    v = torch.ones_like(b)
    for _ in range(n):
        u = a / (kernel @ v)  # ORIGIN
        v = b / (kernel.T @ u)
    return (u[:, None] * kernel * v * cost).sum()


def sinkhorn_log(cost, eps=0.05, n=8):
    m, k = cost.shape
    f, g = torch.zeros(m), torch.zeros(k)
    for _ in range(n):
        f = -eps * torch.logsumexp((g - cost) / eps, 1) - eps * torch.log(torch.tensor(1.0 * m))
        g = -eps * torch.logsumexp((f[:, None] - cost) / eps, 0) - eps * torch.log(torch.tensor(1.0 * k))
    return (torch.exp((f[:, None] + g - cost) / eps) * cost).sum()


def build(fixed=False):
    torch.manual_seed(135)
    net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(136)
    transport = sinkhorn_log if fixed else sinkhorn

    def step(i):
        x, y = torch.rand(6, 2, generator=gen), 0.5 * torch.rand(7, 2, generator=gen)
        if i >= 2:
            x[3] = 5.0
        p = x + 0.1 * net(x)
        loss = transport((p[:, None] - y[None]).pow(2).sum(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
