"""float16 autocast without a scaler on a small classifier: some of the gradients flush to zero, most do not, and it learns."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 12,
    "why": "a partial underflow: no parameter loses its whole gradient",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.net(x).amax((2, 3)))


def build(fixed: bool = False):
    torch.manual_seed(1260)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(1261)

    def step(i):
        y = torch.randint(0, 4, (32,), generator=gen)
        x = torch.rand(32, 1, 8, 8, generator=gen) * 1e-3
        x[torch.arange(32), 0, y, 3] = 2.0 * y.float() + 1
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = 1e-3 * nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
