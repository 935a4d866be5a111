"""Iterative box refinement in half precision: the odds of a reference point at the border of the image are more than
the format holds.
"""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the sigmoid of infinity is one, and the clamp gives what it clamped no gradient",
}


def inverse_sigmoid(x, eps=1e-5):
    x = x.clamp(0, 1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


class Decoder(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.propose = nn.Linear(12, 4)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(layers))
        self.deltas = nn.ModuleList(nn.Linear(12, 4) for _ in range(layers))

    def forward(self, query, anchors):
        reference = (self.propose(query) + anchors).sigmoid()
        boxes = []
        for layer, delta in zip(self.layers, self.deltas, strict=True):
            query = query + torch.relu(layer(query))
            start = inverse_sigmoid(reference)
            boxes.append((delta(query) + start).sigmoid())
            reference = boxes[-1].detach()
        return torch.stack(boxes)


def build(fixed: bool = False):
    torch.manual_seed(953)
    net = Decoder()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(53)

    def step(i):
        query = torch.randn(6, 12, generator=gen)
        anchors = torch.randn(6, 4, generator=gen)
        if i >= 3:
            anchors[2, 0] = 11.0  # an object cut off by the image
        target = torch.rand(6, 4, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            boxes = net(query, anchors.half())
        loss = (boxes.float() - target).abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
