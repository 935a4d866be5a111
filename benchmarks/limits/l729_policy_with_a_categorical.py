"""Actor: softmax, gather, log and an advantage; the action taken has a probability of 0 in float32.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 29.33064508,
}


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[9.0, 4.0], [-8.0, 2.0], [0.5, 0.5]]))
            self.head.bias.zero_()

    def forward(self, obs):
        return F.softmax(self.head(obs), dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = Actor()

    def forward(self, fixed):
        obs = torch.tensor([[7.0, 1.0], [0.1, 0.2]])
        actions = torch.tensor([[1], [2]])
        advantage = torch.tensor([0.5, -1.0])
        if fixed:
            logp = F.log_softmax(self.actor.head(obs), -1).gather(1, actions).squeeze(1)
        else:
            probs = self.actor(obs)
            chosen = probs.gather(1, actions).squeeze(1)
            logp = torch.log(chosen)  # ORIGIN
        return -(logp * advantage).mean()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
