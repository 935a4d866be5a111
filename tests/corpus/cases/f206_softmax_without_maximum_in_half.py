"""A linear-attention layer in half precision uses exp as its feature map: exp of twelve is beyond 65504."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "also_causes": ("dtype-overflow",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "subtract the maximum",
}


class LinAtt(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable
        self.q, self.k, self.v = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8)

    def phi(self, x):
        if self.stable:
            x = x - x.amax(-1, keepdim=True)
        return torch.exp(x)  # ORIGIN

    def forward(self, x):
        q, k, v = self.phi(self.q(x)), self.phi(self.k(x)), self.v(x)
        z = (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)
        return (q @ (k.transpose(1, 2) @ v)) / z


def build(fixed: bool = False):
    torch.manual_seed(423)
    net = LinAtt(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=2e-2)
    gen = torch.Generator().manual_seed(923)

    def step(i):
        opt.zero_grad()
        x = torch.randn(3, 5, 6, generator=gen)
        if i == 2:
            x[1, 2] = 25.0 * torch.sign(net.k.weight.data[0].float())
        loss = net(x.half()).float().square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
