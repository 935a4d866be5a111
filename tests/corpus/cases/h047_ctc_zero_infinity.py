"""The infeasible utterance is zeroed by zero_infinity."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the infeasible utterance is zeroed by zero_infinity",
}


class Asr(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).log_softmax(-1)


def build(fixed: bool = False):
    torch.manual_seed(311)
    net = Asr()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(811)
    ctc = nn.CTCLoss(zero_infinity=True)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 3, 4, generator=gen)
        y = torch.randint(1, 5, (3, 3), generator=gen)
        loss = ctc(net(x), y, torch.tensor([8, 2, 8]), torch.tensor([3, 3, 3]))
        loss.backward()
        opt.step()
        return loss

    return net, step
