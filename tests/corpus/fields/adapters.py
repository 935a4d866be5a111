"""Adapters, quantisers, narrow formats, updates by hand, schedules and equations."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("dead-gradient", "mm", "backward", step=0, steps=6, ops=("matmul", "addmm", "mul", "t", "linear"))
def adapter_with_two_zero_factors(fixed):
    torch.manual_seed(0)

    class LoraLinear(nn.Module):
        def __init__(self, base, rank=2, alpha=4):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1 if fixed else torch.zeros(rank, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, rank))
            self.scale = alpha / rank

        def forward(self, x):
            down = x @ self.a.T  # ALSO
            return self.base(x) + down @ self.b.T * self.scale  # ORIGIN

    net = LoraLinear(nn.Linear(6, 4))
    x, y = torch.randn(8, 6), torch.randn(8, 4)
    return net, train([net.a, net.b], lambda i: F.mse_loss(net(x), y), lr=1e-2)


@fault("absorbed-update", "add", "optimizer", step=0, steps=8, ops=("add_", "sub", "_foreach_add_", "addcdiv_", "_foreach_addcdiv_", "mul_"))
def fine_tuning_of_bfloat16_weights(fixed):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    for p in net.parameters():
        p.data.uniform_(0.5, 1.0)
    if not fixed:
        net.to(torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    dtype = torch.float32 if fixed else torch.bfloat16
    x, y = torch.randn(16, 8).to(dtype), torch.randn(16, 4)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x).float(), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step


@fault("div-by-zero", "div", step=2, ops=("mul", "clamp"), also=("zero-times-inf",))
def clipping_level_that_is_trained_away(fixed):
    """PACT: the level of a quantised activation is a parameter, and is driven to 0."""
    torch.manual_seed(2)

    class Pact(nn.Module):
        def __init__(self, bits=4):
            super().__init__()
            self.level, self.n = nn.Parameter(torch.tensor(0.5)), 2**bits - 1

        def forward(self, x):
            level = self.level.clamp(min=1e-3) if fixed else self.level.clamp(min=0)
            y = torch.minimum(x.relu(), level)
            scaled = y / level * self.n  # ORIGIN
            rounded = scaled + (scaled.round() - scaled).detach()
            return rounded * level / self.n

    net = nn.Sequential(nn.Linear(4, 6), Pact(), nn.Linear(6, 1))
    gen = torch.Generator().manual_seed(3)

    def loss(i):
        x = torch.randn(8, 4, generator=gen)
        return net(x).square().mean() + (20.0 if i == 1 else 0.0) * net[1].level

    return net, train(net.parameters(), loss, lr=0.05)


@fault("dtype-underflow", "mul", "backward", step=0, steps=6, ops=("div", "_to_copy", "mean", "expand"), also=("dead-gradient",))
def mean_over_a_large_map_in_half(fixed):
    """1e-9 of a weighted mean has no place in float16: every gradient is 0."""
    torch.manual_seed(4)
    net = nn.Linear(6, 6)
    x = torch.randn(32, 6)
    weight = 1e-9

    def loss(i):
        h = net(x) if fixed else net(x).half()  # ALSO
        return (h.float().square().mean() * weight)  # ORIGIN

    return net, train(net.parameters(), loss, lr=1.0)


@fault("optimizer-arithmetic", "div", "optimizer", step=0, ops=("div_", "sqrt", "mul_", "_foreach_div_", "addcdiv_"), also=("div-by-zero", "zero-times-inf"))
def adadelta_without_epsilon(fixed):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    with torch.no_grad():
        net[0].weight[2] = 0
        net[0].bias[2] = -1.0
    opt = torch.optim.Adadelta(net.parameters(), lr=1.0, eps=1e-6 if fixed else 0.0)
    x = torch.randn(8, 4)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step


@fault("div-by-zero", "div", "optimizer", step=0, ops=("sqrt", "addcdiv_", "div_", "mul", "sub"), also=("optimizer-arithmetic", "optimizer-eps-underflow"))
def adam_by_hand_that_forgets_epsilon(fixed):
    torch.manual_seed(6)

    class MyAdam(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=0.0):
            super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                b1, b2 = group["betas"]
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    s = self.state[p]
                    if not s:
                        s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                    s["t"] += 1
                    s["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                    s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                    m_hat = s["m"] / (1 - b1 ** s["t"])
                    v_hat = s["v"] / (1 - b2 ** s["t"])
                    p -= group["lr"] * m_hat / (v_hat.sqrt() + group["eps"])  # ORIGIN

    net = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 1))
    opt = MyAdam(net.parameters(), eps=1e-8 if fixed else 0.0)
    ids = torch.tensor([0, 1, 2])

    def step(i):
        opt.zero_grad()
        loss = (net(ids) - 1).square().mean()
        loss.backward()
        opt.step()  # ALSO
        return loss

    return net, step


@fault("div-by-zero", "div", "init", step=0, ops=("rsqrt", "reciprocal", "sqrt", "pow"), also=("poisoned-buffer", "zero-times-inf", "inf-minus-inf"))
def cosine_schedule_without_a_bound(fixed):
    """The last alpha-bar is exactly 0, and tables are made of its inverse before training."""
    torch.manual_seed(7)

    class Diffusion(nn.Module):
        def __init__(self, steps=10):
            super().__init__()
            self.eps = nn.Linear(3, 2)
            t = torch.arange(steps + 1) / steps
            bar = 1 - t**2
            if fixed:
                bar = bar.clamp(min=1e-4)
            self.register_buffer("bar", bar)
            self.register_buffer("inv", 1 / bar.sqrt())  # ORIGIN

        def x0(self, x, t, eps):
            return (x - (1 - self.bar[t]).sqrt()[:, None] * eps) * self.inv[t][:, None]  # ALSO

        def loss(self, x, t):
            noise = torch.ones_like(x) * 0.3
            noisy = self.bar[t].sqrt()[:, None] * x + (1 - self.bar[t]).sqrt()[:, None] * noise
            eps = self.eps(torch.cat([noisy, t[:, None] / 10], 1))
            return F.mse_loss(self.x0(noisy, t, eps), x)  # ALSO

    net = Diffusion()
    x = torch.randn(4, 2)
    return net, train(net.parameters(), lambda i: net.loss(x, torch.tensor([1, 4, 7, 10])), lr=1e-4)


@fault("log-of-zero", "log", step=1, ops=("mul", "xlogy"), also=("zero-times-inf",))
def mixing_energy_of_a_pure_phase(fixed):
    """(1 + u) log(1 + u) where tanh has saturated at -1."""
    torch.manual_seed(8)

    class Phase(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x, gain):
            return torch.tanh(gain * self.net(x) - gain + 1)

        @staticmethod
        def energy(u):
            if fixed:
                u = u * (1 - 1e-4)
            return ((1 + u) * torch.log(1 + u) + (1 - u) * torch.log(1 - u)).mean()  # ORIGIN

    net = Phase()
    x = torch.linspace(-1, 1, 9)[:, None]

    def loss(i):
        u = net(x, 30.0 if i == 1 else 1.0)
        return net.energy(u) + u.diff(dim=0).square().mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("div-by-zero", "div", step=3, also=("learning-rate", "div-by-tiny"), second=("learning-rate",))
def temperature_that_one_update_sets_to_zero(fixed):
    """The gradient of one step is exactly as large as the temperature over the rate."""
    torch.manual_seed(9)
    temperature = nn.Parameter(torch.tensor(1.0))
    net = nn.Linear(4, 3)
    gen = torch.Generator().manual_seed(10)
    opt = torch.optim.SGD([{"params": net.parameters()}, {"params": [temperature], "lr": 1.0}], lr=1e-2)

    def step(i):
        x, y = torch.randn(6, 4, generator=gen), torch.randint(0, 3, (6,), generator=gen)
        t = temperature.clamp(min=0.05) if fixed else temperature.clamp(min=0)
        opt.zero_grad()
        logits = net(x) / t  # ORIGIN
        loss = F.cross_entropy(logits, y) + (40.0 if i == 2 else 0.0) * temperature
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"temperature": temperature, **dict(net.named_parameters())}
    return None, step


@fault("eps-underflow", "div", step=1, ops=("add", "sqrt", "rsqrt", "reciprocal"), also=("div-by-zero",))
def instance_norm_of_a_flat_channel_in_half(fixed):
    torch.manual_seed(11)

    class InstanceNorm(nn.Module):
        def __init__(self, eps=1e-8):
            super().__init__()
            self.eps = 1e-3 if fixed else eps

        def forward(self, x):
            mean = x.mean((2, 3), keepdim=True)
            var = ((x - mean) ** 2).mean((2, 3), keepdim=True)
            return (x - mean) / torch.sqrt(var + self.eps)  # ORIGIN

    conv, norm = nn.Conv2d(1, 2, 1), InstanceNorm()
    gen = torch.Generator().manual_seed(12)

    def loss(i):
        image = torch.randn(2, 1, 4, 4, generator=gen)
        if i == 1:
            image[0] = 0.0
        return (norm(conv(image).half()).float() - 0.2).square().mean()

    return conv, train(conv.parameters(), loss)
