"""Physics-informed network of a round membrane, u'' + u' / r + 1 = 0 with derivatives from
autograd; a collocation point lies at the centre, where u' / r has the limit u''.

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
    "kind": "removable",
    "loss_truth": 0.0269913632,
}


class Membrane(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, r):
        return self.b(torch.tanh(self.a(r**2)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = Membrane()

    def forward(self, fixed):
        r = torch.tensor([[0.0], [0.4], [0.8]], requires_grad=True)
        if fixed:
            s = (r**2).detach().requires_grad_(True)
            f = self.u.b(torch.tanh(self.u.a(s)))
            (f1,) = torch.autograd.grad(f.sum(), s, create_graph=True)
            (f2,) = torch.autograd.grad(f1.sum(), s, create_graph=True)
            residual = 2 * f1 + 4 * s * f2 + 2 * f1 + 1
        else:
            u = self.u(r)
            (u_r,) = torch.autograd.grad(u.sum(), r, create_graph=True)
            (u_rr,) = torch.autograd.grad(u_r.sum(), r, create_graph=True)
            residual = u_rr + u_r / r + 1  # ORIGIN
        return (residual**2).mean()


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(0.6 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
    true["u.b.bias"] = torch.zeros(1)
    return true
