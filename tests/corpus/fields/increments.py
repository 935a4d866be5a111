"""Narrow formats, updates by hand, normalised weights and schedules."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("div-by-zero", "div", step=2)
def eight_bits_for_a_token_of_zeros(fixed):
    torch.manual_seed(0)

    class Fake8(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            return torch.round(x / scale).clamp(-127, 127) * scale  # ORIGIN

        @staticmethod
        def backward(ctx, g):
            return g, None

    net = nn.Linear(6, 2)

    def loss(i):
        x = drawn(i, 5, 6)
        if i == 2:
            x[3] = 0.0
        scale = x.abs().amax(1, keepdim=True) / 127
        if fixed:
            scale = scale.clamp_min(1e-8)
        return net(Fake8.apply(x, scale)).square().mean()

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "matmul", step=27, steps=30, ops=("mm", "bmm", "linear", "baddbmm"))
def scores_in_half_of_queries_that_grow(fixed):
    torch.manual_seed(1)
    q, k, v = (nn.Linear(8, 8) for _ in range(3))
    x = drawn(2, 12, 8) * 4

    def attend():
        a, b, c = q(x), k(x), v(x)
        if fixed:
            a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        scores = a.half() @ b.half().T  # ORIGIN
        return torch.softmax(scores.float(), -1) @ c

    def step(i):
        for layer in (q, k, v):
            layer.zero_grad()
        loss = attend().square().mean()
        loss.backward()
        with torch.no_grad():
            for layer in (q, k, v):
                for p in layer.parameters():
                    p -= 1e-3 * p.grad
            q.weight *= 1.15
            k.weight *= 1.15
        return loss

    return nn.ModuleList([q, k, v]), step


@fault("div-by-zero", "div", step=0, also=("norm-at-zero",))
def largest_singular_value_of_a_new_branch(fixed):
    """Power iteration on a weight that begins at 0."""
    torch.manual_seed(2)

    class Spectral(nn.Module):
        def __init__(self, n_in, n_out):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(n_out, n_in))
            self.register_buffer("u", F.normalize(torch.ones(n_out), dim=0))

        def forward(self, x):
            with torch.no_grad():
                v = F.normalize(self.weight.T @ self.u, dim=0)
                self.u.copy_(F.normalize(self.weight @ v, dim=0))
            sigma = self.u @ self.weight @ v
            return x @ (self.weight / (sigma.clamp_min(1e-6) if fixed else sigma)).T  # ORIGIN

    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Spectral(4, 2))
    x = drawn(3, 8, 4)
    return net, train(net.parameters(), lambda i: (net(x) - 1).square().mean(), lr=1e-4)


@fault("div-by-zero", "div", "optimizer", step=0, steps=4, ops=("mul", "rsqrt", "sqrt"), also=("optimizer-arithmetic", "zero-times-inf"))
def factored_moments_of_a_matrix_without_gradient(fixed):
    torch.manual_seed(3)

    class Factored(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-2, eps=0.0):
            super().__init__(params, {"lr": lr, "eps": eps})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    sq = p.grad.square() + group["eps"]
                    if p.dim() == 2:
                        row, col = sq.mean(1, keepdim=True), sq.mean(0, keepdim=True)
                        second = row / row.mean() * col  # ORIGIN
                    else:
                        second = sq + 1e-12
                    p.sub_(group["lr"] * p.grad / (second.sqrt() + 1e-3))

    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        net[2].weight.zero_()
    opt = Factored(net.parameters(), eps=1e-30 if not fixed else 1e-20)
    x = drawn(4, 8, 4)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    if not fixed:
        opt.param_groups[0]["eps"] = 0.0
    return net, step


@fault("div-by-zero", "div", "optimizer", step=23, steps=26, also=("optimizer-arithmetic", "norm-at-zero"))
def sharpness_where_nothing_is_left_to_learn(fixed):
    """SAM on a hinge that is satisfied after some time: the gradient has no length."""
    torch.manual_seed(4)
    net = nn.Linear(2, 1)
    x = torch.tensor([[2.0, 1.0], [1.0, 2.0], [-2.0, -1.0], [-1.0, -2.0]])
    y = torch.tensor([1.0, 1.0, -1.0, -1.0])
    opt = torch.optim.SGD(net.parameters(), lr=0.02)

    def hinge():
        return (1 - y * net(x)[:, 0]).relu().mean()

    def step(i, rho=0.05):
        opt.zero_grad()
        loss = hinge()
        loss.backward()
        with torch.no_grad():
            norm = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
            moves = [rho * p.grad / (norm + 1e-12 if fixed else norm) for p in net.parameters()]  # ORIGIN
            for p, m in zip(net.parameters(), moves, strict=True):
                p.add_(m)
        opt.zero_grad()
        hinge().backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), moves, strict=True):
                p.sub_(m)
        opt.step()
        return loss

    return net, step


@fault("div-by-zero", "div", "optimizer", step=2, steps=6, ops=("reciprocal", "mul", "dot"), also=("optimizer-arithmetic", "zero-times-inf"))
def curvature_of_a_move_of_nothing(fixed):
    """BFGS by hand: at the minimum of a quadratic neither weights nor gradient move."""
    w = nn.Parameter(torch.tensor([2.0, -4.0]))
    inverse, old = torch.eye(2) * 0.5, {}

    @torch.no_grad()
    def update():
        nonlocal inverse
        g = w.grad.clone()
        if old:
            s, y = w - old["w"], g - old["g"]
            sy = s @ y
            if not fixed or sy > 1e-12:
                rho = 1 / sy  # ORIGIN
                left = torch.eye(2) - rho * torch.outer(s, y)
                inverse = left @ inverse @ left.T + rho * torch.outer(s, s)
        old["w"], old["g"] = w.detach().clone(), g
        w.sub_(inverse @ g)

    def step(i):
        w.grad = None
        loss = w.square().sum()
        loss.backward()
        update()
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("div-by-zero", "div", "optimizer", step=0, steps=4, ops=("mul",), also=("optimizer-arithmetic", "zero-times-inf"))
def trust_ratio_of_a_layer_without_gradient(fixed):
    torch.manual_seed(5)
    net = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
    x = drawn(6, 8, 3)

    class Lars:
        def __init__(self, params, lr=0.1):
            self.params, self.lr = list(params), lr

        @torch.no_grad()
        def step(self):
            for p in self.params:
                size = p.grad.norm()
                trust = p.norm() / (size + 1e-8 if fixed else size)  # ORIGIN
                p.add_(p.grad * trust, alpha=-self.lr * 1e-2)

    opt = Lars(net.parameters())

    def step(i):
        net.zero_grad()
        loss = (net["used"](x) + 0.0 * net["idle"](x)).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("pow-negative-base", "pow", "optimizer", step=13, steps=18, also=("optimizer-arithmetic",), ops=("mul",))
def rate_after_the_end_of_its_schedule(fixed):
    torch.manual_seed(6)
    net = nn.Linear(4, 1)
    lr = torch.tensor(0.0)
    x, total = drawn(7, 16, 4), 12

    def polynomial(i):
        left = 1 - torch.tensor(float(i)) / total
        if fixed:
            left = left.clamp_min(0)
        return 0.05 * left**0.9  # ORIGIN

    def step(i):
        nonlocal lr
        net.zero_grad()
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        loss.backward()
        lr = polynomial(i)
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(lr * p.grad)
        return loss

    return net, step


@fault("absorbed-update", "add", "optimizer", step=0, steps=8, ops=("sub", "add_", "sub_", "mul_", "sign", "lerp"), also=("dtype-underflow",))
def signs_too_small_for_bfloat16_weights(fixed):
    """Lion's step of 1e-4 against weights near 1, kept in bfloat16."""
    torch.manual_seed(7)
    kind = torch.float32 if fixed else torch.bfloat16
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    for p in net.parameters():
        nn.init.uniform_(p, 0.5, 1.0)
    net.to(kind)
    x = drawn(8, 16, 4).to(kind)
    momentum = [torch.zeros_like(p) for p in net.parameters()]

    @torch.no_grad()
    def lion(lr=1e-4, b1=0.9, b2=0.99):
        for p, m in zip(net.parameters(), momentum, strict=True):
            p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-lr)  # ORIGIN
            m.mul_(b2).add_(p.grad, alpha=1 - b2)

    def step(i):
        net.zero_grad()
        loss = (net(x).float() - 1).square().mean()
        loss.backward()
        lion()
        return loss

    return net, step


@fault("dtype-underflow", "mul", "backward", step=0, steps=6, ops=("div", "_to_copy", "mean", "sum", "expand", "to", "mse_loss", "pow"), also=("dead-gradient",))
def tiny_head_under_autocast_without_a_scale(fixed):
    """A residual weight of 1e-7 in front of a float16 layer: its gradients are below 6e-8."""
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = drawn(9, 32, 6), drawn(10, 32, 4)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=not fixed):
            out = net(x)  # ALSO
        loss = 1e-7 * F.mse_loss(out.float(), y)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("div-by-zero", "div", step=2, ops=("rsqrt", "mul"), also=("norm-at-zero", "std-of-constant", "zero-times-inf"))
def root_mean_square_of_a_row_that_dropout_emptied(fixed):
    torch.manual_seed(9)
    net, gain = nn.Linear(4, 4, bias=False), nn.Parameter(torch.ones(4))

    def rms_norm(h):
        ms = h.square().mean(-1, keepdim=True)
        return h * torch.rsqrt(ms + 1e-6 if fixed else ms) * gain  # ORIGIN

    def loss(i):
        keep = (drawn(i, 5, 4) > -0.5).float()
        keep[:, 0] = 1.0
        if i == 2:
            keep[4] = 0.0
        return (rms_norm(net(drawn(i + 9, 5, 4)) * keep) - 0.2).square().mean()

    return net, train([*net.parameters(), gain], loss)
