"""Mean of a bag of words that is empty, weighted by 0 in the loss.

Source: well-known fault (EmbeddingBag by hand)
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
    "kind": "masked",
    "loss_truth": 0.5,
}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([[0.5, -0.2], [0.3, 0.8], [0.1, -0.4]]))

    def forward(self, fixed):
        used = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        if fixed:
            mean = (used[:, :, None] * self.e).sum(1) / used.sum(1, keepdim=True).clamp_min(1)
        else:
            mean = (used[:, :, None] * self.e).sum(1) / used.sum(1, keepdim=True)  # ORIGIN
        loss = (used.amax(1) * (mean - 0.4).pow(2).sum(1)).sum()
        return loss


def build(fixed: bool = False):
    net = Bag()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    e = torch.tensor([[0.5, -0.2], [0.3, 0.8], [0.1, -0.4]], dtype=torch.float64, requires_grad=True)
    used = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    mean = (used[:, :, None] * e).sum(1) / used.sum(1, keepdim=True).clamp_min(1)
    loss = (used.amax(1) * (mean - 0.4).pow(2).sum(1)).sum()
    de_, = torch.autograd.grad(loss, [e])
    return {"e": de_}
