"""Policy gradient with an entropy bonus: probs = softmax(logits), -(probs * log probs).sum(), one
move has underflown.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.8859717086,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[110.0, 0.0, 109.0], [0.2, -0.4, 0.1]]))

    def forward(self, fixed):
        if fixed:
            logp = torch.log_softmax(self.logits, -1)
            entropy = -(logp.exp() * logp).sum(-1).mean()
            return -entropy + 0.1 * logp[:, 0].mean()
        probs = torch.softmax(self.logits, -1)
        entropy = -(probs * torch.log(probs)).sum(-1).mean()  # ORIGIN
        return -entropy + 0.1 * torch.log(probs[:, 0]).mean()


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
