"""What is lost in silence, functions at their poles, births while a program is built; and calm ones beside them."""


import numpy as np
import torch
from programs import fault, healthy, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("dead-gradient", "_softmax", "backward", step=0, steps=6, ops=("softmax", "div", "mul", "mm", "addmm", "matmul"))
def choice_at_a_temperature_of_nearly_nothing(fixed):
    """The weights are exactly one-hot, and their derivative p (1 - p) is 0."""
    torch.manual_seed(0)
    router, values = nn.Linear(4, 3), nn.Parameter(drawn(1, 3, 2))
    x, y = drawn(2, 10, 4), drawn(3, 10, 2)

    def loss(i):
        p = torch.softmax(router(x) / (1.0 if fixed else 1e-5), -1)  # ORIGIN
        return F.mse_loss(p @ values, y)

    return router, train([*router.parameters(), values], loss, lr=1e-2)


@fault("dead-gradient", "tanh", "backward", step=0, steps=6, ops=("linear", "addmm", "mul"))
def pixels_that_were_not_scaled(fixed):
    torch.manual_seed(4)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(12, 8, bias=False), nn.Linear(8, 2)
            nn.init.uniform_(self.first.weight, 0.2, 0.6)

        def forward(self, picture):
            h = torch.tanh(self.first(picture.flatten(1)))  # ORIGIN
            return self.last(h)

    net = Net()
    pictures = torch.randint(60, 256, (16, 3, 2, 2), generator=torch.Generator().manual_seed(5)).float()
    x = pictures / 255 - 0.5 if fixed else pictures
    y = torch.arange(16) % 2
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y), lr=1e-2)


@fault("absorbed-update", "lerp", "optimizer", step=0, steps=8, ops=("lerp_", "add_", "mul_", "add"))
def slow_teacher_in_half(fixed):
    torch.manual_seed(6)
    student = nn.Linear(4, 4)
    nn.init.uniform_(student.weight, 0.5, 1.0)
    teacher = nn.Linear(4, 4)
    teacher.load_state_dict(student.state_dict())
    teacher = (teacher if fixed else teacher.half()).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), lr=1e-2)
    x = drawn(7, 12, 4)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(student(x), x) + (teacher(x.to(teacher.weight.dtype)).float() * 0).sum()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.lerp_(s.to(t.dtype), 1e-4)  # ORIGIN
        return loss

    return nn.ModuleList([student, teacher]), step


@fault("absorbed-update", "add", "optimizer", step=0, steps=6, ops=("add_",))
def samples_counted_beyond_sixteen_million(fixed):
    """A run that goes on: the count is kept in float32, and one is less than its last place."""
    torch.manual_seed(8)

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 1)
            start = torch.tensor(2.0**25)
            self.register_buffer("seen", start.double() if fixed else start)

        def forward(self, x):
            if self.training:
                self.seen += 1  # ORIGIN
            return self.lin(x) * (1 + 1e-9 * self.seen.float())

    net = Head()
    return net, train(net.parameters(), lambda i: net(drawn(i, 6, 3)).square().mean(), lr=1e-2)


@fault("dtype-underflow", "pow", "forward", step=0, steps=6, ops=("square", "mul", "mean"), also=("eps-underflow", "dead-gradient"))
def power_of_quiet_signals_in_half(fixed):
    torch.manual_seed(9)
    net = nn.Linear(6, 2)

    def loss(i):
        x = 2e-5 * drawn(i, 8, 6)
        wave = x if fixed else x.half()
        power = wave**2  # ORIGIN
        return net(power.float() * 2e8).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("dtype-underflow", "mul", "optimizer", step=0, steps=6, ops=("mul_", "sub_", "add_"), also=("absorbed-update",))
def step_by_hand_that_is_flushed_in_half(fixed):
    torch.manual_seed(10)
    w = nn.Parameter(drawn(11, 6, 4).to(torch.float32 if fixed else torch.float16) * 1e-3)
    x = drawn(12, 8, 6)

    def step(i):
        w.grad = None
        loss = (x.to(w.dtype) @ w).float().mean() * 0.01
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad * 1e-6)  # ORIGIN
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("dtype-overflow", "mm", step=0, steps=8, ops=("addmm", "linear", "matmul", "_to_copy", "mul"), also=("loss-scale-overflow",))
def scaler_that_never_finds_a_scale(fixed):
    """The forward pass itself overflows float16: no scale helps, and no step is ever made."""
    torch.manual_seed(13)
    net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 2, bias=False))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x = drawn(14, 12, 8) * (1.0 if fixed else 4e5)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(x).float().square().mean()  # ORIGIN
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@fault("exp-overflow", "exp", "forward", step=0, steps=3, building=True, also=("poisoned-buffer",))
def decays_of_many_channels(fixed):
    torch.manual_seed(15)

    class Decay(nn.Module):
        def __init__(self, n=12):
            super().__init__()
            span = torch.linspace(0, 8 if fixed else 100, n)
            self.register_buffer("rate", torch.exp(span))  # ORIGIN
            self.mix = nn.Linear(n, n)

        def forward(self, x):
            return self.mix(x * self.rate * 1e-3)

    net = Decay()
    return net, train(net.parameters(), lambda i: net(drawn(i, 5, 12)).square().mean() * 1e-6, lr=1e-6)


@fault("custom-backward", "div", "backward", step=2, also=("div-by-zero",), ops=("mul",))
def rectifier_of_ones_own_that_divides(fixed):
    torch.manual_seed(16)

    class Rectify(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.clamp_min(0)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * (x > 0) if fixed else g * (y / x)  # ORIGIN

    net, head = nn.Linear(3, 4, bias=False), nn.Linear(4, 1)

    def loss(i):
        x = drawn(i, 6, 3)
        if i == 2:
            x[4] = 0
        return (head(Rectify.apply(net(x)))[:, 0] - 1).square().mean()

    return nn.ModuleList([net, head]), train([*net.parameters(), *head.parameters()], loss, lr=1e-2)


@fault("div-by-zero", "div", step=1, also=("zero-times-inf",), ops=("reciprocal",))
def interpolation_at_a_point_of_the_cloud(fixed):
    torch.manual_seed(17)
    feature = nn.Parameter(drawn(18, 7, 3))
    cloud = drawn(19, 7, 3)

    def interpolate(query, k=3):
        d, near = torch.cdist(query, cloud).topk(k, largest=False)
        w = 1 / (d + 1e-8 if fixed else d)  # ORIGIN
        return (feature[near] * (w / w.sum(1, keepdim=True))[..., None]).sum(1)  # ALSO

    def loss(i):
        query = drawn(i, 5, 3)
        if i == 1:
            query[2] = 0
            with torch.no_grad():
                cloud[6] = 0
        return interpolate(query).square().mean()

    return None, train([feature], loss, lr=1e-2)


@fault("inf-in-input", "addmm", "data", step=2, ops=("linear", "mm"), also=("log-of-zero", "nan-in-input"))
def returns_of_a_share_that_was_suspended(fixed):
    torch.manual_seed(20)
    price = np.exp(np.cumsum(0.01 * drawn(21, 40, 3).numpy(), 0)).astype(np.float32)
    price[17, 1] = 0  # DATA
    if fixed:
        price[17, 1] = price[16, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        returns = np.diff(np.log(price), axis=0)  # DATA
    net = nn.Linear(3, 1)

    def loss(i):
        x = torch.from_numpy(returns[6 * i : 6 * i + 6])
        return net(x).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("log-of-zero", "log", step=2, also=("inf-minus-inf",))
def correction_for_an_item_never_sampled(fixed):
    torch.manual_seed(22)
    user, item = nn.Embedding(6, 4), nn.Embedding(9, 4)
    shown = torch.ones(9)

    def loss(i):
        if i == 2:
            shown[[1, 7]] = 0
        q = (shown + 0.1 if fixed else shown) / shown.sum()
        ids = torch.tensor([0, 1, 7, 4, 5, 8])
        score = user(torch.arange(6)) @ item(ids).T - torch.log(q[ids])  # ORIGIN
        return F.cross_entropy(score, torch.arange(6))

    return nn.ModuleList([user, item]), train([*user.parameters(), *item.parameters()], loss)


@fault("dtype-overflow", "exp", step=19, steps=24, ops=("mul", "_to_copy", "mm", "div"), also=("exp-overflow",))
def scale_of_similarities_without_a_ceiling(fixed):
    torch.manual_seed(23)
    image, text = nn.Linear(6, 4), nn.Linear(5, 4)
    log_scale = nn.Parameter(torch.tensor(1.8))
    a, b = drawn(24, 8, 6), drawn(25, 8, 5)

    def step(i):
        for p in (*image.parameters(), *text.parameters(), log_scale):
            p.grad = None
        u, v = F.normalize(image(a), dim=1).half(), F.normalize(text(b), dim=1).half()
        scale = log_scale.exp().half() if fixed else log_scale.half().exp()  # ORIGIN
        logits = scale * (u @ v.T)  # ALSO
        loss = F.cross_entropy(logits.float(), torch.arange(8))
        loss.backward()
        with torch.no_grad():
            log_scale.add_(0.5)
            if fixed:
                log_scale.clamp_(max=4.6)
        return loss

    net = nn.ModuleList([image, text])
    step.parameters = {"log_scale": log_scale}
    return net, step


@fault("div-by-zero", "div", "optimizer", step=0, steps=4, ops=("sqrt", "div_", "mul"), also=("optimizer-arithmetic",))
def bias_correction_that_counts_from_nothing(fixed):
    torch.manual_seed(26)
    net = nn.Linear(4, 2)
    state = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in net.named_parameters()}
    x = drawn(27, 10, 4)

    def adam(t, lr=1e-2, b1=0.9, b2=0.999):
        for n, p in net.named_parameters():
            m, v = state[n]
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            p.sub_(lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-8))  # ORIGIN

    def step(i):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            adam(i + 1 if fixed else i)
        return loss

    return net, step


@fault("div-by-zero", "div", step=2, also=("zero-times-inf",))
def weight_of_positives_in_a_batch_without_any(fixed):
    torch.manual_seed(28)
    net = nn.Linear(4, 1)

    def loss(i):
        x = drawn(i, 8, 4)
        y = (x[:, 0] > 0).float() * (i != 2)
        positive = y.sum()
        weight = (len(y) - positive) / (positive.clamp_min(1) if fixed else positive)  # ORIGIN
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y, pos_weight=weight)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("empty-reduction", "var", step=3, ops=("std", "lerp", "lerp_"), also=("poisoned-buffer", "std-of-constant"))
def running_variance_that_met_a_batch_of_one(fixed):
    torch.manual_seed(29)

    class Norm(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer("mean", torch.zeros(n))
            self.register_buffer("var", torch.ones(n))

        def forward(self, x):
            y = (x - self.mean) / (self.var + 1e-5).sqrt()
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                if not fixed or len(x) > 1:
                    self.var.lerp_(x.var(0), 0.1)  # ORIGIN
            return y

    net = nn.Sequential(nn.Linear(3, 4), Norm(4), nn.Linear(4, 1))
    return net, train(net.parameters(), lambda i: net(drawn(i, 1 if i == 2 else 6, 3)).square().mean(), lr=1e-2)


@fault("div-by-zero", "div", step=2, also=("softmax-all-masked",))
def gates_that_were_all_dropped_and_shared_out_anew(fixed):
    torch.manual_seed(30)
    gate, out = nn.Linear(3, 4), nn.Linear(4, 1)

    def loss(i):
        w = gate(drawn(i, 6, 3)).softmax(-1)
        keep = torch.ones(6, 4)
        keep[:, i % 4] = 0
        if i == 2:
            keep[5] = 0
        w = w * keep
        w = w / (w.sum(-1, keepdim=True).clamp_min(1e-6) if fixed else w.sum(-1, keepdim=True))  # ORIGIN
        return out(w).square().mean()

    return nn.ModuleList([gate, out]), train([*gate.parameters(), *out.parameters()], loss, lr=1e-2)


@fault("log-of-zero", "lgamma", step=1, also=("infeasible-likelihood", "inf-minus-inf", "log-of-negative"), ops=("digamma", "sub", "sum"))
def evidence_that_is_exactly_nothing(fixed):
    """A Dirichlet whose concentrations are a ReLU: at 0 the logarithm of the gamma function has a pole."""
    torch.manual_seed(31)
    net = nn.Linear(3, 4)
    with torch.no_grad():
        net.bias.fill_(2.0)

    def loss(i):
        evidence = net(drawn(i, 6, 3) * (5.0 if i == 1 else 0.3)).relu()
        alpha = evidence + 1 if fixed else evidence
        total = alpha.sum(1)
        log_norm = torch.lgamma(alpha).sum(1) - torch.lgamma(total)  # ORIGIN
        return (log_norm + 0.1 * total).mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("exp-overflow", "special_i0", step=2, ops=("i0", "log", "exp"), also=("dtype-overflow",))
def concentration_of_angles_that_agree(fixed):
    torch.manual_seed(32)
    net = nn.Linear(2, 2)

    def loss(i):
        x = drawn(i, 6, 2) * (4000.0 if i == 2 else 1.0)
        mean, raw = net(x).unbind(-1)
        kappa = F.softplus(raw)
        log_i0 = torch.special.i0e(kappa).log() + kappa if fixed else torch.special.i0(kappa).log()  # ORIGIN
        return (log_i0 - kappa * torch.cos(x[:, 0] - mean)).mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("exp-overflow", "cosh", step=3, ops=("sinh", "exp", "mul", "add", "sub"), also=("dtype-overflow",))
def distance_of_far_nodes_in_polar_coordinates(fixed):
    r = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
    angle = torch.tensor([0.1, 2.0, 4.0])

    def loss(i):
        far = r * (60.0 if i == 3 and not fixed else 1.0)
        a, b = far, far.roll(1)
        inner = torch.cosh(a) * torch.cosh(b) - torch.sinh(a) * torch.sinh(b) * torch.cos(angle - angle.roll(1))  # ORIGIN
        return torch.acosh(inner.clamp_min(1.0001)).mean()  # ALSO

    return None, train([r], loss)


@fault("inverse-function-domain", "asin", step=2, also=("inverse-function-at-edge",))
def pitch_of_a_drone_that_looks_straight_up(fixed):
    torch.manual_seed(33)
    net = nn.Linear(3, 4)

    def pitch(q):
        w, x, y, z = q.unbind(-1)
        s = 2 * (w * y - x * z)
        return torch.asin(s.clamp(-0.9999, 0.9999) if fixed else s)  # ORIGIN

    def loss(i):
        q = F.normalize(net(drawn(i, 6, 3)), dim=1) * 0.9
        if i == 2:
            up = torch.tensor([[0.70711, 0.0, 0.70711, 0.0]])
            q = torch.cat([q, up + 0 * q[:1]])
        return pitch(q).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("sqrt-of-negative", "sqrt", step=1, ops=("sub",), also=("sqrt-at-zero",))
def spread_by_the_difference_of_two_large_numbers(fixed):
    torch.manual_seed(34)
    net = nn.Linear(5, 1)

    def loss(i):
        x = drawn(i, 64, 5)
        if i >= 1:
            x = x * 1e-3 + torch.tensor([3e3, 5e3, 7e3, 9e3, 2.2e4])
        mean = x.mean(0)
        spread = x.var(0, correction=0).sqrt() if fixed else ((x * x).mean(0) - mean * mean).sqrt()  # ORIGIN
        return net((x - mean) / (spread + 1e-3)).square().mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("log-of-negative", "logdet", step=2, ops=("log", "linalg_slogdet", "_linalg_slogdet", "_linalg_det", "where", "linalg_det"), also=("degenerate-matrix",))
def volume_of_a_map_that_turns_over(fixed):
    w = nn.Parameter(torch.eye(3) + 0.05 * drawn(35, 3, 3))
    x = drawn(36, 10, 3)

    def loss(i):
        m = w.clone()
        if i == 2:
            m = m * torch.tensor([1.0, 1.0, -1.0])
        volume = torch.linalg.slogdet(m)[1] if fixed else torch.logdet(m)  # ORIGIN
        return (x @ m).square().sum(1).mean() - volume

    return None, train([w], loss)


@fault("exp-overflow", "expm1", step=2, ops=("log", "exp"), also=("dtype-overflow",))
def inverse_of_softplus_for_large_values(fixed):
    torch.manual_seed(37)
    net = nn.Linear(2, 1)

    def inverse(y):
        return y + torch.log(-torch.expm1(-y)) if fixed else torch.log(torch.expm1(y))  # ORIGIN

    def loss(i):
        y = (drawn(i, 8) * 0.3).exp() * (120.0 if i == 2 else 2.0)
        return (inverse(y) - net(drawn(i, 8, 2))[:, 0]).square().mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("pow-fraction-at-zero", "pow", step=2, also=("div-by-zero",), ops=("mul",))
def deviance_of_claims_with_a_mean_of_zero(fixed):
    torch.manual_seed(38)
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.bias.fill_(3.0)

    def tweedie(mu, y, p=1.5):
        if fixed:
            mu = mu.clamp_min(1e-4)
        return (-y * mu ** (1 - p) / (1 - p) + mu ** (2 - p) / (2 - p)).mean()  # ORIGIN

    def loss(i):
        x = drawn(i, 8, 3) * (20.0 if i == 2 else 0.3)
        return tweedie(net(x)[:, 0].relu(), drawn(i + 4, 8).abs())

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("div-by-zero", "div", step=2, ops=("grid_sampler_2d", "mul"), also=("zero-times-inf",))
def projection_of_a_point_in_the_plane_of_the_camera(fixed):
    torch.manual_seed(39)
    shift = nn.Parameter(torch.zeros(3))
    picture = drawn(40, 1, 1, 8, 8)

    def project(p):
        z = p[:, 2:]
        return p[:, :2] / (torch.where(z.abs() < 1e-3, 1e-3, z) if fixed else z)  # ORIGIN

    def step(i):
        shift.grad = None
        p = drawn(i, 6, 3) + torch.tensor([0.0, 0, 4.0])
        if i == 2:
            p[3] = torch.tensor([0.0, 0.0, 0.0])
        uv = project(p + shift)
        loss = (F.grid_sample(picture, uv[None, None], align_corners=False).square().mean() + uv.clamp(-2, 2).square().mean())
        loss.backward()
        return loss

    step.parameters = {"shift": shift}
    return None, step


# Healthy beside them.


@healthy("a class that does not occur has an infinite weight, and no sample uses it")
def weights_of_classes_some_absent(fixed):
    torch.manual_seed(41)
    net = nn.Linear(4, 4)
    y = torch.arange(12) % 3
    weight = 12 / torch.bincount(y, minlength=4)
    x = drawn(42, 12, 4)
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y, weight=weight), lr=0.1)


@healthy("time constants that overflow divide, and what they divide is 0")
def rates_that_overflow_in_a_divisor(fixed):
    torch.manual_seed(43)
    net = nn.Linear(6, 1)
    constant = torch.exp(torch.linspace(0, 100, 6))
    return net, train(net.parameters(), lambda i: net(drawn(i, 8, 6) / constant).square().mean(), lr=0.1)


@healthy("the temperature falls until the softmax is one-hot; its values go on learning", steps=12)
def choice_that_hardens(fixed):
    torch.manual_seed(44)
    router, values = nn.Linear(4, 3), nn.Parameter(drawn(45, 3, 2))
    x, y = drawn(46, 10, 4), drawn(47, 10, 2)

    def loss(i):
        p = torch.softmax(router(x) / 0.5**i, -1)
        return F.mse_loss(p @ values, y)

    return router, train([*router.parameters(), values], loss, lr=0.1)


@healthy("a validation loop without gradients meets NaN and counts it out", steps=8)
def validation_after_each_training_step(fixed):
    torch.manual_seed(48)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    seen = torch.zeros(2)

    def step(i):
        opt.zero_grad()
        loss = (net(drawn(i, 8, 3))[:, 0] - 1).square().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            x = drawn(i + 90, 8, 3)
            x[i % 8, 0] = float("nan")
            error = (net(x)[:, 0] - 1).square()
            seen.add_(torch.stack([error.nansum(), (~error.isnan()).sum()]))
        return loss

    return net, step


@healthy("training ends, and batches with gaps are only predicted", steps=9)
def prediction_after_the_training(fixed):
    torch.manual_seed(49)
    cell, head = nn.GRUCell(2, 4), nn.Linear(4, 1)
    params = [*cell.parameters(), *head.parameters()]
    opt = torch.optim.Adam(params, lr=1e-2)
    h = torch.zeros(3, 4)

    def step(i):
        nonlocal h
        x = drawn(i, 3, 2)
        if i < 4:
            opt.zero_grad()
            h = cell(x, h.detach())
            loss = head(h).square().mean()
            loss.backward()
            opt.step()
            return loss
        x[0, 0] = float("nan")
        with torch.no_grad():
            h = cell(x, h)
            return head(h).nan_to_num().square().mean()

    return nn.ModuleList([cell, head]), step


@healthy("both branches of a choice hold NaN, and neither is chosen")
def two_sensors_that_fail_by_turns(fixed):
    torch.manual_seed(50)
    net = nn.Linear(4, 1)

    def loss(i):
        a, b = drawn(i, 6, 4), drawn(i + 7, 6, 4)
        a[::2], b[1::2] = float("nan"), float("nan")
        return net(torch.where(a.isnan(), b, a)).square().mean()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("a saturated gate has no gradient; the layers beside it learn")
def gate_that_is_open(fixed):
    torch.manual_seed(51)
    net, gate = nn.Linear(4, 4), nn.Linear(4, 4)
    gate.requires_grad_(False)
    gate.bias.fill_(300.0)
    x = drawn(52, 10, 4)
    return net, train(net.parameters(), lambda i: (torch.sigmoid(gate(x)) * net(x) - x).square().mean(), lr=0.1)


@healthy("a counter beyond 2**24 in float64", steps=5)
def count_that_is_wide_enough(fixed):
    torch.manual_seed(53)
    net = nn.Linear(3, 1)
    seen = torch.tensor(2.0**25, dtype=torch.float64)

    def loss(i):
        seen.add_(1)
        return net(drawn(i, 5, 3)).square().mean() * (1 + 0 * seen.float())

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("a target of -inf in the log domain stands for an impossible class, by xlogy-like sums of kl_div")
def soft_labels_with_zeros(fixed):
    torch.manual_seed(54)
    net = nn.Linear(4, 3)
    p = F.one_hot(torch.arange(9) % 3, 3).float()
    x = drawn(55, 9, 4)
    return net, train(net.parameters(), lambda i: F.kl_div(net(x).log_softmax(-1), p, reduction="batchmean"), lr=0.2)


@healthy("distances to itself are 0 under a root that torch differentiates by 0")
def norms_of_zero_vectors(fixed):
    torch.manual_seed(56)
    net = nn.Linear(3, 2, bias=False)

    def loss(i):
        x = drawn(i, 6, 3)
        x[1] = 0
        z = net(x)
        return z.norm(dim=1).mean() + torch.cdist(z, z).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@fault("mask-overflow", "div", step=3, steps=5, also=("zero-times-inf",))
def assignment_that_forbids_by_the_largest_number(fixed):
    torch.manual_seed(30)
    features = nn.Linear(4, 6)
    gen = torch.Generator().manual_seed(31)

    def loss(i):
        tracks = torch.randn(7, 4, generator=gen)
        seen = tracks + 0.1 * torch.randn(7, 4, generator=gen)
        near = (tracks[:, None, 0] - seen[None, :, 0]).abs() < 1.2
        cost = (features(tracks)[:, None] - features(seen)[None]).square().mean(-1)
        forbidden = torch.full_like(cost, 1e4 if fixed else torch.finfo(torch.float32).max)
        scaled = torch.where(near, cost, forbidden) / (4.0 / 1.6**i)  # ORIGIN
        return (torch.softmax(-scaled, -1) * scaled).sum(-1).mean()

    return features, train(features.parameters(), loss)


@fault("absorbed-update", "sub_", "optimizer", steps=9)
def points_at_the_rim_of_a_disc_that_the_metric_holds(fixed):
    angle = torch.arange(12, dtype=torch.float64) * 0.7 + 0.4
    disc = torch.stack([angle.cos(), angle.sin()], -1) * (1 - 2e-5)
    points = nn.Parameter(disc if fixed else disc.float())
    gen = torch.Generator().manual_seed(32)

    def step(i):
        one, other = torch.randperm(12, generator=gen), torch.randperm(12, generator=gen)
        same = (one // 3 == other // 3).to(points.dtype)
        points.grad = None
        loss = ((points[one] * points[other]).sum(-1) - same).square().mean()
        loss.backward()
        with torch.no_grad():
            metric = ((1 - points.square().sum(-1, keepdim=True)) / 2) ** 2
            points.sub_(0.5 * metric * points.grad)  # ORIGIN
        return loss

    step.parameters = {"points": points}
    return None, step


@fault("dtype-underflow", "pow", steps=4)
def bound_weighted_by_squares_of_a_half_schedule(fixed):
    torch.manual_seed(33)
    body = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 6)).half()
    beta = torch.linspace(2e-5, 1.5e-4, 20)
    beta = beta if fixed else beta.half()
    gen = torch.Generator().manual_seed(34)

    def loss(i):
        noise = torch.randn(16, 6, generator=gen)
        b = beta[torch.randint(0, 20, (16,), generator=gen)]
        weight = b.pow(2) / (2 * b * (1 - b))  # ORIGIN
        error = (body(noise.half()).float() - noise).square().mean(1)
        return 64.0 * (weight.float() * error).sum()

    return body, train(body.parameters(), loss, lr=2e-3)


@fault("dead-gradient", "linalg_vector_norm", "backward", steps=5, ops=("norm",))
def speed_of_a_head_that_starts_at_rest(fixed):
    """The length of a vector of zeros: its derivative is taken to be 0, and nothing learns."""
    torch.manual_seed(57)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    if not fixed:
        nn.init.zeros_(net[2].weight)
        nn.init.zeros_(net[2].bias)
    x, speed = drawn(58, 10, 4), drawn(59, 10).abs() + 0.5
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x).norm(dim=-1), speed), lr=1e-2)  # ORIGIN


@fault("dead-gradient", "angle", "backward", steps=5)
def phase_of_a_response_that_starts_at_zero(fixed):
    torch.manual_seed(60)
    net = nn.Linear(4, 2)
    if not fixed:
        nn.init.zeros_(net.weight)
        nn.init.zeros_(net.bias)
    x, delay = drawn(61, 10, 4), drawn(62, 10)

    def loss(i):
        phase = torch.angle(torch.view_as_complex(net(x)))  # ORIGIN
        return (1 - torch.cos(phase - delay)).mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("optimizer-arithmetic", "div", "optimizer", steps=5, ops=("mul", "sub_"))
def rate_relative_to_a_layer_that_starts_at_zero(fixed):
    torch.manual_seed(63)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))
    nn.init.zeros_(net[2].weight)
    x = drawn(64, 16, 4)
    y = (x[:, 0] > 0).long()

    def step(i):
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                size = p.norm().clamp_min(1.0 if fixed else 0.0)
                trust = size / (p.grad.norm() + 1e-9)  # ORIGIN
                p -= 0.01 * trust * p.grad
        return loss

    return net, step


@fault("poisoned-buffer", "rsqrt", steps=5, also=("dead-gradient",))
def variances_that_were_exported_in_half(fixed):
    """They are infinite in float16, and their inverse root is 0: the layer before learns nothing."""
    torch.manual_seed(65)

    class Whitened(nn.Module):
        def __init__(self):
            super().__init__()
            self.sensor, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
            variance = 8e4 * (1 + torch.rand(6))
            self.register_buffer("variance", variance if fixed else variance.half())

        def forward(self, x):
            h = 300.0 * self.sensor(x)
            return self.head(h * torch.rsqrt(self.variance.float() + 1e-5))  # ORIGIN

    net, x = Whitened(), drawn(66, 16, 4)
    y = (x[:, 0] > 0).long()
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y), lr=0.1)


@fault("poisoned-buffer", "native_batch_norm", steps=5, ops=("batch_norm",))
def one_channel_whose_variance_is_infinite(fixed):
    torch.manual_seed(67)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6).eval(), nn.ReLU(), nn.Linear(6, 2))
    net[1].running_var[2] = 9e4 if fixed else float("inf")
    x = drawn(68, 16, 4)
    y = (x[:, 0] > 0).long()
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y), lr=0.1)  # ORIGIN


@healthy("penalties are least at the zeros where their parameters start")
def corrections_that_are_not_needed(fixed):
    torch.manual_seed(69)
    net = nn.ModuleDict({"lin": nn.Linear(3, 1), "shift": nn.Linear(3, 3)})
    nn.init.zeros_(net["shift"].weight)
    nn.init.zeros_(net["shift"].bias)
    x = drawn(70, 8, 3)

    def loss(i):
        w, b = net["shift"].parameters()
        return F.mse_loss(net["lin"](x), x[:, :1]) + w.norm(dim=-1).sum() + b.abs().sum() + (w**2).sum()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("unreachable nodes are infinitely far: one over the distance is 0, for them alone")
def mail_that_fades_with_the_hops(fixed):
    torch.manual_seed(71)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    hops = torch.tensor([1.0, 2.0, float("inf"), 1.0, 4.0, float("inf")])
    net.register_buffer("hops", hops)
    x = drawn(72, 6, 4)
    return net, train(net.parameters(), lambda i: ((net[:2](x) / net.hops[:, None]).sum(0) - 1).square().mean(), lr=0.05)


@healthy("a ratio of one where the weights are zero")
def rate_relative_to_what_has_a_size(fixed):
    torch.manual_seed(73)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    x = drawn(74, 16, 4)
    y = (x[:, 0] > 0).long()

    def step(i):
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                size, slope = p.norm(), p.grad.norm()
                trust = torch.where((size > 0) & (slope > 0), size / (slope + 1e-9), 1.0)
                p -= 0.01 * trust * p.grad
        return loss

    return net, step


@fault("dtype-underflow", "smooth_l1_loss", "backward", step=0, steps=6, ops=("smooth_l1_loss_backward", "mul"))
def second_task_of_little_weight_in_half(fixed):
    """The derivative by each output is below the smallest number of float16, not flat."""
    torch.manual_seed(75)
    main, depth = nn.Linear(6, 3).half(), nn.Linear(6, 40).half()
    net = nn.ModuleDict({"main": main, "depth": depth})
    masters = [p.detach().float() for p in net.parameters()]
    x, y, far = drawn(76, 100, 6).half(), torch.arange(100) % 3, drawn(77, 100, 40).half()
    scale = 4096.0 if fixed else 1.0

    def step(i):
        net.zero_grad()
        error = F.smooth_l1_loss(depth(x), far)  # ORIGIN
        loss = F.cross_entropy(main(x).float(), y) + 2e-5 * error.float()
        (scale * loss).backward()
        with torch.no_grad():
            for p, master in zip(net.parameters(), masters, strict=True):
                master -= 0.1 * p.grad.float() / scale
                p.copy_(master)
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=1, steps=4)
def rows_of_a_table_that_no_sample_asked_for(fixed):
    """Second moments kept by row and by column: those of a block that got no gradient are 0 over 0."""
    torch.manual_seed(78)
    table = nn.Parameter(drawn(79, 3, 5, 4))
    rows, columns = torch.zeros(3, 5), torch.zeros(3, 4)
    floor = 1e-30 if fixed else 0.0

    def step(i):
        table.grad = None
        asked = torch.arange(6) % (3 if i != 1 else 2)
        loss = (table[asked] - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            square = table.grad**2 + floor
            rows.copy_(square.mean(-1))
            columns.copy_(square.mean(-2))
            part = rows / rows.mean(-1, keepdim=True)  # ORIGIN
            size = part[..., None] * columns[..., None, :]
            table.sub_(0.01 * table.grad / size.sqrt().clamp(min=1e-8))
        return loss

    step.parameters = {"table": table}
    return None, step


@fault("scaler-misuse", "mean", "optimizer", steps=6, ops=("step", "add_", "mse_loss"))
def scaled_copy_of_the_loss_that_nobody_used(fixed):
    torch.manual_seed(81)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    x = drawn(82, 32, 4)

    def step(i):
        optimizer.zero_grad()
        error = (net(x)[:, 0] - x.prod(1)).square()
        loss = error.mean()
        scaled = scaler.scale(loss)
        (scaled if fixed else loss).backward()  # ORIGIN
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return net, step


@healthy("the scale is on the terms, on the samples, or given to backward")
def scale_that_is_put_on_elsewhere(fixed):
    torch.manual_seed(83)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    x = drawn(84, 32, 4)

    def step(i):
        optimizer.zero_grad()
        out = net(x)
        terms = [(out[:, 0] - x[:, 0]).square().mean(), out[:, 1].abs().mean()]
        if i % 3 == 0:
            sum(scaler.scale(terms)).backward()
        elif i % 3 == 1:
            scaler.scale((out[:, 0] - x[:, 0]).square()).mean().backward()
        else:
            scaler.scale(terms[0])
            terms[0].backward(torch.tensor(scaler.get_scale()))
        scaler.step(optimizer)
        scaler.update()
        return terms[0].detach()

    return net, step


@fault("optimizer-eps-underflow", "step", "optimizer", steps=8, ops=("addcdiv_", "add_", "sub_", "_foreach_addcdiv_"))
def charges_in_coulombs(fixed):
    """Gradients of 1e-12 and less beside an eps of 1e-8."""
    torch.manual_seed(85)
    net = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
    unit = 1.0 if fixed else 1e-6
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    x = drawn(86, 24, 3)
    charge = unit * (1.0 + x[:, 0].abs())

    def step(i):
        optimizer.zero_grad()
        loss = F.mse_loss(unit * net(x)[:, 0], charge)
        loss.backward()
        optimizer.step()  # ORIGIN
        return loss.detach()

    return net, step


@healthy("gradients become far smaller than eps as a fit becomes exact, and the moments remember larger ones")
def fit_that_becomes_exact(fixed):
    torch.manual_seed(87)
    net = nn.Linear(2, 1).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.3, eps=1e-4)
    x = drawn(88, 16, 2).double()
    target = (x @ torch.tensor([[0.5], [-0.25]]).double()) + 0.1

    def step(i):
        optimizer.zero_grad()
        loss = (0.1 ** (2 * i)) * F.mse_loss(net(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return net, step


@fault("dead-gradient", "hardtanh", "backward", step=4, steps=9, ops=("clamp", "hardtanh_", "linear", "addmm", "sub"))
def commands_beyond_their_limits(fixed):
    """One step of a rate meant for another unit, after which every command stands at a limit."""
    torch.manual_seed(89)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Hardtanh(-2.0, 2.0))  # ALSO
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x = drawn(90, 24, 3)

    def step(i):
        optimizer.param_groups[0]["lr"] = 400.0 if i == 3 and not fixed else 0.05
        optimizer.zero_grad()
        loss = (net(x)[:, 0] - 0.5 * x[:, 1]).square().mean()  # ORIGIN
        loss.backward()
        optimizer.step()
        return loss.detach()

    return net, step


@healthy("margins that are kept: hinges give no gradient for some batches, and a penalty's price stays")
def margins_that_are_kept(fixed):
    torch.manual_seed(91)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

    def step(i):
        x = drawn(92 + i, 16, 3)
        sign = torch.where(x[:, 0] > 0, 1.0, -1.0)
        x = x + 2.0 * sign[:, None] * torch.tensor([1.0, 0.0, 0.0])
        optimizer.zero_grad()
        loss = F.relu(1.0 - sign * net(x)[:, 0]).mean() + 0.25
        loss.backward()
        optimizer.step()
        return loss.detach()

    return net, step


@fault("dead-gradient", "mm", "backward", step=0, steps=6, building=True, ops=("linear", "mul", "addmm", "matmul"))
def bottleneck_whose_two_factors_start_at_zero(fixed):
    """The watch is there when they are made; each multiplies the gradient of the other by 0."""
    torch.manual_seed(90)

    class Bottleneck(nn.Module):
        def __init__(self, wide, narrow):
            super().__init__()
            self.frozen = nn.Linear(wide, wide).requires_grad_(False)
            first = torch.zeros(narrow, wide)
            self.down = nn.Parameter(nn.init.normal_(first, std=0.2) if fixed else first)
            self.up = nn.Parameter(torch.zeros(wide, narrow))

        def forward(self, x):
            return self.frozen(x) + F.linear(F.linear(x, self.down), self.up)  # ORIGIN

    net = Bottleneck(6, 2)
    x, y = drawn(91, 12, 6), drawn(92, 12, 6)
    return net, train([net.down, net.up], lambda i: F.mse_loss(net(x), y), lr=1e-1)


@fault("inf-in-input", "sub", "data", step=3, steps=5, ops=("index", "_log_softmax", "log"), also=("log-of-zero", "inf-minus-inf", "nan-in-target"))
def prior_of_a_species_nobody_has_seen(fixed):
    """log 0 of a table is subtracted from a score, as no mask is: +inf, of which softmax makes NaN."""
    torch.manual_seed(93)
    net = nn.Linear(5, 4)
    seen = torch.tensor([30.0, 12.0, 7.0, 1.0 if fixed else 0.0])
    prior = torch.from_numpy(np.log(np.maximum(seen.numpy(), 1e-300)).astype(np.float32))
    prior = torch.where(seen > 0, prior, -torch.inf)

    def loss(i):
        x = drawn(94 + i, 8, 5)
        shown = torch.arange(8) % 3
        if i >= 3:
            shown = shown + 1
        scores = net(x)[:, :3] - prior[:3] if i < 3 else net(x)[:, 1:] - prior[1:]  # ORIGIN
        return F.cross_entropy(scores, shown % 3)

    return net, train(net.parameters(), loss, lr=1e-1)


@healthy("an infinite price is subtracted from scores, as a mask is: softmax gives 0 there")
def roads_that_are_closed(fixed=False):
    torch.manual_seed(95)
    net = nn.Linear(5, 4)
    price = torch.tensor([0.0, 1.0, torch.inf, 0.5])

    def loss(i):
        return F.cross_entropy(net(drawn(96 + i, 8, 5)) - price, torch.tensor([0, 1, 3, 0, 1, 3, 0, 1]))

    return net, train(net.parameters(), loss, lr=1e-1)


@fault("dead-gradient", "floor", "backward", step=0, steps=6, ops=("mul", "div"))
def brightness_in_whole_steps(fixed):
    torch.manual_seed(97)
    gain = nn.Parameter(torch.tensor([0.7, 1.3, 0.9]))
    x, y = drawn(98, 9, 3).abs(), drawn(99, 9, 3).abs()

    def loss(i):
        exact = 8 * gain * x
        steps = exact + (torch.floor(exact) - exact).detach() if fixed else torch.floor(exact)  # ORIGIN
        return F.mse_loss(steps / 8, y)

    return nn.ParameterDict({"gain": gain}), train([gain], loss, lr=1e-2)


@fault("dead-gradient", "clamp", "backward", step=1, steps=9, ops=("where", "clamp_min", "clamp_max"))
def friction_thrown_out_of_its_range(fixed):
    """One large step carries the coefficient below its bound; the loss would have it back."""
    torch.manual_seed(100)
    rough = nn.Parameter(torch.tensor(0.4))
    body = nn.Linear(2, 1)
    x = drawn(101, 20, 2)
    y = 0.25 * x.sum(1)

    def loss(i):
        held = 0.05 + 0.9 * torch.sigmoid(rough) if fixed else rough.clamp(0.05, 0.95)  # ORIGIN
        return F.mse_loss(held * x.sum(1), y) + F.mse_loss(body(x)[:, 0], y)

    opt = torch.optim.SGD([{"params": [rough], "lr": 2.5}, {"params": body.parameters(), "lr": 1e-2}])

    def step(i):
        opt.zero_grad()
        out = loss(i)
        out.backward()
        opt.step()
        return out

    return nn.ModuleDict({"body": body, "rough": nn.ParameterList([rough])}), step


@fault("dead-gradient", "gt", "forward", step=0, steps=6, ops=("lt", "_to_copy", "where", "mul", "ge"))
def alarm_level_that_is_compared(fixed):
    torch.manual_seed(102)
    level = nn.Parameter(torch.tensor(0.2))
    lin = nn.Linear(3, 1)
    x = drawn(103, 24, 3)
    y = (x.sum(1) > 0.5).float()

    def loss(i):
        score = lin(x)[:, 0]
        rings = torch.sigmoid((score - level) / 0.1) if fixed else (score > level).float()  # ORIGIN
        return F.mse_loss(rings, y) + F.mse_loss(score, y)

    return nn.ModuleDict({"lin": lin, "level": nn.ParameterList([level])}), train([level, *lin.parameters()], loss, lr=1e-2)


@fault("dead-gradient", "exp", "forward", step=3, steps=8, ops=("mul", "sigmoid", "sub"), also=("dtype-underflow",))
def likelihoods_of_longer_and_longer_songs(fixed):
    """From the third step on both chances are 0: the loss is log 2, as it nearly was before."""
    torch.manual_seed(104)
    net = nn.Linear(4, 6)
    lengths = [3, 4, 3, 300, 320, 340, 360, 380]

    def loss(i):
        songs = drawn(105 + i, 2, lengths[i], 4)
        total = torch.log_softmax(net(songs), -1)[..., 0].sum(-1)
        chance = total if fixed else total.exp()  # ORIGIN
        return -F.logsigmoid(0.1 * (chance[0] - chance[1]))

    return net, train(net.parameters(), loss, lr=1e-2)


@healthy("an index that chooses codes, which are averages that nobody differentiates, held by the optimizer")
def codes_that_follow_their_members(fixed=False):
    torch.manual_seed(106)
    encode, codes = nn.Linear(4, 3), nn.Parameter(drawn(107, 5, 3))
    opt = torch.optim.SGD([*encode.parameters(), codes], lr=1e-2)
    x = drawn(108, 30, 4)

    def step(i):
        opt.zero_grad()
        z = encode(x)
        nearest = torch.cdist(z.detach(), codes.detach()).argmin(-1)
        out = F.mse_loss(z, codes.detach()[nearest]) + F.mse_loss(z.sum(1), x.sum(1))
        out.backward()
        opt.step()
        with torch.no_grad():
            for k in range(5):
                if (nearest == k).any():
                    codes[k] = 0.9 * codes[k] + 0.1 * z[nearest == k].mean(0)
        return out

    return nn.ModuleDict({"encode": encode, "codes": nn.ParameterList([codes])}), step


@fault("zero-times-inf", "mul", "forward", step=4, steps=8, also=("div-by-zero",))
def slowness_of_roads_that_are_closed(fixed):
    """Closed roads have a speed of 0 and an infinite slowness in every step, which no best way takes; one of length 0 is closed in the fourth."""
    torch.manual_seed(110)
    net = nn.Linear(3, 1)
    speeds, lengths = drawn(111, 6, 5).abs() + 0.5, drawn(112, 6, 5).abs() + 0.1
    y = drawn(113, 6)

    def loss(i):
        is_open = torch.ones(6, 5)
        is_open[:, i % 5] = 0.0
        if i == 4:
            lengths[3, 4] = 0.0
        slowness = 1 / (speeds * is_open)
        if fixed:
            slowness = slowness.clamp(max=1e4)
        ways = slowness * lengths  # ORIGIN
        best = torch.stack([ways.amin(1), lengths.amin(1), speeds.amax(1)], 1)
        return F.mse_loss(net(best)[:, 0], y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("div-by-zero", "reciprocal", "forward", step=3, steps=7, ops=("div",))
def depth_between_two_walls_at_infinity(fixed):
    """A ray into the open has its far wall at infinity in every step; new in the third is that of the near one."""
    torch.manual_seed(114)
    net = nn.Linear(8, 8)
    y = drawn(115, 8).abs()

    def loss(i):
        clear = torch.ones(8)
        clear[2] = 0.0
        near = 1 / (clear if i >= 3 else torch.ones(8))  # ORIGIN
        far = 2 / clear
        if fixed:
            near, far = near.clamp(max=4.0), far.clamp(max=9.0)
        depth = (far - near).clamp(max=5.0)
        return F.mse_loss(net(depth), y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("dead-gradient", "round", "backward", step=4, steps=12, ops=("floor", "trunc"))
def camera_whose_pixels_become_whole_numbers(fixed):
    """The levels are whole from the fourth step on: what comes before them learns no more, its offset and all; the head goes on."""
    torch.manual_seed(117)
    lens, head = nn.Linear(4, 6), nn.Linear(6, 2)
    x, y = drawn(118, 20, 4), drawn(119, 20, 2)

    def loss(i):
        levels = lens(x) * 4
        if i >= 4:
            whole = levels.round()  # ORIGIN
            levels = levels + (whole - levels).detach() if fixed else whole
        return F.mse_loss(head(levels / 4), y)

    return nn.ModuleList([lens, head]), train([*lens.parameters(), *head.parameters()], loss, lr=5e-2)


@healthy("learning rates that are tried on copies first; the largest overflow there")
def rates_that_are_tried_on_copies(fixed=False):
    torch.manual_seed(120)
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        x, y = drawn(121 + i, 16, 3), drawn(140 + i, 16, 2)
        found = (torch.inf, 0.0)
        for rate in (1e-2, 1e-1, 1e20):
            weight = net.weight.detach().clone().requires_grad_()
            for _ in range(3):
                fit = F.mse_loss(F.linear(x, weight, net.bias.detach()), y)
                weight = (weight - rate * torch.autograd.grad(fit, weight)[0]).detach().requires_grad_()
            found = min(found, (float(fit), rate)) if torch.isfinite(fit) else found
        opt.param_groups[0]["lr"] = found[1]
        opt.zero_grad()
        out = F.mse_loss(net(x), y)
        out.backward()
        opt.step()
        return out

    return net, step


@fault("where-grad-trap", "sqrt", "backward", step=3, ops=("pow", "mul", "where", "div"), also=("sqrt-of-negative",))
def depth_of_a_ray_that_misses_the_lens(fixed):
    radius = nn.Parameter(torch.tensor(1.6))

    def loss(i):
        height = drawn(i, 40).abs().clamp(max=1.2) + (0.6 if i >= 3 else 0.0)
        left = radius**2 - height**2
        misses = left <= 0
        inside = torch.where(misses, torch.ones_like(left), left) if fixed else left
        depth = torch.sqrt(inside)  # ORIGIN
        path = (depth - 0.3) / (depth + 0.5)
        return torch.where(misses, torch.zeros_like(path), path**2).mean()  # ALSO

    return nn.ParameterList([radius]), train([radius], loss)


@fault("dead-gradient", "add", step=0, steps=6, ops=("sub", "div"))
def slope_over_a_step_that_the_clock_cannot_hold(fixed):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    width = torch.tensor(30.0 if fixed else 0.02)

    def loss(i):
        seconds = 9e6 + 4000 * drawn(i, 20, 1)
        later = seconds + width  # ORIGIN
        scale = 4000.0
        rise = (net((later - 9e6) / scale) - net((seconds - 9e6) / scale)) * scale / width  # ALSO
        return (rise - torch.cos((seconds - 9e6) / scale)).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "prod", step=0, steps=6, also=("dtype-underflow",))
def likelihood_of_a_walk_between_rooms(fixed):
    class Walk(nn.Module):
        def __init__(self):
            super().__init__()
            self.doors = nn.Parameter(0.1 * drawn(7, 5, 5))

        def forward(self, here, there):
            rates = self.doors.exp() * (1 - torch.eye(5))
            stays = torch.linalg.matrix_exp(0.4 * (rates - torch.diag(rates.sum(1))))
            chances = 0.2 * stays[here, there]
            if fixed:
                return chances.log().sum(-1)
            return torch.log(chances.prod(-1) + 1e-25)  # ORIGIN

    walk = Walk()

    def loss(i):
        rooms = torch.randint(0, 5, (4, 161), generator=torch.Generator().manual_seed(i))
        return -walk(rooms[:, :-1], rooms[:, 1:]).mean() / 160

    return walk, train(walk.parameters(), loss)


@fault("dtype-underflow", "pow", "optimizer", step=0, steps=6, ops=("mul", "square", "add_", "_to_copy"))
def average_of_squares_of_a_strain_in_half(fixed):
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
    dtype = torch.float32 if fixed else torch.float16
    averages = [torch.zeros_like(p, dtype=dtype) for p in net.parameters()]

    def step(i):
        x = drawn(i, 30, 5)
        loss = F.mse_loss(0.01 * net(x), 0.01 * x[:, :1] * x[:, 1:2])
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, average in zip(net.parameters(), averages, strict=True):
                g = p.grad.to(dtype)
                average.mul_(0.95).add_(0.05 * g.square())  # ORIGIN
                p.sub_(1e-3 * p.grad / (average.float().sqrt() + 1e-4))
        return loss.detach()

    return net, step


@healthy("single squares of gradients are zero in float16, and most are not")
def average_of_squares_of_ordinary_gradients_in_half(fixed):
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
    averages = [torch.zeros_like(p, dtype=torch.float16) for p in net.parameters()]

    def step(i):
        x = drawn(i, 30, 5)
        loss = F.mse_loss(0.3 * net(x), 0.3 * x[:, :1] * x[:, 1:2])
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, average in zip(net.parameters(), averages, strict=True):
                average.mul_(0.95).add_(0.05 * p.grad.half().square())
                p.sub_(1e-3 * p.grad / (average.float().sqrt() + 1e-4))
        return loss.detach()

    return net, step


@healthy("equal pairs have no difference; other pairs have")
def twins_of_which_some_are_the_same(fixed):
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(i):
        one = drawn(i, 10, 3)
        other = one if i < 2 else one + 0.1 * drawn(i + 70, 10, 3)
        return (net(other) - net(one) - 0.1).square().mean() + 1e-3 * net(one).square().mean()

    return net, train(net.parameters(), loss)
