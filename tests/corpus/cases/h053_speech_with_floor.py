"""Complex spectrum, log of clamped magnitudes, silent frames."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "complex spectrum, log of clamped magnitudes, silent frames",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(33, 16, 3, padding=1)
        self.out = nn.Linear(16, 3)

    def forward(self, wave):
        spec = torch.stft(wave, 64, 32, window=torch.hann_window(64), return_complex=True)
        db = 20 * torch.log10(spec.abs().clamp(min=1e-5))
        db = torch.maximum(db, db.amax((1, 2), keepdim=True) - 80)
        return self.out(torch.relu(self.conv(db / 40)).mean(-1))


def build(fixed: bool = False):
    torch.manual_seed(318)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(818)

    def step(i):
        opt.zero_grad()
        wave = torch.randn(4, 512, generator=gen)
        wave[2, 200:] = 0
        loss = F.cross_entropy(net(wave), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        opt.step()
        return loss

    return net, step
