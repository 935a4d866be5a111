"""Two faults in one step: mean of a bag of words that is empty, weighted by 0 in the loss;
and attention weights exp(s) / sum exp(s): unscaled scores of 200.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["div", "exp"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 1.171931892,
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


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[10.0, 10.0], [0.5, -0.2]]))

    def forward(self, fixed):
        k, v = torch.tensor([[10.0, 10.0], [9.9, 10.05], [1.0, 0.0]]), torch.tensor([[1.0], [0.3], [-0.4]])
        s = self.q @ k.T
        if fixed:
            w = torch.softmax(s, -1)
        else:
            w = torch.exp(s)  # ORIGIN
            w = w / w.sum(-1, keepdim=True)
        loss = ((w @ v) - 0.1).pow(2).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Bag()
        self.second = Attention()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    e = torch.tensor([[0.5, -0.2], [0.3, 0.8], [0.1, -0.4]], dtype=torch.float64, requires_grad=True)
    used = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    mean = (used[:, :, None] * e).sum(1) / used.sum(1, keepdim=True).clamp_min(1)
    loss = (used.amax(1) * (mean - 0.4).pow(2).sum(1)).sum()
    de_, = torch.autograd.grad(loss, [e])
    return {"first.e": de_}


def truth_second():
    q = torch.tensor([[10.0, 10.0], [0.5, -0.2]], dtype=torch.float64, requires_grad=True)
    k, v = torch.tensor([[10.0, 10.0], [9.9, 10.05], [1.0, 0.0]]), torch.tensor([[1.0], [0.3], [-0.4]])
    s = q @ k.T
    w = torch.softmax(s, -1)
    loss = ((w @ v) - 0.1).pow(2).sum()
    dq_, = torch.autograd.grad(loss, [q])
    return {"second.q": dq_}


def truth():
    return {**truth_first(), **truth_second()}
