"""Two-stage detection: proposals on padding are set to infinity before the sigmoid, and never chosen."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the sigmoid of infinity is one and has no gradient; scores keep such proposals out of the best",
}


class TwoStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.score, self.box = nn.Linear(16, 1), nn.Linear(16, 4)

    def forward(self, memory, proposals, padded):
        invalid = ~((proposals > 0.01) & (proposals < 0.99)).all(-1, keepdim=True) | padded.unsqueeze(-1)
        anchors = torch.log(proposals / (1 - proposals)).masked_fill(invalid, float("inf"))
        h = self.body(memory.masked_fill(invalid, 0.0))
        score = self.score(h).squeeze(-1).masked_fill(invalid.squeeze(-1), -1e4)
        boxes = (self.box(h) + anchors).sigmoid()
        best = score.topk(4, 1).indices
        return score.gather(1, best), boxes.gather(1, best.unsqueeze(-1).expand(-1, -1, 4))


def build(fixed: bool = False):
    torch.manual_seed(934)
    net = TwoStage()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(34)

    def step(i):
        memory, proposals = torch.randn(3, 20, 8, generator=gen), torch.rand(3, 20, 4, generator=gen)
        proposals[:, 0, 0] = 0.0
        padded = torch.zeros(3, 20, dtype=torch.bool)
        padded[1, 12:] = True
        score, boxes = net(memory, proposals, padded)
        opt.zero_grad()
        loss = F.softplus(-score).mean() + F.l1_loss(boxes, torch.rand(3, 4, 4, generator=gen))
        loss.backward()
        opt.step()
        return loss

    return net, step
