"""Off-policy evaluation: the product over time of pi(a) / mu(a), each a softmax over scores; at
some steps both policies give the action a probability that underflows.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -422.4152781849,
}


class Policy(nn.Module):
    def __init__(self, n_states, n_actions):
        super().__init__()
        self.scores = nn.Linear(n_states, n_actions)

    def forward(self, state):
        return torch.softmax(self.scores(state), dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = Policy(2, 3)

    def forward(self, fixed):
        states = torch.tensor([[0.4, 0.1], [0.2, -0.3], [-90.0, 80.0], [-0.5, 0.7]])
        actions = torch.tensor([0, 2, 1, 1])
        behaviour = torch.tensor(
            [[0.5, 0.2, 0.1], [0.3, 0.3, 0.1], [60.0, -70.0, 2.0], [0.1, 0.0, 0.2]]
        )
        reward = 1.7
        if fixed:
            pi = torch.log_softmax(self.policy.scores(states), -1).gather(1, actions[:, None])
            mu = torch.log_softmax(behaviour, -1).gather(1, actions[:, None])
            ratio = torch.exp((pi - mu).sum())
        else:
            pi = self.policy(states).gather(1, actions[:, None])
            mu = torch.softmax(behaviour, -1).gather(1, actions[:, None])
            ratio = torch.prod(pi / mu)  # ORIGIN
        return -ratio * reward


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(0.9 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
    return {name: p.grad for name, p in net.named_parameters()}
