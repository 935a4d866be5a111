"""A recurrent net whose gradient norm of about 3 is clipped to 1 at every step."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "moderate clipping at each step is a choice, not a fault"}


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 16, num_layers=2, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1]).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(25)
    net = Memory()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(325)

    def step(i):
        x = torch.randn(8, 12, 3, generator=gen)
        y = 3 + x[:, 0, 0]
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        opt.step()
        return loss

    return net, step
