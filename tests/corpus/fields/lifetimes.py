"""Cures, frailties and accelerated time; measures between distributions."""

import torch
from programs import fault, train
from torch import nn


@fault("log-of-zero", "log1p", step=2, ops=("log",))
def survivors_of_a_cure_without_the_cured(fixed):
    torch.manual_seed(0)
    incidence = nn.Linear(3, 1)
    rate = nn.Parameter(torch.tensor(0.2))

    def log_survival(x, t):
        susceptible = torch.sigmoid(incidence(x)).squeeze(-1)
        died = -torch.expm1(-rate * t)
        product = susceptible * died
        if fixed:
            product = product.clamp(max=1 - 1e-6)
        return torch.log1p(-product)  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x, t = torch.randn(12, 3, generator=gen), torch.rand(12, generator=gen) * 5
        if i == 2:
            x[1], t[1] = 300 * torch.sign(incidence.weight.detach()[0]), 900.0
        return -log_survival(x, t).mean()

    return incidence, train([*incidence.parameters(), rate], loss)


@fault("div-by-zero", "reciprocal", "backward", step=0, ops=("div",), also=("zero-times-inf",))
def frailty_without_variance(fixed):
    """(1 + theta H)**(-1 / theta) begins at theta = 0, its limit exp(-H)."""
    torch.manual_seed(1)
    risk = nn.Linear(2, 1)
    theta = nn.Parameter(torch.full((), 0.1 if fixed else 0.0))
    x, h = torch.randn(9, 2), torch.rand(9)

    def survival():
        hazard = h * torch.exp(risk(x).squeeze(-1))
        return (1 + theta * hazard) ** (-1.0 / theta)  # ORIGIN

    return risk, train([*risk.parameters(), theta], lambda i: (survival() - 0.5).square().mean())


@fault("pow-negative-base", "pow", step=1)
def shape_of_a_standardised_time(fixed):
    torch.manual_seed(2)

    class Weibull(nn.Module):
        def __init__(self):
            super().__init__()
            self.shape = nn.Parameter(torch.tensor(1.3))
            self.scale = nn.Linear(2, 1)

        def forward(self, x, t):
            ratio = t / self.scale(x).squeeze(-1).exp()
            if fixed:
                ratio = ratio.clamp(min=1e-3)
            cumulative = ratio**self.shape  # ORIGIN
            return cumulative.mean()

    net = Weibull()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        t = torch.rand(10, generator=gen) + 0.1
        if i == 1:
            t = (t - t.mean()) / t.std()
        return net(torch.randn(10, 2, generator=gen), t)

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def barycentres_of_a_truncated_plan(fixed):
    """Only the two largest entries of each column are kept; one row keeps none."""
    torch.manual_seed(3)
    net = nn.Linear(2, 2)

    def plan(x, y, keep):
        kernel = torch.softmax(-torch.cdist(x, y) ** 2, 0)
        top = kernel.topk(keep, dim=0).values[-1]
        return kernel * (kernel >= top)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x, y = torch.randn(5, 2, generator=gen), torch.randn(4, 2, generator=gen)
        if i == 2:
            x[0] = 60.0
        p = plan(net(x), y, 2 if i == 2 else 5)
        mass = p.sum(1, keepdim=True)
        image = torch.einsum("ij,jd->id", p, y) / (mass.clamp(min=1e-8) if fixed else mass)  # ORIGIN
        return (image - net(x)).square().clamp(max=5).mean()

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=1, ops=("div", "mul"))
def gaussian_distance_of_points_on_a_line(fixed):
    torch.manual_seed(4)
    net = nn.Linear(2, 2, bias=False)
    net.weight.data.copy_(torch.eye(2))

    def cov(z):
        z = z - z.mean(0)
        return z.T @ z / len(z)

    def trace_of_root(m):
        """Of a positive matrix of two rows: sqrt(tr + 2 sqrt(det))."""
        det = m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]
        inner = (det.clamp(min=0) + 1e-6).sqrt() if fixed else det.clamp(min=0).sqrt()  # ORIGIN
        return (m.trace() + 2 * inner).sqrt()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(8, 2, generator=gen)
        if i == 1:
            x = torch.arange(-4.0, 4.0)[:, None].expand(8, 2)
        s = cov(net(x))
        return s.trace() + 2 - 2 * trace_of_root(s)

    return net, train(net.parameters(), loss, 0.0 if not fixed else 1e-3)


@fault("log-of-zero", "log", step=1, also=("dtype-underflow",), ops=("sum", "_to_copy"))
def dual_of_a_half_kernel(fixed):
    torch.manual_seed(5)
    net = nn.Linear(2, 2)

    def soft_min(cost, eps=0.5):
        if fixed:
            return -eps * torch.logsumexp(-cost / eps, 1)
        return -eps * torch.log(torch.exp((-cost / eps).half()).float().sum(1))  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = net(torch.randn(6, 2, generator=gen))
        y = torch.randn(5, 2, generator=gen) + (9.0 if i == 1 else 0.0)
        return soft_min(torch.cdist(x, y) ** 2 / 2).mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=1, also=("learning-rate", "exploding-gradient"))
def semi_dual_without_a_maximum(fixed):
    torch.manual_seed(6)
    x, y = torch.randn(6, 2), torch.randn(7, 2)
    f, g = nn.Parameter(torch.zeros(6, 1)), nn.Parameter(torch.zeros(1, 7))
    opt = torch.optim.Adam([f, g], lr=0.02 if fixed else 3.0, maximize=True)
    cost = torch.cdist(x, y) ** 2

    def step(i):
        def closure():
            opt.zero_grad()
            violation = torch.exp((f + g - cost) / 0.05)  # ORIGIN
            value = f.mean() + g.mean() - 0.05 * violation.mean()
            value.backward()
            return value

        return opt.step(closure)

    step.parameters = {"f": f, "g": g}
    return None, step
