"""The -inf border never wins a maximum."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the -inf border never wins a maximum",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 12, batch_first=True)
        self.out = nn.Linear(12, 5)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).log_softmax(-1)


@torch.no_grad()
def align(logp, labels):
    score = torch.full((len(labels),), -torch.inf)
    score[0] = logp[0, labels[0]]
    back = []
    for frame in logp[1:]:
        moved = torch.cat([torch.tensor([-torch.inf]), score[:-1]])
        back.append(moved > score)
        score = torch.maximum(score, moved) + frame[labels]
    j, path = len(labels) - 1, []
    for step in reversed(back):
        path.append(j)
        j -= int(step[j])
    return torch.tensor([j, *reversed(path)])


def build(fixed: bool = False):
    torch.manual_seed(304)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(804)
    labels = torch.tensor([1, 3, 2])

    def step(i):
        opt.zero_grad()
        x = torch.randn(1, 8, 4, generator=gen)
        logp = net(x)[0]
        path = align(logp, labels)
        loss = F.nll_loss(logp, labels[path])
        loss.backward()
        opt.step()
        return loss

    return net, step
