"""A half encoder under SGD with a constant bias before a softmax and one before a batch-like centring: both have no gradient but rounding."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 20,
    "why": "the biases cancel, so that their gradients are rounding error",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
        self.mix, self.out = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        w = torch.softmax(self.score(x), 1)
        h = self.mix(x)
        h = h - h.mean(0, keepdim=True)
        return self.out((w * h).sum(1))


def build(fixed: bool = False):
    torch.manual_seed(338)
    net = Net().bfloat16()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(339)

    def step(i):
        x = torch.randn(24, 6, 8, generator=gen)
        loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), x.sum(1)[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
