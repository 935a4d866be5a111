"""Probabilities below 6e-8 flush to zero in half attention and the entropy uses xlogy: nothing is lost that matters."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.head = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        s = 6 * self.q(x) @ self.k(x).transpose(1, 2)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        a = s.masked_fill(future, float("-inf")).softmax(-1)
        entropy = torch.special.entr(a.detach().float()).sum(-1).mean()
        return self.head(a @ self.v(x)), entropy


def build(fixed: bool = False):
    torch.manual_seed(228)
    net = Net().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(229)

    def step(i):
        x = 2 * torch.randn(4, 10, 8, generator=gen)
        out, entropy = net(x.half())
        loss = nn.functional.smooth_l1_loss(out.float(), x.cumsum(1) / 10) + 0 * entropy
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
