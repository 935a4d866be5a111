"""Square root of |x| at 0: an infinite slope.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 1.7320508075688794,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.5, -0.7]))

    def forward(self, fixed):
        if fixed:
            loss = (self.x.abs()+self.x).clamp_min(1e-30).pow(0.5).sum()
        else:
            loss = self.x.abs().add(self.x).pow(0.5).sum()  # ORIGIN
        return loss


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
    net, _ = build(True)
    net.double()
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    out['x'].view(-1)[0] = float('nan')
    out['x'].view(-1)[2] = float('nan')
    return out
