"""Forces as vmap(grad(energy)): two ions at one position divide by a distance of zero."""
import torch
from torch import nn
from torch.func import grad, vmap

META = {
    "origin_op": "div",
    "also_ops": ["sqrt", "reciprocal"],
    "phase": "forward",
    "also_phase": "backward",
    "cause": "div-by-zero",
    "also_causes": ["sqrt-at-zero", "norm-at-zero"],
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "soften the distance: sqrt(r^2 + a^2)",
}

LEFT, RIGHT = torch.triu_indices(5, 5, 1)


class Charges(nn.Module):
    def __init__(self, soft):
        super().__init__()
        self.soft = soft
        self.charge = nn.Parameter(torch.tensor([1.0, -1.0, 0.5, 0.5, -1.0]))
        self.depth = nn.Parameter(torch.tensor(0.1))

    def energy(self, x):
        r = torch.sqrt((x[LEFT] - x[RIGHT]).pow(2).sum(-1) + self.soft)  # ALSO
        pair = self.charge[LEFT] * self.charge[RIGHT] / r  # ORIGIN
        return (pair + self.depth * torch.exp(-r)).sum()

    def forward(self, x):
        return -vmap(grad(self.energy))(x)


def build(fixed: bool = False):
    torch.manual_seed(411)
    net = Charges(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(412)

    def step(i):
        x = torch.randn(6, 5, 3, generator=gen) * 2
        if i == 3:
            x[4, 1] = x[4, 3]  # a frame that was written twice
        target = torch.randn(6, 5, 3, generator=gen) * 0.2
        opt.zero_grad()
        loss = nn.functional.huber_loss(net(x), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
