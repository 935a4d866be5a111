"""Every third step the model is evaluated under no_grad; a metric of a class without samples is NaN there and is left out by nanmean."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 9,
    "why": "the NaN of an empty class is a metric, has no gradient, and reaches neither loss nor weights",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))

    def forward(self, x):
        return self.body(x)


def build(fixed: bool = False):
    torch.manual_seed(618)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(718)
    history = []

    @torch.no_grad()
    def evaluate():
        net.eval()
        x = torch.randn(12, 6, generator=gen)
        y = torch.randint(0, 3, (12,), generator=gen)  # the fourth class is rare
        right = (net(x).argmax(-1) == y).float()
        per_class = torch.stack([right[y == k].sum() / (y == k).sum() for k in range(4)])
        history.append(float(per_class.nanmean()))
        net.train()

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(-1))
        loss.backward()
        opt.step()
        if i % 3 == 2:
            evaluate()
        return loss

    return net, step
