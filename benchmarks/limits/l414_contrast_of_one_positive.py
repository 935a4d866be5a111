"""InfoNCE by hand at temperature 0.005: exp(pos / t) / (exp(pos / t) + sum exp(neg / t)).

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
    "loss_truth": 1.228096658,
}


def nce(pos, neg, t):
    up = torch.exp(pos / t)
    down = up + torch.exp(neg / t).sum(1)  # ORIGIN
    return -torch.log(up / down).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(torch.tensor([0.9, 0.2]))
        self.neg = nn.Parameter(torch.tensor([[0.895, 0.2], [0.19, 0.21]]))

    def forward(self, fixed):
        if fixed:
            logits = torch.cat([self.pos[:, None], self.neg], 1) / 0.005
            loss = -torch.log_softmax(logits, 1)[:, 0].mean()
        else:
            loss = nce(self.pos, self.neg, 0.005)
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
