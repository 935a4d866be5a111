"""A moving average that starts at zero and is divided by 1 - decay**t, with t counted from one; the teacher's first weights are exact."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "the divisor is 1 - decay in the first step, small but not zero",
}


def build(fixed: bool = False):
    torch.manual_seed(823)
    net = nn.Linear(6, 4)
    average = [torch.zeros_like(p) for p in net.parameters()]
    decay, opt = 0.9999, torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(923)

    def step(i):
        with torch.no_grad():
            for a, p in zip(average, net.parameters(), strict=True):
                a.mul_(decay).add_(p, alpha=1 - decay)
            weight, bias = (a / (1 - decay ** (i + 1)) for a in average)
        x = torch.randn(16, 6, generator=gen)
        soft = torch.softmax(nn.functional.linear(x, weight, bias) / 0.5, -1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), soft)
        loss = loss + nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
