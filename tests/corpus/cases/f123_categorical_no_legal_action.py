"""A masked policy uses Categorical(logits); in a terminal state no action is legal and all logits are -inf."""

import torch
from torch import nn
from torch.distributions import Categorical

META = {
    "origin_op": "logsumexp",
    "also_ops": ("sub",),
    "phase": "forward",
    "cause": "softmax-all-masked",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "leave terminal states out of the batch",
}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 4))

    def forward(self, obs, legal):
        logits = self.body(obs)
        masked = torch.where(legal, logits, torch.tensor(-torch.inf))
        return Categorical(logits=masked, validate_args=False)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(217)
    net = Agent()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(717)

    def step(i):
        opt.zero_grad()
        obs = torch.randn(10, 6, generator=gen)
        legal = torch.rand(10, 4, generator=gen) < 0.6
        legal[:, 0] = True
        if i == 2:
            legal[3] = False
        if fixed:
            keep = legal.any(-1)
            obs, legal = obs[keep], legal[keep]
        pi = net(obs, legal)
        action = legal.long().argmax(-1)
        ret = torch.randn(10, generator=gen)[: len(obs)]
        loss = -(pi.log_prob(action) * ret).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
