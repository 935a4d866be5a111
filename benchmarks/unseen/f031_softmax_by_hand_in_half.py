"""Softmax by hand in autocast's half output without subtracting the maximum: exp overflows above 11.09 as the logits grow."""
import torch
from torch import nn

META = {
    "origin_op": "exp", "phase": "forward", "cause": "exp-overflow", "also_causes": ("dtype-overflow",), "symptom": "loss-nan",
    "first_bad_step": 17, "n_steps": 20, "fix": "torch.softmax",
}


class Pooler(nn.Module):
    def __init__(self, proper):
        super().__init__()
        self.proper = proper
        self.score, self.head = nn.Linear(8, 1), nn.Linear(8, 3)
        nn.init.zeros_(self.score.bias)

    def forward(self, x):
        s = self.score(x)
        if self.proper:
            w = torch.softmax(s.float(), 1)
        else:
            e = torch.exp(s.half())  # ORIGIN
            w = e / e.sum(1, keepdim=True)
        return self.head((w * x).sum(1))


def build(fixed: bool = False):
    torch.manual_seed(60)
    net = Pooler(fixed)
    opt = torch.optim.SGD([{"params": net.score.parameters(), "lr": 2.0}, {"params": net.head.parameters()}], lr=0.3)
    gen = torch.Generator().manual_seed(61)

    def step(i):
        x = torch.randn(24, 10, 8, generator=gen) * 1.5
        y = x[torch.arange(24), x[..., 0].argmax(1), 1:4].argmax(1)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
