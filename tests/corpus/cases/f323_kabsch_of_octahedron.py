"""Rigid alignment by SVD: a molecule in its symmetric rest pose has three equal singular values and no gradient of its singular vectors."""
import torch
from torch import nn

META = {
    "origin_op": "linalg_svd",
    "phase": "backward",
    "cause": "degenerate-matrix",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 4,
    "fix": "do not differentiate the alignment: compute the rotation under no_grad",
}

REST = torch.cat([torch.eye(3), -torch.eye(3)])


def aligned(pred, target, still):
    h = pred.transpose(1, 2) @ target
    if still:
        h = h.detach()
    u, _, vt = torch.linalg.svd(h)  # ORIGIN
    sign = torch.det(u @ vt).sign()
    flip = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1)
    rot = (u * flip[:, None]) @ vt
    return pred @ rot


class Mover(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(18, 32), nn.Tanh(), nn.Linear(32, 18))

    def forward(self, pose, active):
        return REST + 0.2 * active[:, None, None] * self.net(pose.flatten(1)).view(-1, 6, 3)


def build(fixed: bool = False):
    torch.manual_seed(191)
    net = Mover()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(192)

    def step(i):
        pose = torch.randn(4, 6, 3, generator=gen)
        target = REST + 0.1 * pose
        active = torch.ones(4)
        if i == 3:
            active[1], target[1] = 0.0, REST
        opt.zero_grad()
        loss = (aligned(net(pose, active), target, fixed) - target).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
