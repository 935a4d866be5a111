"""Optimizers and derivatives written by hand, averages, narrow formats, and faults that make no noise."""

import math

import torch
from programs import fault, healthy, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("optimizer-arithmetic", "div", "optimizer", step=0, also=("div-by-zero",))
def second_order_clip_without_curvature(fixed):
    class Clipped(torch.optim.Optimizer):
        """Momentum over an estimate of the diagonal Hessian, clipped."""

        def __init__(self, params, lr=1e-2, rho=0.04, eps=1e-12 if fixed else 0.0):
            super().__init__(params, {"lr": lr, "rho": rho, "eps": eps})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if not state:
                        state["m"], state["h"] = torch.zeros_like(p), torch.zeros_like(p)
                    state["m"].lerp_(p.grad, 0.1)
                    state["h"].lerp_(p.grad.square(), 0.01)
                    ratio = state["m"] / (group["rho"] * state["h"] + group["eps"])  # ORIGIN
                    p.add_(ratio.clamp(-1, 1), alpha=-group["lr"])

    net = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 1))
    words = torch.tensor([0, 1, 2, 3])
    opt = Clipped(net.parameters())

    def step(i):
        opt.zero_grad()
        loss = net(words).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=0, also=("div-by-zero", "norm-at-zero"))
def orthogonal_update_of_a_silent_matrix(fixed):
    def orthogonal(g, n=5):
        size = g.norm()
        x = g / (size + 1e-7 if fixed else size)  # ORIGIN
        for _ in range(n):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x

    class Orthogonal(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    update = orthogonal(p.grad) if p.dim() == 2 else p.grad
                    p.sub_(update, alpha=group["lr"])

    torch.manual_seed(0)
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    nn.init.zeros_(last.weight)
    net = nn.Sequential(first, nn.Tanh(), last)
    opt = Orthogonal(net.parameters(), {"lr": 0.02})

    def step(i):
        opt.zero_grad()
        loss = (net(drawn(i, 5, 3)) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=2, also=("div-by-zero",))
def step_length_by_two_points(fixed):
    """Barzilai and Borwein; the gradient is clipped, so it stops changing."""
    net = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[40.0, -30.0, 20.0]]))
    old = {}

    def length(p, g):
        if "p" not in old:
            return torch.tensor(1e-3)
        s, y = p - old["p"], g - old["g"]
        curvature = (s * y).sum()
        if fixed:
            curvature = curvature.clamp_min(1e-2)
        return ((s * s).sum() / curvature).clamp(1e-6, 0.1)  # ORIGIN

    def step(i):
        net.zero_grad()
        loss = (net.weight - 1).abs().sum() if i >= 1 else (net.weight - 1).square().sum()
        loss.backward()
        with torch.no_grad():
            rate = length(net.weight, net.weight.grad) if i != 1 else torch.tensor(0.0)
            old.update(p=net.weight.clone(), g=net.weight.grad.clone())
            net.weight -= rate * net.weight.grad
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=1, also=("div-by-zero",))
def length_of_a_polyak_step_at_the_bottom(fixed):
    net = nn.Linear(2, 1)

    class Polyak:
        def __init__(self, params, floor):
            self.params, self.floor = list(params), floor

        @torch.no_grad()
        def step(self, loss):
            squared = sum(p.grad.square().sum() for p in self.params)
            rate = loss.detach() / (squared + self.floor)  # ORIGIN
            for p in self.params:
                p.sub_(rate * p.grad)

    opt = Polyak(net.parameters(), 1e-8 if fixed else 0.0)

    def step(i):
        net.zero_grad()
        x = drawn(i, 6, 2)
        loss = F.relu(1 - net(x) if i == 0 else net(x) * 0 - 1).mean()
        loss.backward()
        opt.step(loss)
        return loss

    return net, step


@fault("pow-negative-base", "pow", "optimizer", step=0, steps=1, also=("optimizer-arithmetic", "div-by-zero", "pow-fraction-at-zero"))
def inverse_root_of_a_preconditioner(fixed):
    def inverse_root(matrix, order=4):
        values, vectors = torch.linalg.eigh(matrix)
        values = values - 1e-4
        if fixed:
            values = values.clamp_min(1e-4)
        return vectors @ torch.diag(values.pow(-1 / order)) @ vectors.T  # ORIGIN

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    left = {p: torch.zeros(len(p), len(p)) for p in net.parameters()}

    def step(i):
        net.zero_grad()
        loss = net(drawn(i, 2, 3)).square().mean()
        loss.backward()
        with torch.no_grad():
            for p, matrix in left.items():
                g = p.grad.reshape(len(p), -1)
                matrix += g @ g.T
                p -= 1e-2 * (inverse_root(matrix) @ g).reshape(p.shape)
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=0, also=("div-by-zero",))
def rate_found_from_the_distance_gone(fixed):
    net = nn.Linear(3, 2)
    origin = [p.detach().clone() for p in net.parameters()]

    class Distance:
        """The rate is the distance from the start over the root of the summed squares."""

        def __init__(self, params, start=1e-3):
            self.params, self.start = list(params), start
            self.total = torch.zeros(())

        @torch.no_grad()
        def step(self):
            gone = max((p - q).abs().max() for p, q in zip(self.params, origin, strict=True))
            rate = max(gone, torch.tensor(self.start)) / (self.total + (1e-4 if fixed else 0)).sqrt()  # ORIGIN
            self.total += sum(p.grad.square().sum() for p in self.params)
            for p in self.params:
                p.sub_(rate * p.grad)

    opt = Distance(net.parameters())

    def step(i):
        net.zero_grad()
        loss = (net(drawn(i, 4, 3)) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("exp-overflow", "exp", step=3, ops=("exp",), also=("dtype-overflow",))
def assignment_of_prototypes_at_a_sharp_temperature(fixed):
    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.prototypes = nn.Linear(4, 4), nn.Linear(4, 3, bias=False)

        def forward(self, x):
            return self.prototypes(self.body(x))

    @torch.no_grad()
    def codes(scores, rounds=3):
        if fixed:
            scores = scores - scores.max()
        q = torch.exp(scores / 0.05).T  # ORIGIN
        q /= q.sum()
        for _ in range(rounds):
            q = q / q.sum(1, keepdim=True).clamp_min(1e-12) / q.shape[0]
            q = q / q.sum(0, keepdim=True).clamp_min(1e-12) / q.shape[1]
        return (q * q.shape[1]).T

    torch.manual_seed(2)
    net = Student()

    def loss(i):
        scores = net(drawn(i, 6, 4) * (60 if i == 3 else 1))
        return -(codes(scores) * torch.log_softmax(scores / 0.1, -1)).sum(-1).mean()

    return net, train(net.parameters(), loss)


@fault("absorbed-update", "lerp_", "optimizer", step=0, steps=8, ops=("lerp", "add_", "copy_"))
def teacher_in_bfloat16_by_interpolation(fixed):
    torch.manual_seed(3)
    student = nn.Linear(4, 2)
    kept = torch.float32 if fixed else torch.bfloat16
    teacher = {name: p.detach().to(kept) for name, p in student.named_parameters()}
    opt = torch.optim.SGD(student.parameters(), lr=1e-2)

    @torch.no_grad()
    def follow(rate=0.001):
        for name, p in student.named_parameters():
            teacher[name].lerp_(p.to(kept), rate)  # ORIGIN

    def step(i):
        opt.zero_grad()
        x = drawn(i, 8, 4)
        target = F.linear(x, teacher["weight"].float(), teacher["bias"].float())
        loss = (student(x + 0.1) - target - 1).square().mean()
        loss.backward()
        opt.step()
        follow()
        return loss

    return student, step


@fault("custom-backward", "div", "backward", step=2, ops=("mul", "reciprocal"), also=("div-by-zero",))
def own_inverse_tangent_at_the_end(fixed):
    class Squash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.tanh(x)
            ctx.save_for_backward(y)
            return 0.5 * (torch.log1p(y * 0.999) - torch.log1p(-y * 0.999))

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            rest = 1 - y.square()
            if fixed:
                rest = rest.clamp_min(1e-6)
            return grad * y.abs() / rest  # ORIGIN

    net = nn.Linear(3, 2)

    def loss(i):
        return Squash.apply(net(drawn(i, 4, 3)) * (100 if i == 2 else 1)).square().mean()

    return net, train(net.parameters(), loss)


@fault("custom-backward", "exp", "backward", step=1, ops=("mul",), also=("exp-overflow",))
def own_swish_whose_derivative_overflows(fixed):
    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            if fixed:
                s = torch.sigmoid(x)
                return grad * s * (1 + x * (1 - s))
            e = torch.exp(-x)  # ORIGIN
            return grad * (1 + e + x * e) / (1 + e) ** 2  # ALSO

    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))

    def loss(i):
        x = net[0](drawn(i, 4, 3))
        return net[1](Swish.apply(x * (400 if i == 1 else 1))).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "mul", "backward", step=0, steps=6, ops=("zeros_like", "div", "sign", "custom", "Quantise"), also=("custom-backward",))
def own_quantiser_that_passes_nothing(fixed):
    """The estimator passes gradients inside (lower, upper), and somebody swapped the two."""

    class Quantise(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, lower, upper):
            ctx.save_for_backward(x)
            ctx.bounds = (lower, upper) if fixed else (upper, lower)
            return torch.round(x * 4).clamp(4 * lower, 4 * upper) / 4

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            lower, upper = ctx.bounds
            inside = (x > lower) & (x < upper)
            return grad * inside, None, None  # ALSO

    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))

    def loss(i):
        h = Quantise.apply(net[0](drawn(i, 6, 3)), -2.0, 2.0)  # ORIGIN
        return (net[1](h) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "_softmax", "backward", step=0, steps=6, ops=("softmax",), also=("dtype-underflow",))
def soft_position_at_a_temperature_of_thousands(fixed):
    class Keypoint(nn.Module):
        def __init__(self):
            super().__init__()
            self.heat = nn.Conv1d(1, 1, 3, padding=1)
            self.beta = 1.0 if fixed else 1e5

        def forward(self, x):
            heat = self.heat(x).flatten(1)
            chances = torch.softmax(self.beta * heat, -1)  # ORIGIN
            return (chances * torch.arange(heat.shape[1])).sum(-1)

    torch.manual_seed(5)
    net = Keypoint()
    x = drawn(1, 3, 1, 7)
    return net, train(net.parameters(), lambda i: (net(x) - 3).square().mean())


@fault("dead-gradient", "relu", "backward", step=0, steps=6, ops=("threshold", "clamp_min", "clamp", "maximum"))
def histogram_whose_bins_miss_the_values(fixed):
    class Histogram(nn.Module):
        def __init__(self, low, high, n):
            super().__init__()
            self.register_buffer("centres", torch.linspace(low, high, n))
            self.width = (high - low) / (n - 1)

        def forward(self, x):
            distance = (x[:, None] - self.centres).abs() / self.width
            return F.relu(1 - distance).mean(0)  # ORIGIN

    torch.manual_seed(6)
    net = nn.Linear(2, 1)
    histogram = Histogram(*((-4.0, 4.0) if fixed else (100.0, 200.0)), 5)
    target = torch.full((5,), 0.2)

    def loss(i):
        return (histogram(net(drawn(i, 8, 2)).squeeze(-1)) - target).square().sum()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "minimum", "backward", step=0, steps=6, ops=("clamp", "clamp_max", "where"))
def loss_that_is_always_above_its_cap(fixed):
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def robust(error, cap):
        return torch.minimum(error, torch.full_like(error, cap)).mean()  # ORIGIN

    def loss(i):
        x = drawn(i, 8, 3)
        price = 5000 + 100 * x.sum(-1, keepdim=True)
        return robust((net(x) - price).square(), 1e9 if fixed else 10.0)

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "hardtanh", "backward", step=0, steps=6, ops=("clamp", "relu6"))
def regression_through_a_ceiling_of_six(fixed):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)
            self.act = nn.ReLU() if fixed else nn.ReLU6()

        def forward(self, x):
            return self.last(self.act(self.first(x)))  # ORIGIN

    torch.manual_seed(8)
    net = Block()
    with torch.no_grad():
        net.first.bias.fill_(9.0)
    return net, train(net.parameters(), lambda i: (net(drawn(i, 8, 3)) - 1).square().mean(), lr=1e-4)


@fault("dtype-overflow", "cumsum", step=1, ops=("_to_copy",))
def running_total_of_rewards_in_half(fixed):
    net = nn.Linear(3, 1)

    def returns(rewards):
        if not fixed:
            rewards = rewards.half()
        backwards = torch.cumsum(rewards.flip(0), 0)  # ORIGIN
        return backwards.flip(0).float()

    def loss(i):
        rewards = torch.full((300,), 400.0 if i == 1 else 1.0)
        values = net(drawn(i, 300, 3)).squeeze(-1)
        return F.smooth_l1_loss(values, returns(rewards) / 1000)

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "exp", step=1, also=("exp-overflow",))
def partition_by_hand_under_autocast(fixed):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 5)

        def forward(self, x, y):
            with torch.autocast("cpu", torch.float16):
                logits = self.out(x)
                if fixed:
                    logits = logits.float()
                    return (torch.logsumexp(logits, -1) - logits.gather(-1, y[:, None]).squeeze(-1)).mean()
                partition = logits.exp().sum(-1)  # ORIGIN
            return (partition.float().log() - logits.float().gather(-1, y[:, None]).squeeze(-1)).mean()

    torch.manual_seed(9)
    net = Head()
    y = torch.tensor([0, 1, 2])

    def loss(i):
        x = torch.sign(net.out.weight.detach()[:3]) * 2
        return net(x * (6 if i == 1 else 1), y)

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "_to_copy", step=2, ops=("to", "copy_", "div", "mul"))
def eight_bits_with_the_scale_of_the_last_batch(fixed):
    class Delayed(nn.Module):
        """Values are divided by the largest of the previous batch."""

        def __init__(self, n_in, n_out):
            super().__init__()
            self.weight = nn.Parameter(drawn(2, n_out, n_in) / 2)
            self.register_buffer("largest", torch.tensor(3.0))

        def cast(self, x):
            scaled = x / self.largest * 28672
            if fixed:
                scaled = scaled.clamp(-57344, 57344)
            narrow = scaled.to(torch.float8_e5m2)  # ORIGIN
            return narrow.float() * self.largest / 28672

        def forward(self, x):
            out = self.cast(x) @ self.weight.T
            self.largest.copy_(x.detach().abs().max())
            return out

    net = Delayed(4, 2)

    def loss(i):
        return net(drawn(i, 5, 4) * (30 if i == 2 else 1)).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log2", step=1, ops=("div",), also=("div-by-zero",))
def powers_of_two_for_a_weight_of_zero(fixed):
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(drawn(3, 2, 4))

        def quantised(self):
            w = self.weight
            size = w.abs().clamp_min(1e-4) if fixed else w.abs()
            exponent = torch.log2(size)  # ORIGIN
            power = torch.exp2(exponent.round())
            return w.sign() * power + (w / power - w.detach() / power.detach())  # ALSO

        def forward(self, x):
            return x @ self.quantised().T

    net = Shift()

    def step(i):
        net.zero_grad()
        loss = net(drawn(i, 5, 4)).square().mean()
        loss.backward()
        with torch.no_grad():
            net.weight -= 1e-3 * net.weight.grad
            net.weight[0, 1] = 0.0  # pruned
        return loss

    return net, step


@fault("eps-underflow", "div", step=1, also=("div-by-zero",))
def epsilon_added_before_the_cast(fixed):
    class Scale(nn.Module):
        def __init__(self, n, eps=1e-12):
            super().__init__()
            self.gain, self.eps = nn.Parameter(torch.ones(n)), eps

        def forward(self, x):
            kept = torch.float32 if fixed else torch.bfloat16
            size = x.to(kept).square().mean(-1, keepdim=True).to(torch.float32 if fixed else torch.float16) + self.eps
            return self.gain * (x.to(size.dtype) / size.sqrt()).float()  # ORIGIN

    net = nn.Sequential(Scale(4), nn.Linear(4, 1))

    def loss(i):
        x = drawn(i, 5, 4)
        if i == 1:
            x[2] = 0
        return net(x).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "mul", "forward", step=0, steps=6, ops=("item", "_local_scalar_dense", "exp"))
def scale_that_was_read_for_the_log(fixed):
    torch.manual_seed(41)
    net = nn.ModuleDict({"image": nn.Linear(6, 4), "text": nn.Linear(5, 4)})
    net.register_parameter("log_scale", nn.Parameter(torch.tensor(1.3)))
    log = {}

    def loss(i):
        scale = net.log_scale.exp()
        log["scale"] = scale.item()
        if not fixed:
            scale = log["scale"]
        image = F.normalize(net["image"](drawn(i, 6, 6)), dim=1)
        text = F.normalize(net["text"](drawn(i, 6, 5)), dim=1)
        logits = scale * image @ text.T  # ORIGIN
        return F.cross_entropy(logits, torch.arange(6))

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "div", "forward", step=0, steps=6, ops=("item", "_local_scalar_dense", "mul"))
def noise_level_through_the_math_module(fixed):
    torch.manual_seed(42)
    net = nn.Linear(3, 1)
    net.register_parameter("log_sigma", nn.Parameter(torch.tensor(0.37)))

    def loss(i):
        x = drawn(i, 8, 3)
        sigma = net.log_sigma.exp() if fixed else math.exp(net.log_sigma.item())
        z = (net(x).squeeze(-1) - x.sum(1)) / sigma  # ORIGIN
        return (0.5 * z.square()).mean()

    return net, train(net.parameters(), loss)


@healthy("a learned coefficient weighs one loss as a number, and has a loss of its own")
def entropy_coefficient_with_its_own_loss(fixed):
    torch.manual_seed(43)
    net = nn.ModuleDict({"policy": nn.Linear(4, 3)})
    net.register_parameter("log_alpha", nn.Parameter(torch.tensor(-1.1)))

    def loss(i):
        log_p = F.log_softmax(net["policy"](drawn(i, 8, 4)), -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        alpha = net.log_alpha.exp().item()
        actor = (log_p[:, 0] - alpha * entropy).mean()
        return actor + net.log_alpha * (entropy.detach() - 0.5).mean()

    return net, train(net.parameters(), loss)


@healthy("a parameter of the next phase is logged, and a number of the same size is written down")
def head_of_the_next_phase_is_logged(fixed):
    torch.manual_seed(44)
    net = nn.Linear(4, 2)
    net.register_parameter("gate", nn.Parameter(torch.tensor(0.25)))
    log = []

    def loss(i):
        log.append(net.gate.item())
        return (net(drawn(i, 8, 4)) * 0.25).square().mean() + 0.5 * net.weight.square().mean()

    return net, train(net.parameters(), loss)
