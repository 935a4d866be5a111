"""Policy gradient with log(probs[action]) of a softmax computed in another method: the action had
the probability 0.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 22.50749812,
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 3)
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor([[20.0, 5.0], [-10.0, 1.0], [0.5, -0.5]]))
            self.body.bias.copy_(torch.tensor([0.0, 0.1, -0.1]))

    def act(self, state):
        return F.softmax(self.body(state), dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = Policy()

    def forward(self, fixed):
        state = torch.tensor([[4.0, 1.0], [0.1, 0.2], [-0.2, 0.3]])
        action = torch.tensor([1, 0, 2])
        advantage = torch.tensor([0.5, -1.0, 2.0])
        if fixed:
            logp = F.log_softmax(self.policy.body(state), -1)[torch.arange(3), action]
        else:
            probs = self.policy.act(state)
            chosen = probs.gather(1, action.unsqueeze(1)).squeeze(1)
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
