"""GeM pooling with p = 6 in half features: the floor of 1e-2 to the sixth is zero in half, a dead channel has an infinite slope at the root."""
import torch
from torch import nn

META = {
    "origin_op": "pow", "phase": "backward", "cause": "pow-fraction-at-zero", "also_causes": ("dtype-underflow", "eps-underflow"), "symptom": "grad-nan",
    "first_bad_step": 0, "n_steps": 6, "fix": "pool in float32",
}


class Gem(nn.Module):
    def __init__(self, wide, p=6.0):
        super().__init__()
        self.p, self.wide = p, wide

    def forward(self, x):
        x = x.float() if self.wide else x
        x = x.clamp(min=1e-2)
        return x.pow(self.p).mean((-2, -1)).pow(1 / self.p)  # ORIGIN


class Retrieval(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.conv, self.gem, self.head = nn.Conv2d(1, 6, 3), Gem(wide), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.gem(torch.relu(self.conv(x))))


def build(fixed: bool = False):
    torch.manual_seed(90)
    net = Retrieval(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(91)

    def step(i):
        x = torch.rand(8, 1, 8, 8, generator=gen) * 2
        y = torch.randint(0, 4, (8,), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
