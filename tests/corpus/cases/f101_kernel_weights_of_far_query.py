"""Nadaraya-Watson by hand: far from all data the kernel weights are subnormal, their ratio is fine and its derivative overflows."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-tiny",
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "softmax of the negative squared distances",
}


class KernelRegression(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable
        self.embed = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, query, x, y):
        q, k = query + 0.1 * self.embed(query), x + 0.1 * self.embed(x)
        energy = -(q.unsqueeze(1) - k.unsqueeze(0)).square().sum(-1)
        if self.stable:
            return torch.softmax(energy, 1) @ y
        weight = torch.exp(energy)
        weight = weight / weight.sum(1, keepdim=True)  # ORIGIN
        return weight @ y


def build(fixed: bool = False):
    torch.manual_seed(101)
    net = KernelRegression(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(201)

    def step(i):
        x = torch.rand(20, 2, generator=gen)
        y = torch.sin(4 * x[:, 0]) + x[:, 1]
        query = torch.rand(8, 2, generator=gen)
        if i == 4:
            query[5] = torch.tensor([7.75, 7.75])
        target = torch.sin(4 * query[:, 0]) + query[:, 1].clamp(max=1)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(query, x, y), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
