"""Updates written by hand."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("learning-rate", "add_", "optimizer", step=9, steps=12, also=("exploding-gradient",), ops=("_foreach_add_", "mul", "square", "pow", "mm", "addmm", "sum", "mean", "mse_loss", "sub"))
def rate_beyond_the_curvature(fixed):
    torch.manual_seed(0)
    w = nn.Parameter(torch.ones(4))
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1)) * 3
    opt = torch.optim.SGD([w], lr=0.01 if fixed else 3.0)

    def step(i):
        opt.zero_grad()
        loss = (x @ w - 1).square().mean()  # ALSO
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("div-by-zero", "div", "optimizer", step=1, also=("clip-nonfinite-norm", "optimizer-arithmetic", "norm-at-zero"), ops=("reciprocal", "mul"))
def clip_by_hand_of_no_gradient(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(3)

    def step(i):
        opt.zero_grad()
        out = net(torch.randn(5, 3, generator=gen))
        loss = F.relu(out - (100.0 if i == 1 else -10.0)).mean()
        loss.backward()
        total = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        factor = 1.0 / (total + 1e-6) if fixed else 1.0 / total  # ORIGIN
        for p in net.parameters():
            p.grad.mul_(factor)
        opt.step()
        return loss

    step.parameters = dict(net.named_parameters())
    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=0, also=("div-by-zero",), ops=("div_", "reciprocal", "addcdiv_"))
def bias_correction_that_counts_from_zero(fixed):
    torch.manual_seed(4)
    w = nn.Parameter(torch.randn(4))
    m, beta = torch.zeros(4), torch.tensor(0.9)

    def step(i):
        w.grad = None
        loss = (w - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            m.mul_(beta).add_(w.grad, alpha=0.1)
            corrected = m / (1 - beta ** (i + 1 if fixed else i))  # ORIGIN
            w.sub_(0.01 * corrected)
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("exploding-gradient", "mm", "backward", step=0, ops=("mul", "addmm", "matmul", "sum", "tanh", "mv", "t"))
def linear_recurrence_of_many_steps(fixed):
    torch.manual_seed(5)
    w = nn.Parameter(torch.eye(3) * (1.0 if fixed else 2.0))
    x = torch.randn(2, 3) * 1e-30

    def loss(i):
        h = x
        for _ in range(150):
            h = h @ w  # ORIGIN
        return h.mean() * 1e3

    return None, train([w], loss, lr=1e-30)
