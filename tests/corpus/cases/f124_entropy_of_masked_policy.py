"""The entropy bonus of a masked policy is -sum p log p; an illegal action has p = 0 and log p = -inf."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "mask with a large finite negative number",
}


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.LSTM(5, 16, batch_first=True)
        self.pi = nn.Linear(16, 6)

    def forward(self, obs):
        out, _ = self.core(obs)
        return self.pi(out)


def entropy(logits, mask, fill):
    logp = F.log_softmax(logits.masked_fill(~mask, fill), dim=-1)
    plogp = logp.exp() * logp  # ORIGIN
    return -plogp.sum(-1).mean()


def build(fixed: bool = False):
    torch.manual_seed(218)
    net = Actor()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(718)
    fill = -1e9 if fixed else float("-inf")

    def step(i):
        opt.zero_grad()
        obs = torch.randn(4, 7, 5, generator=gen)
        mask = torch.rand(4, 7, 6, generator=gen) < 0.7
        mask[..., 2] = True
        logits = net(obs)
        nll = F.cross_entropy(logits.flatten(0, 1), torch.full((28,), 2))
        loss = nll - 0.01 * entropy(logits, mask, fill)
        loss.backward()
        opt.step()
        return loss

    return net, step
