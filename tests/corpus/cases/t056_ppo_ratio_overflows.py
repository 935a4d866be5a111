"""PPO on long sequences without an early stop: the summed log-ratio grows from epoch to epoch until its exponential overflows."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 30,
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
    opt = torch.optim.Adam(net.parameters(), lr=2e-2)
    gen = torch.Generator().manual_seed(556)
    states = torch.randint(0, 12, (8, 80), generator=gen)
    actions = torch.where(torch.rand(8, 80, generator=gen) < 0.8, states % 3, states % 6)
    advantage = torch.tensor([1.0, 2.0, 0.5, 1.5, -0.001, 1.0, 2.0, 1.0])
    old = net.logp(states, actions).detach()

    def step(i):
        opt.zero_grad()
        log_ratio = net.logp(states, actions) - old
        log_ratio = log_ratio.mean(1).clamp(-5, 5) if fixed else log_ratio.sum(1)
        ratio = torch.exp(log_ratio)  # ORIGIN
        clipped = ratio.clamp(0.8, 1000.0)
        loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
