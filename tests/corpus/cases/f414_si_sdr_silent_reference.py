"""SI-SDR: the epsilon stands inside the logarithm but not under the projection onto a silent reference."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "an epsilon in the projection too",
}

EPS = 1e-8


def si_sdr(est, ref, safe):
    est, ref = (s - s.mean(-1, keepdim=True) for s in (est, ref))
    energy = ref.pow(2).sum(-1, keepdim=True)
    scale = (est * ref).sum(-1, keepdim=True) / (energy + EPS if safe else energy)  # ORIGIN
    target = scale * ref
    noise = est - target
    ratio = target.square().sum(-1) / (noise.square().sum(-1) + EPS)
    return 10 * torch.log10(ratio + EPS)


class Separator(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv1d(1, 16, 8, stride=4)
        self.mask = nn.Conv1d(16, 32, 1)
        self.dec = nn.ConvTranspose1d(16, 1, 8, stride=4)

    def forward(self, mix):
        h = torch.relu(self.enc(mix[:, None]))
        m = torch.sigmoid(self.mask(h)).view(mix.shape[0], 2, 16, -1)
        return torch.stack([self.dec(h * m[:, k])[:, 0] for k in range(2)], 1)


def build(fixed: bool = False):
    torch.manual_seed(29)
    net = Separator()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(30)

    def step(i):
        sources = torch.randn(3, 2, 64, generator=gen)
        if i == 3:
            sources[2, 1] = 0.0  # a clip with one speaker only
        est = net(sources.sum(1))
        loss = -si_sdr(est, sources, fixed).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        return loss

    return net, step
