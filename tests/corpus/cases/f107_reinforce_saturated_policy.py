"""REINFORCE on a bandit: probabilities come from softmax and go through log; a sharpened policy gives one action probability zero."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "take log_softmax of the logits",
}


class Policy(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.torso = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.pi = nn.Linear(32, 5)

    def forward(self, obs, sharpness):
        logits = self.pi(self.torso(obs)) * sharpness
        if self.safe:
            return torch.log_softmax(logits, -1)
        probs = torch.softmax(logits, dim=-1)
        return torch.log(probs)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(201)
    net = Policy(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(701)

    def step(i):
        opt.zero_grad()
        obs = torch.randn(16, 6, generator=gen)
        action = torch.randint(0, 5, (16,), generator=gen)
        reward = torch.rand(16, generator=gen)
        logp = net(obs, 1.0 if i < 3 else 1500.0)
        chosen = logp.gather(1, action[:, None]).squeeze(1)
        advantage = reward - reward.mean()
        loss = -(chosen * advantage.abs()).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
