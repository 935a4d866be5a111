"""Spectral embedding: the Laplacian of a symmetric graph has equal eigenvalues, whose eigenvectors cannot be differentiated."""
import torch
from torch import nn

META = {
    "origin_op": "linalg_eigh", "also_ops": ["_linalg_eigh"], "phase": "backward", "cause": "degenerate-matrix", "symptom": "grad-nan",
    "first_bad_step": 2, "n_steps": 3, "fix": "break the symmetry with a small fixed diagonal",
}


class Spectral(nn.Module):
    def __init__(self, n=4, k=2, jitter=0.0):
        super().__init__()
        self.k, self.jitter = k, jitter
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(k, 2)
        self.register_buffer("ramp", torch.arange(n).float())

    def forward(self, adj):
        w = adj * self.scale
        lap = torch.diag_embed(w.sum(-1)) - w
        if self.jitter:
            lap = lap + self.jitter * torch.diag(self.ramp**1.5)
        evals, evecs = torch.linalg.eigh(lap)  # ORIGIN
        return self.head(evecs[..., 1 : self.k + 1] * evals[..., None, 1 : self.k + 1])


def build(fixed=False):
    torch.manual_seed(39)
    net = Spectral(jitter=1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(40)

    def step(i):
        a = torch.rand(3, 4, 4, generator=gen)
        a = (a + a.transpose(1, 2)) / 2
        if i == 2:
            a[1] = 0.0  # a graph without edges
        a.diagonal(dim1=1, dim2=2).zero_()
        loss = nn.functional.mse_loss(net(a), a[..., :2])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
