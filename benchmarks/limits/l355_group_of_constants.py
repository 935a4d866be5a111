"""Group normalisation by hand; a group of constants has weight 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "std-of-constant",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": -0.9026745973,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[2.0, 2.0, 2.0], [1.0, 3.0, 0.5]]))

    def forward(self, fixed):
        if fixed:
            x = self.x[1]
            centred = x - x.mean()
            normal = centred / centred.pow(2).mean().sqrt()
            loss = (normal * 1.5 * torch.tensor([0.2, 0.3, 1.0])).sum() + 0 * self.x[0].sum()
        else:
            gain = torch.tensor([[0.0], [1.5]])
            centred = self.x - self.x.mean(1, keepdim=True)
            normal = centred / centred.pow(2).mean(1, keepdim=True).sqrt()  # ORIGIN
            loss = (normal * gain * torch.tensor([0.2, 0.3, 1.0])).sum()
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
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
