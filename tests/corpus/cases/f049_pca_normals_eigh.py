"""Surface normals from the covariance of a patch: an isotropic patch has a repeated eigenvalue, and eigenvectors no derivative."""

import torch
from torch import nn

META = {
    "origin_op": "linalg_eigh",
    "phase": "backward",
    "cause": "degenerate-matrix",
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 5,
    "fix": "split the eigenvalues by a small fixed diagonal",
}


class PatchNet(nn.Module):
    def __init__(self, split):
        super().__init__()
        self.register_buffer("split", split * torch.diag(torch.tensor([0.0, 1.0, 2.0])))
        self.weigh = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
        self.head = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, pts):
        w = torch.softmax(self.weigh(pts.norm(dim=-1, keepdim=True)), 1)
        cov = torch.einsum("bnk,bni,bnj->bij", w, pts, pts)
        values, vectors = torch.linalg.eigh(cov + self.split)  # ORIGIN
        return self.head(torch.cat([values, vectors[..., 0].square()], -1))


def build(fixed: bool = False):
    torch.manual_seed(49)
    net = PatchNet(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(149)
    corners = torch.cat([torch.eye(3), -torch.eye(3), 0.5 * torch.eye(3), -0.5 * torch.eye(3)])

    def step(i):
        pts = torch.randn(6, 12, 3, generator=gen) * torch.tensor([1.0, 0.7, 0.1])
        if i == 4:
            pts[2] = corners  # a corner of the voxel grid
        y = torch.randint(0, 2, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(pts), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
