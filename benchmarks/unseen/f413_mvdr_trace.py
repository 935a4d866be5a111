"""MVDR beamformer: the weights are divided by the trace of a numerator that is zero where the speech mask is."""
import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "div-by-zero", "symptom": "loss-nan",
    "first_bad_step": 2, "n_steps": 4, "fix": "an epsilon added to the trace",
}


def covariance(spec, mask):
    return torch.einsum("bft,bcft,bdft->bfcd", mask.to(spec.dtype), spec, spec.conj())


def mvdr(spec, speech, noise, eps):
    eye = torch.eye(spec.shape[1], dtype=spec.dtype)
    phi_s, phi_n = covariance(spec, speech), covariance(spec, noise) + 1e-4 * eye
    num = torch.linalg.solve(phi_n, phi_s)
    trace = num.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    w = (num / (trace + eps))[..., 0]  # ORIGIN
    return torch.einsum("bfc,bcft->bft", w.conj(), spec)


class MaskEstimator(nn.Module):
    def __init__(self, freq=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(freq, 24), nn.ReLU(), nn.Linear(24, 2 * freq))

    def forward(self, spec, vad):
        logmag = torch.log1p(spec[:, 0].abs()).transpose(1, 2)
        speech, noise = torch.sigmoid(self.net(logmag)).transpose(1, 2).chunk(2, 1)
        return speech * vad[:, None], noise


def build(fixed=False):
    torch.manual_seed(27)
    net = MaskEstimator()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(28)
    eps = 1e-8 if fixed else 0.0

    def step(i):
        spec = torch.complex(torch.randn(2, 3, 6, 9, generator=gen), torch.randn(2, 3, 6, 9, generator=gen))
        vad = torch.ones(2, 9)
        if i >= 2:
            vad[1] = 0  # nobody speaks in this segment
        out = mvdr(spec, *net(spec, vad), eps)
        loss = (out - spec[:, 0]).abs().pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
