"""The 6D rotation by Gram-Schmidt: two equal rows leave no second direction."""
import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "norm-at-zero", "symptom": "loss-nan",
    "also_causes": ["div-by-zero"], "first_bad_step": 2, "n_steps": 4, "fix": "an epsilon under the norm",
}


def dot(a, b):
    return (a * b).sum(-1, keepdim=True)


def orthonormal(rows, eps):
    basis = []
    for v in rows:
        v = v - sum(dot(v, b) * b for b in basis)
        basis += [v / (dot(v, v) + eps).sqrt()]  # ORIGIN
    return torch.stack(basis + [torch.linalg.cross(*basis)], -2)


class RotationHead(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.delta, self.eps = nn.Linear(5, 6), eps

    def forward(self, x, start, active):
        six = start + 0.1 * self.delta(x) * active[:, None]
        return orthonormal(six.view(-1, 2, 3).unbind(1), self.eps)


def build(fixed=False):
    torch.manual_seed(81)
    net = RotationHead(1e-8 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(82)

    def step(i):
        x, start = torch.randn(6, 5, generator=gen), torch.randn(6, 6, generator=gen)
        active = torch.ones(6)
        if i == 2:
            start[4] = torch.tensor([1.0, 0, 0, 1.0, 0, 0])  # a joint that was never annotated
            active[4] = 0
        loss = (net(x, start, active) - torch.eye(3)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
