"""Silent faults, losses at their edges, hooks and parametrisations, narrow formats, control and physics."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("div-by-zero", "div", step=0, also=("norm-at-zero", "std-of-constant"))
def weight_standardised_by_a_parametrisation(fixed):
    class Standard(nn.Module):
        def forward(self, w):
            centred = w - w.mean(1, keepdim=True)
            scale = centred.square().mean(1, keepdim=True)
            return centred / (scale + (1e-6 if fixed else 0)).sqrt()  # ORIGIN

    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight[1] = 0.25
    parametrize.register_parametrization(layer, "weight", Standard())
    return layer, train(layer.parameters(), lambda i: (layer(drawn(i, 5, 4)) - 1).square().mean())


@fault("div-by-zero", "div", "backward", step=2, also=("norm-at-zero", "custom-backward"))
def tensor_hook_that_divides_by_the_gradient_length(fixed):
    torch.manual_seed(1)
    body, head = nn.Linear(3, 4), nn.Linear(4, 1)

    def unit(g):
        length = g.norm(dim=-1, keepdim=True)
        return g / (length.clamp_min(1e-12) if fixed else length)  # ORIGIN

    def loss(i):
        h = torch.tanh(body(drawn(i, 5, 3)))
        h.register_hook(unit)
        y = head(h).squeeze(-1)
        wanted = drawn(i + 9, 5) if i != 2 else torch.cat([y.detach()[:1], drawn(i, 4)])
        return (y - wanted).square().mean()

    return nn.ModuleList([body, head]), train([*body.parameters(), *head.parameters()], loss)


@fault("dead-gradient", "sigmoid", "backward", step=0, steps=6, ops=("mul",))
def gate_that_was_initialised_open_beyond_float32(fixed):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(3, 4)
            self.value = nn.Linear(3, 4)
            nn.init.constant_(self.gate.bias, 2.0 if fixed else 200.0)

        def forward(self, x):
            return torch.sigmoid(self.gate(x)) * self.value(x)  # ORIGIN

    torch.manual_seed(2)
    net = nn.Sequential(Gate(), nn.Linear(4, 1))
    return net, train(net.parameters(), lambda i: (net(drawn(i, 6, 3)) - 1).square().mean())


@fault("dead-gradient", "tanh", "backward", step=0, steps=6)
def features_that_were_never_scaled(fixed):
    torch.manual_seed(3)
    body, head = nn.Linear(2, 6), nn.Linear(6, 1)
    net = nn.Sequential(body, nn.Tanh(), head)

    def loss(i):
        x = drawn(i, 6, 2).sign() * 90000 + drawn(i, 6, 2)
        if fixed:
            x = x / 90000
        hidden = torch.tanh(body(x))  # ORIGIN
        return (head(hidden) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "clamp", "backward", step=0, steps=6, ops=("hardtanh",))
def log_variance_clamped_below_its_start(fixed):
    class Predictor(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.spread = nn.Linear(3, 1), nn.Linear(3, 1)
            nn.init.constant_(self.spread.bias, 0.0 if fixed else -14.0)

        def forward(self, x):
            return self.mean(x), self.spread(x).clamp(-10, 2)  # ORIGIN

    torch.manual_seed(4)
    net = Predictor()

    def loss(i):
        mean, log_var = net(drawn(i, 6, 3))
        return (log_var + (mean - 1).square() * torch.exp(-log_var)).mean() * 1e-3

    return net, train(net.parameters(), loss, lr=1e-5)


@fault("dead-gradient", "round", "backward", step=0, steps=5, ops=("floor", "trunc"))
def durations_rounded_to_frames(fixed):
    class Aligner(nn.Module):
        def __init__(self):
            super().__init__()
            self.duration, self.out = nn.Linear(3, 1), nn.Linear(1, 2)

        def forward(self, x):
            frames = F.softplus(self.duration(x)) * 5
            if not fixed:
                frames = torch.floor(frames)  # ORIGIN
            return self.out(frames.cumsum(0))

    torch.manual_seed(5)
    net = Aligner()
    return net, train(net.parameters(), lambda i: (net(drawn(i, 4, 3)) - 9).square().mean(), lr=1e-4)


@fault("dead-gradient", "mul", "backward", step=0, steps=6, ops=("where", "masked_fill", "custom"), also=("custom-backward",))
def own_spike_whose_window_is_in_millivolts(fixed):
    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v, threshold):
            ctx.save_for_backward(v - threshold)
            return (v > threshold).float()

        @staticmethod
        def backward(ctx, g):
            (over,) = ctx.saved_tensors
            width = 1.0 if fixed else 1e-3
            window = torch.clamp(1 - over.abs() / width, min=0)
            return g * window, None  # ALSO

    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))

    def loss(i):
        spikes = Spike.apply(net[0](torch.tensor([[1.0, -1, 1], [-1, 1, 1]]) * 3), 0.0)  # ORIGIN
        return (net[1](spikes) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "exp", step=0, steps=6, ops=("mul", "_softmax"), also=("dtype-underflow",))
def gaussian_splats_that_miss_the_picture(fixed):
    class Splats(nn.Module):
        def __init__(self):
            super().__init__()
            self.centre = nn.Parameter(torch.rand(4, 2, generator=torch.Generator().manual_seed(7)))
            self.colour = nn.Parameter(torch.rand(4, generator=torch.Generator().manual_seed(8)))

        def forward(self, grid):
            squared = (grid[:, None] - self.centre).square().sum(-1)
            weight = torch.exp(-squared / (2 * 0.5**2))  # ORIGIN
            return weight @ self.colour

    net = Splats()
    axis = torch.arange(4.0) if fixed else torch.arange(40.0, 44.0)
    grid = torch.cartesian_prod(axis, axis)
    return net, train(net.parameters(), lambda i: (net(grid) - 0.5).square().mean())


@fault("absorbed-update", "add_", "optimizer", step=0, steps=8, ops=("sub_", "add", "sub", "copy_", "_foreach_add_"))
def norm_gains_in_bfloat16_at_a_fine_tuning_rate(fixed):
    torch.manual_seed(9)
    kept = torch.float32 if fixed else torch.bfloat16
    gain = nn.Parameter(torch.ones(6, dtype=kept))
    x = drawn(3, 8, 6)

    def step(i):
        gain.grad = None
        loss = (F.rms_norm(x, (6,)) * gain.float() - 1.5).square().mean()
        loss.backward()
        with torch.no_grad():
            gain.add_(gain.grad, alpha=-1e-3)  # ORIGIN
        return loss

    step.parameters = {"gain": gain}
    return None, step


@fault("dtype-underflow", "mul", step=0, steps=5, ops=("div", "_to_copy", "prod", "cumprod"), also=("dead-gradient",))
def likelihood_of_frames_multiplied_in_half(fixed):
    class Score(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 4)

        def forward(self, x):
            p = torch.softmax(self.net(x), -1)[..., 0]
            if fixed:
                return p.log().sum(-1)
            p = p.half()
            total = p[:, 0]
            for t in range(1, p.shape[1]):
                total = total * p[:, t]  # ORIGIN
            return (total.float() + 1e-30).log()

    torch.manual_seed(10)
    net = Score()
    return net, train(net.parameters(), lambda i: -net(drawn(i, 2, 20, 3)).mean())


@fault("log-of-negative", "log", step=2, also=("log-of-zero",))
def volume_of_a_planar_flow(fixed):
    class Planar(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.w = nn.Parameter(torch.tensor([0.3, 0.1])), nn.Parameter(torch.tensor([1.0, -1]))

        def forward(self, z):
            a = torch.tanh(z @ self.w)
            change = 1 + (1 - a.square()) * (self.u @ self.w)
            return z + self.u * a[:, None], torch.log(change.abs() + 1e-3 if fixed else change)  # ORIGIN

    net = Planar()

    def step(i):
        net.zero_grad()
        z, volume = net(drawn(1, 6, 2) * 0.1)
        loss = z.square().sum(-1).mean() / 2 - volume.mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 1e-3 * p.grad
            if i == 1:
                net.u.copy_(torch.tensor([-2.0, 1.0]))
        return loss

    return net, step


@fault("sqrt-of-negative", "sqrt", step=1)
def range_of_a_variance_by_moments(fixed):
    """Large mean and small spread: the difference of squares is below 0."""
    net = nn.Linear(1, 1)

    def spread(x):
        variance = (x * x).mean(0) - x.mean(0) ** 2
        return torch.sqrt(variance.clamp_min(1e-6) if fixed else variance)  # ORIGIN

    def loss(i):
        x = drawn(i, 7, 1) if i != 1 else torch.full((7, 1), 4097.3)
        return spread(net(x)).sum() if i != 1 else (spread(x + 0 * net(x)) * net(x)).sum()

    return net, train(net.parameters(), loss)


@fault("inverse-function-domain", "acos", step=2, ops=("acosh",), also=("inverse-function-at-edge",))
def angle_of_normals_that_are_almost_unit(fixed):
    net = nn.Linear(3, 3)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3))
        net.bias.zero_()

    def angle(a, b):
        cosine = (a * b).sum(-1)
        return torch.acos(cosine.clamp(-0.999, 0.999) if fixed else cosine)  # ORIGIN

    def loss(i):
        a = F.normalize(drawn(i, 5, 3), dim=-1) * (0.9 if i != 2 else 1.01)
        target = F.normalize(drawn(i + 5, 5, 3), dim=-1) * 0.9 if i != 2 else a
        return angle(net(a), target).mean()

    return net, train(net.parameters(), loss, lr=0.0)


@fault("div-by-zero", "div", step=1)
def heading_of_a_robot_that_rests(fixed):
    net = nn.Linear(2, 2, bias=False)

    def heading(v):
        if fixed:
            still = v.square().sum(-1, keepdim=True) == 0
            v = torch.where(still, torch.tensor([1.0, 0.0]), v)
        return torch.atan(v[:, 1] / v[:, 0])  # ORIGIN

    def loss(i):
        moves = drawn(i, 4, 2)
        if i == 1:
            moves[2] = 0
        return (1 - torch.cos(heading(net(moves)) - 0.3)).mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=2, also=("dtype-overflow",))
def softplus_of_a_large_spike_rate(fixed):
    class Rate(nn.Module):
        def __init__(self):
            super().__init__()
            self.filter = nn.Linear(4, 1)

        def softplus(self, x):
            return F.softplus(x) if fixed else torch.log(1 + torch.exp(x))  # ORIGIN

        def forward(self, x, count):
            rate = self.softplus(self.filter(x).squeeze(-1)) + 1e-6
            return (rate - count * torch.log(rate)).mean()

    torch.manual_seed(11)
    net = Rate()

    def loss(i):
        x = drawn(i, 6, 4)
        if i == 2:
            x[1] = net.filter.weight.detach()[0].sign() * 200
        return net(x, torch.ones(6))

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("exploding-gradient", "mm", step=0, ops=("addmm", "mul", "matmul", "mv"), also=("dtype-overflow",))
def impulse_response_of_two_hundred_steps(fixed):
    class Response(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.a = nn.Parameter(drawn(12, n, n) * (0.2 if fixed else 2.0))
            self.b = nn.Parameter(drawn(13, n, 1))

        def forward(self, length):
            state, out = self.b, []
            for _ in range(length):
                state = self.a @ state  # ORIGIN
                out.append(state.sum())
            return torch.stack(out)

    net = Response(4)
    return net, train(net.parameters(), lambda i: (net(200) - 1).abs().mean(), lr=1e-6)


@fault("learning-rate", "sub_", "optimizer", step=4, steps=7, ops=("mul", "pow", "mse_loss", "addmm", "add_", "mm", "sub", "square", "sum", "mean"), also=("exploding-gradient", "dtype-overflow"))
def quadratic_with_a_step_past_its_curvature(fixed):
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    scale = torch.tensor([1.0, 3e5])

    def step(i):
        weight.grad = None
        loss = (scale * weight * weight).sum()  # ORIGIN
        loss.backward()
        with torch.no_grad():
            weight.sub_((1e-7 if fixed else 0.1) * weight.grad)  # ALSO
        return loss

    step.parameters = {"weight": weight}
    return None, step


@fault("empty-reduction", "mean", step=1, ops=("div", "mse_loss"), also=("div-by-zero",))
def physics_loss_without_boundary_points(fixed):
    torch.manual_seed(13)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def boundary(x):
        edge = x[(x < 0.1).squeeze(-1)]
        if fixed and not len(edge):
            return x.sum() * 0
        return F.mse_loss(net(edge), torch.zeros(len(edge), 1))  # ORIGIN

    def residual(x):
        x = x.requires_grad_(True)
        u = net(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        return (du + u).square().mean()

    def loss(i):
        x = torch.linspace(0.0 if i != 1 else 0.3, 1, 8)[:, None]
        return residual(x) + boundary(x.detach())

    return net, train(net.parameters(), loss)


@fault("infeasible-likelihood", "log", step=2, ops=("log", "where", "full_like", "sub", "neg"), also=("log-of-zero",))
def uniform_belief_that_excludes_the_observation(fixed):
    class Belief(nn.Module):
        def __init__(self):
            super().__init__()
            self.width = nn.Parameter(torch.tensor(1.0))

        def forward(self, y):
            width = F.softplus(self.width)
            inside = (y.abs() < width).float()
            density = inside / (2 * width)
            if fixed:
                density = density + 1e-3
            return density.log()  # ORIGIN

    net = Belief()
    return net, train(net.parameters(), lambda i: -net(torch.tensor([0.1, 0.4, -0.3 if i != 2 else 3.0])).mean())


@fault("where-grad-trap", "div", "backward", step=1, ops=("mul", "reciprocal"), also=("div-by-zero", "zero-times-inf"))
def sinc_filter_with_its_centre_replaced(fixed):
    class Sinc(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.cut = nn.Parameter(torch.tensor(0.3))
            self.register_buffer("t", torch.arange(-n, n + 1).float())

        def forward(self, shift):
            x = (self.t + shift) * self.cut * math.pi
            safe = torch.where(x == 0, 1.0, x) if fixed else x
            return torch.where(x == 0, torch.ones_like(x), torch.sin(safe) / safe)  # ORIGIN

    net = Sinc(3)
    return net, train(net.parameters(), lambda i: (net(0.5 if i != 1 else 0.0) - 0.1).square().mean())


@fault("where-grad-trap", "pow", "backward", step=0, ops=("mul",), also=("pow-negative-base", "pow-fraction-at-zero", "zero-times-inf", "where-grad-trap"))
def companding_of_colours_with_a_linear_foot(fixed):
    net = nn.Linear(3, 3)
    with torch.no_grad():
        net.bias.fill_(0.2)
        net.weight.mul_(1.0)

    def compand(c):
        bent = (c.clamp_min(0.0031308) if fixed else c).pow(1 / 2.4)  # ORIGIN
        return torch.where(c <= 0.0031308, 12.92 * c, 1.055 * bent - 0.055)

    def loss(i):
        c = net(drawn(i, 6, 3))
        return (compand(c - c.detach().min() * 1.0) - 0.5).square().mean()

    return net, train(net.parameters(), loss)


@fault("repair-forward-only", "div", "backward", step=1, ops=("mul", "reciprocal", "log"), also=("div-by-zero", "zero-times-inf"))
def ratio_of_speeds_repaired_in_place(fixed):
    net = nn.Linear(2, 2)

    def ratio(a, b):
        safe = torch.where(b == 0, 1.0, b) if fixed else b
        r = a / safe  # ORIGIN
        r = torch.nan_to_num(r, nan=0.0, posinf=0.0, neginf=0.0)
        return r * (b != 0)

    def loss(i):
        out = net(drawn(i, 4, 2))
        mask = torch.ones(4)
        if i == 1:
            mask[1] = 0
        return ratio(out[:, 0] * mask, out[:, 1] * mask).tanh().square().mean()

    return net, train(net.parameters(), loss)


@fault("poisoned-buffer", "native_batch_norm", "init", step=0, ops=("batch_norm", "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "native_batch_norm", "cudnn_batch_norm"))
def running_statistics_of_a_broken_checkpoint(fixed):
    torch.manual_seed(14)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    state = net.state_dict()
    if not fixed:
        state["1.running_var"][2] = math.inf
        state["1.running_mean"][2] = math.nan
    net.load_state_dict(state)
    net[1].eval()

    def loss(i):
        h = net[0](drawn(i, 5, 3))
        h = net[1](h)  # ORIGIN
        return net[2](h).square().mean()

    return net, train(net.parameters(), loss)


@fault("scaler-misuse", "add_", "optimizer", step=2, steps=4, ops=("div", "copy_", "_foreach_add_", "sub_"), also=("dtype-overflow", "loss-scale-overflow"))
def scale_that_is_never_taken_back(fixed):
    torch.manual_seed(15)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    def step(i):
        opt.zero_grad()
        loss = (net(drawn(i, 5, 3)) - 1).square().mean()
        scaler.scale(loss).backward()  # ALSO
        if fixed:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()  # ORIGIN
        return loss

    return net, step


@fault("eps-underflow", "div", step=1, also=("div-by-zero", "norm-at-zero"))
def cosine_of_an_empty_vector_in_half(fixed):
    def cosine(a, b, eps=1e-8):
        dot = (a * b).sum(-1)
        size = a.square().sum(-1).sqrt() * b.square().sum(-1).sqrt()
        return dot / (size + eps)  # ORIGIN

    net = nn.Linear(3, 3)

    def loss(i):
        words = drawn(i, 4, 3)
        if i == 1:
            words[1] = 0
        kept = torch.float32 if fixed else torch.float16
        with torch.no_grad():
            weight = cosine(words.to(kept), drawn(9, 3).to(kept)).float()
        return (weight * net(words).sum(-1)).mean()

    return net, train(net.parameters(), loss)


@fault("zero-times-inf", "mul", step=2, ops=("reciprocal", "div"), also=("div-by-zero",))
def inverse_variance_of_an_absent_sensor(fixed):
    net = nn.Linear(2, 1)

    def fuse(values, variance, present):
        precision = 1 / variance  # ALSO
        weight = torch.where(present, precision, 0.0) if fixed else precision * present  # ORIGIN
        return (weight * values).sum(-1) / weight.sum(-1)

    def loss(i):
        variance = torch.tensor([0.5, 1.0, 2.0])
        present = torch.tensor([True, True, True])
        if i == 2:
            variance, present = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([True, False, True])
        return (fuse(net(drawn(i, 4, 3, 2)).squeeze(-1), variance, present) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("degenerate-matrix", "linalg_inv_ex", step=2, ops=("linalg_inv", "linalg_solve_ex", "linalg_lu_factor_ex"), also=("div-by-zero",))
def gain_of_a_filter_without_noise(fixed):
    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise = nn.Parameter(torch.tensor(0.1))

        def forward(self, prior, h):
            noise = F.softplus(self.noise) if fixed else self.noise.clamp(min=0)
            s = h @ prior @ h.T + noise * torch.eye(2)
            inverse, _ = torch.linalg.inv_ex(s)  # ORIGIN
            return prior @ h.T @ inverse

    net = Filter()

    def step(i):
        net.zero_grad()
        h = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        loss = (net(torch.eye(2), h) - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            net.noise -= 1e-3 * net.noise.grad.clamp(-1, 1)
            if i == 1:
                net.noise.fill_(-0.1)
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=0, ops=("addcdiv_",), also=("div-by-zero", "optimizer-eps-underflow"))
def belief_in_a_gradient_that_never_surprises(fixed):
    class Belief(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if not state:
                        state["m"], state["s"] = p.grad.clone(), torch.zeros_like(p)
                    state["m"].lerp_(p.grad, 0.1)
                    state["s"].lerp_((p.grad - state["m"]).square(), 0.01)
                    p.addcdiv_(state["m"], state["s"].sqrt() + group["eps"], value=-group["lr"])  # ORIGIN

    torch.manual_seed(16)
    net = nn.Linear(3, 1)
    opt = Belief(net.parameters(), {"lr": 1e-3, "eps": 1e-8 if fixed else 0.0})

    def step(i):
        opt.zero_grad()
        loss = (net(drawn(i, 5, 3)) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("div-by-zero", "div", step=1, also=("empty-reduction",))
def experts_weighted_after_dropping_the_unreliable(fixed):
    torch.manual_seed(17)
    experts, router = nn.ModuleList(nn.Linear(3, 2) for _ in range(3)), nn.Linear(3, 3)

    def mix(x, trusted):
        share = torch.softmax(router(x), -1) * trusted
        total = share.sum(-1, keepdim=True)
        share = share / (total.clamp_min(1e-6) if fixed else total)  # ORIGIN
        return torch.einsum("be,ebd->bd", share, torch.stack([e(x) for e in experts]))

    def loss(i):
        trusted = torch.ones(4, 3)
        if i == 1:
            trusted[2] = 0
        return (mix(drawn(i, 4, 3), trusted) - 1).square().mean()

    return nn.ModuleList([experts, router]), train([*experts.parameters(), *router.parameters()], loss)


@fault("custom-backward", "reciprocal", "backward", step=2, ops=("div", "mul", "pow"), also=("div-by-zero",))
def own_geometric_mean(fixed):
    class Geometric(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.prod(-1).pow(1 / x.shape[-1])
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            share = (y / x.shape[-1])[..., None]
            return g[..., None] * share / (x.clamp_min(1e-6) if fixed else x)  # ORIGIN

    net = nn.Linear(3, 3)

    def loss(i):
        present = (drawn(i, 4, 3) > (-9 if i != 2 else 0.5)).float()
        rates = F.softplus(net(drawn(i, 4, 3))) * present
        return (Geometric.apply(rates) - 1).square().mean()

    return net, train(net.parameters(), loss)
