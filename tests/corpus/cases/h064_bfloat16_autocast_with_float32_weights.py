"""Autocast in bfloat16, weights and optimizer in float32."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "autocast in bfloat16, weights and optimizer in float32",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.enc(x).mean(1))


def build(fixed: bool = False):
    torch.manual_seed(409)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(909)

    def step(i):
        x = torch.randn(4, 6, 16, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = F.cross_entropy(out.float(), torch.arange(4))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
