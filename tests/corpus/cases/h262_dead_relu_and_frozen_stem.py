"""A frozen stem, and a hidden layer of which the ReLU has killed two thirds, one small branch altogether; bfloat16 autocast."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "units that never fire, and layers that are not trained",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 24)
        self.hidden = nn.Linear(24, 12)
        self.branch = nn.Linear(24, 4)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = torch.tanh(self.stem(x))
        return self.head(torch.cat([torch.relu(self.hidden(h)), torch.relu(self.branch(h))], 1))


def build(fixed: bool = False):
    torch.manual_seed(1264)
    net = Net()
    net.stem.requires_grad_(False)
    with torch.no_grad():
        net.hidden.bias[:8] = -20.0
        net.branch.bias.fill_(-20.0)  # dead since an earlier run with too large a rate
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(1265)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
