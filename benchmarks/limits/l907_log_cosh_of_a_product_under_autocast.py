"""log(cosh(z)) of a matrix product in bfloat16: cosh(120) leaves the range, its logarithm is 119.3.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "cosh",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 34.68345504,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[2.0, 1.0], [-0.5, 0.25]]))

    def forward(self, fixed):
        x = torch.tensor([[50.0, 20.0], [0.5, -1.0]]).to(self.lin.weight)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.lin.weight.dtype == torch.float32):
            z = self.lin(x).to(x.dtype)
            if fixed:
                each = z.abs() + nn.functional.softplus(-2 * z.abs()) - 0.6931471805599453
            else:
                each = torch.log(torch.cosh(z))  # ORIGIN
        return each.mean()


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
