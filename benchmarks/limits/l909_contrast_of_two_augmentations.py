"""NT-Xent by hand: exp(similarity / 0.01) overflows; the diagonal is taken out by a mask.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.794099327,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[1.0, 0.1], [0.9, 0.3], [1.0, 0.25], [0.95, 0.15]]))

    def forward(self, fixed):
        z = nn.functional.normalize(self.z, dim=1)
        sim = z @ z.T / 0.01
        eye = torch.eye(4, dtype=torch.bool)
        partner = torch.tensor([1, 0, 3, 2])
        if fixed:
            return nn.functional.cross_entropy(sim.masked_fill(eye, float("-inf")), partner)
        exp_sim = torch.exp(sim) * (~eye)  # ORIGIN
        positive = exp_sim[torch.arange(4), partner]
        return -torch.log(positive / exp_sim.sum(dim=1)).mean()


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
