"""log(1 - D) of a discriminator that is certain: 1 - sigmoid(110) is 0 in float32.

Source: well-known fault (saturating GAN loss)
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
    "loss_truth": -37.05587231,
}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Parameter(torch.tensor([110.0, 0.3, -1.0]))

    def forward(self, fixed):
        if fixed:
            loss = nn.functional.logsigmoid(-self.d).mean()
        else:
            loss = torch.log(1 - torch.sigmoid(self.d)).mean()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Critic()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    d = torch.tensor([110.0, 0.3, -1.0], dtype=torch.float64, requires_grad=True)
    loss = nn.functional.logsigmoid(-d).mean()
    dd_, = torch.autograd.grad(loss, [d])
    return {"d": dd_}
