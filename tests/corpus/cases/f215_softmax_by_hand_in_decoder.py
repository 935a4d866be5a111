"""A pointer decoder writes its softmax as exp / sum; a long document's score passes 88."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "torch.softmax",
}


class Ptr(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.rnn = nn.LSTM(5, 12, batch_first=True)
        self.q = nn.Parameter(torch.ones(12))

    def forward(self, x, gain):
        h, _ = self.rnn(x)
        s = (h @ self.q) * gain
        if self.safe:
            return torch.softmax(s, -1)
        e = torch.exp(s)  # ORIGIN
        return e / e.sum(-1, keepdim=True)


def build(fixed: bool = False):
    torch.manual_seed(504)
    net = Ptr(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1004)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 7, 5, generator=gen)
        w = net(x, 1.0 if i < 3 else 2000.0)
        loss = -(w[:, 0] + 1e-6).log().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
