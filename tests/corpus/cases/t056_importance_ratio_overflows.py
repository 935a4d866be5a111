"""Sequence-level importance weights without clipping: the summed log-ratio grows from epoch to epoch until its exponential overflows."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 13,
    "n_steps": 40,
    "fix": "a ratio per token, with its logarithm clamped",
}


class Policy(nn.Module):
    def __init__(self, states=12, actions=6):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(states, 24), nn.Tanh(), nn.Linear(24, actions))

    def logp(self, states, actions):
        return torch.log_softmax(self.net(states), -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(456)
    net = Policy()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(556)
    states = torch.randint(0, 12, (8, 90), generator=gen)
    actions = torch.where(torch.rand(8, 90, generator=gen) < 0.95, states % 3, states % 6)
    advantage = torch.tensor([1.0, 2.0, 0.5, 1.5, 0.1, 1.0, 2.0, 1.0])
    old = net.logp(states, actions).detach()

    def step(i):
        opt.zero_grad()
        log_ratio = net.logp(states, actions) - old
        log_ratio = log_ratio.mean(1).clamp(-5, 5) if fixed else log_ratio.sum(1)
        ratio = torch.exp(log_ratio)  # ORIGIN
        loss = -(ratio * advantage).mean()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        opt.step()
        return loss

    return net, step
