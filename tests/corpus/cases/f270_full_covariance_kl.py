"""KL of a full-covariance posterior takes the log of the Cholesky factor's diagonal, which nothing keeps positive."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "softplus on the diagonal",
}


class Encoder(nn.Module):
    def __init__(self, latent, positive):
        super().__init__()
        self.latent, self.positive = latent, positive
        self.h = nn.Sequential(nn.Linear(6, 16), nn.GELU())
        self.mu, self.tril = nn.Linear(16, latent), nn.Linear(16, latent * latent)

    def forward(self, x):
        h = self.h(x)
        m = self.tril(h).view(-1, self.latent, self.latent)
        diag = m.diagonal(dim1=1, dim2=2)
        diag = F.softplus(diag) + 1e-3 if self.positive else diag + 1.0
        return self.mu(h), m.tril(-1) + torch.diag_embed(diag)


def kl(mu, chol):
    trace = chol.square().sum((1, 2))
    return 0.5 * (trace + mu.square().sum(1) - mu.shape[1]) - torch.einsum("nii->ni", chol).log().sum(1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(949)
    net = Encoder(3, fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(954)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        if i == 2:
            x[0] *= 30
        mu, chol = net(x)
        z = mu + torch.einsum("nij,nj->ni", chol, torch.randn(8, 3, generator=gen))
        loss = kl(mu, chol).mean() + z.sum(1).square().mean() * 1e-3
        loss.backward()
        opt.step()
        return loss

    return net, step
