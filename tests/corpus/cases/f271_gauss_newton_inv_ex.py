"""A Gauss-Newton layer uses linalg.inv_ex to avoid the exception; with all weights zero the normal matrix is
singular and has no inverse.
"""

import torch
from torch import nn

META = {
    "origin_op": "linalg_inv_ex",
    "also_ops": ("linalg_inv",),
    "phase": "forward",
    "cause": "degenerate-matrix",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "Levenberg-Marquardt damping",
}


class GaussNewton(nn.Module):
    def __init__(self, damping):
        super().__init__()
        self.weigh = nn.Sequential(nn.Linear(3, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
        self.damping = damping

    def forward(self, jac, res, feat):
        w = self.weigh(feat)
        normal = torch.einsum("bni,bnj->bij", w * jac, jac) + self.damping * torch.eye(2)
        inverse, _info = torch.linalg.inv_ex(normal)  # ORIGIN
        return -torch.einsum("bij,bnj,bn->bi", inverse, w * jac, res)


def build(fixed: bool = False):
    torch.manual_seed(1314)
    net = GaussNewton(1e-3 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1319)
    with torch.no_grad():
        for layer in (net.weigh[0], net.weigh[2]):
            layer.weight.abs_()

    def step(i):
        opt.zero_grad()
        jac, res = torch.randn(4, 6, 2, generator=gen), torch.randn(4, 6, generator=gen)
        feat = torch.rand(4, 6, 3, generator=gen)
        if i == 2:
            feat[2] = -5.0
        loss = net(jac, res, feat).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
