"""Forward variables of a left-to-right model, multiplied up over 24 frames in a loop, then a logarithm.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 5.722589797,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emission = nn.Parameter(torch.tensor([[-5.0, -6.0], [-5.5, -4.5]]))
        self.stay = nn.Parameter(torch.tensor([0.2, -0.1]))

    def forward(self, fixed):
        stay, frames = torch.sigmoid(self.stay), 24
        if fixed:
            ls, lg = nn.functional.logsigmoid(self.stay), nn.functional.logsigmoid(-self.stay)
            alpha = torch.stack([self.emission[0, 0], torch.tensor(float("-inf")).to(stay)])
            for t in range(1, frames):
                into = torch.logaddexp(alpha[1] + ls[1], alpha[0] + lg[0])
                alpha = torch.stack([alpha[0] + ls[0], into]) + self.emission[t % 2]
            return -alpha[1] / frames
        emission = torch.exp(self.emission)
        alpha = torch.stack([emission[0, 0], torch.zeros(()).to(stay)])
        for t in range(1, frames):
            into = alpha[1] * stay[1] + alpha[0] * (1 - stay[0])
            alpha = torch.stack([alpha[0] * stay[0], into]) * emission[t % 2]
        return -torch.log(alpha[1]) / frames  # ORIGIN


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
