"""Filters, densities, losses, masks, narrow formats and loops, of no one field."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("sqrt-of-negative", "sqrt", step=2, also=("log-of-negative",))
def covariance_of_a_filter_that_is_subtracted_too_far(fixed):
    """A Kalman filter of one state; a gain that is learned, not computed, takes too much off."""
    gain = nn.Parameter(torch.tensor(0.8))

    def filter_(z, gain):
        x, p, out = torch.zeros(()), torch.tensor(1.0), []
        for value in z:
            p = p + 0.1
            x = x + gain * (value - x)
            p = (1 - gain) ** 2 * p + gain**2 * 0.05 if fixed else p - gain * p * 1.0
            out.append((value - x) / torch.sqrt(p))  # ORIGIN
        return torch.stack(out)

    def step(i):
        gain.grad = None
        loss = filter_(drawn(i, 5), gain).square().mean()
        loss.backward()
        with torch.no_grad():
            gain.add_(0.15)
        return loss

    step.parameters = {"gain": gain}
    return None, step


@fault("log-of-zero", "log", step=2)
def mixture_density_far_from_every_component(fixed):
    torch.manual_seed(1)

    class Mdn(nn.Module):
        def __init__(self, k=3):
            super().__init__()
            self.heads = nn.Linear(2, 3 * k)

        def nll(self, x, y):
            pi, mu, s = self.heads(x).chunk(3, -1)
            pi, s = pi.softmax(-1), F.softplus(s) + 0.1
            if fixed:
                log_n = -0.5 * ((y - mu) / s) ** 2 - s.log()
                return -torch.logsumexp(pi.log() + log_n, -1).mean()
            density = torch.exp(-0.5 * ((y - mu) / s) ** 2) / s
            return -torch.log((pi * density).sum(-1)).mean()  # ORIGIN

    net = Mdn()

    def loss(i):
        y = drawn(i, 6, 1)
        if i == 2:
            y[4] = 60.0
        return net.nll(drawn(i + 3, 6, 2), y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("pow-fraction-at-zero", "pow", "backward", step=3, ops=("mul",), also=("zero-times-inf",))
def focal_weight_of_a_certain_sample(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 2)

    def focal(logits, y, gamma=0.5):
        logp = logits.log_softmax(-1).gather(1, y[:, None])[:, 0]
        rest = 1 - logp.exp()
        if fixed:
            rest = rest.clamp_min(1e-6)
        return -(rest**gamma * logp).mean()  # ORIGIN

    def loss(i):
        x = drawn(i, 8, 3)
        if i == 3:
            x[5] = torch.tensor([200.0, -200.0, 150.0])
        y = net(x).argmax(1) if i == 3 else torch.arange(8) % 2
        return focal(net(x), y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("infeasible-likelihood", "log", step=2, ops=("log1p", "xlogy", "mul", "where", "sub", "add"), also=("log-of-zero", "zero-times-inf"))
def share_of_exactly_everything_under_a_beta(fixed):
    torch.manual_seed(3)
    net = nn.Linear(2, 2)

    def loss(i):
        a, b = (F.softplus(net(drawn(i, 7, 2))) + 0.5).unbind(-1)
        share = torch.sigmoid(drawn(i + 5, 7))
        if i == 2:
            share[2] = 1.0
        if fixed:
            share = share.clamp(1e-4, 1 - 1e-4)
        return -torch.distributions.Beta(a, b, validate_args=False).log_prob(share).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("intended-inf-in-loss", "mul", step=0, steps=4, ops=("sum", "mean", "log_softmax", "_log_softmax", "masked_fill", "add", "neg", "nll_loss", "cross_entropy", "cross_entropy_loss"), also=("infeasible-likelihood", "zero-times-inf"))
def smoothed_labels_over_forbidden_classes(fixed):
    torch.manual_seed(4)
    net = nn.Linear(4, 5)
    x, y = drawn(6, 10, 4), torch.arange(10) % 3
    forbidden = torch.tensor([False, False, False, False, True])

    def loss(i):
        logits = net(x).masked_fill(forbidden, -1e4 if fixed else -math.inf)  # ALSO
        logp = logits.log_softmax(-1)  # ALSO
        hard = -logp.gather(1, y[:, None]).mean()
        smooth = -logp.mean(-1).mean()  # ORIGIN
        return 0.9 * hard + 0.1 * smooth  # ALSO

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("softmax-all-masked", "_softmax", step=3, ops=("softmax",))
def query_whose_window_is_all_padding(fixed):
    torch.manual_seed(5)

    class Local(nn.Module):
        def __init__(self, width=6, reach=1):
            super().__init__()
            self.qkv, self.out, self.reach = nn.Linear(width, 3 * width), nn.Linear(width, 1), reach

        def forward(self, x, length):
            q, k, v = self.qkv(x).chunk(3, -1)
            n = torch.arange(x.shape[1])
            near = (n[:, None] - n).abs() <= self.reach
            there = n < length[:, None]
            seen = near & there[:, None, :]
            low = -1e4 if fixed else -torch.inf
            p = torch.softmax((q @ k.transpose(1, 2)).masked_fill(~seen, low), -1)  # ORIGIN
            h = self.out(p @ v)[..., 0]
            return (h * there).sum(1) / there.sum(1)

    net = Local()

    def loss(i):
        length = torch.tensor([6, 5, 6]) if i < 3 else torch.tensor([6, 2, 6])
        return net(drawn(i, 3, 6, 6), length).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("degenerate-matrix", "linalg_svd", "backward", step=2, steps=3, ops=("svd", "_linalg_svd", "div", "mul"), also=("div-by-zero",))
def rotation_fitted_to_a_symmetric_cloud(fixed):
    """Procrustes: the covariance of four corners of a square has equal singular values."""
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
    square = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])

    def fit(a, b):
        cov = a.T @ b
        if fixed:
            cov = cov + torch.diag(torch.tensor([1e-3, 3e-3]))
        u, _, vh = torch.linalg.svd(cov)  # ORIGIN
        return u[:, 0] @ vh[0]

    def step(i):
        net.zero_grad()
        a = square if i == 2 else drawn(i, 4, 2)
        loss = fit(net(a), a + 0.0)
        loss.backward()
        with torch.no_grad():
            net.weight.sub_(0.0 * net.weight.grad)
        return loss

    return net, step


@fault("div-by-zero", "div", "data", step=1, steps=4, also=("nan-in-input",), ops=("sub", "addmm"))
def picture_without_contrast_in_a_transform(fixed):
    torch.manual_seed(6)

    class Pictures(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, k):
            x = torch.rand(4, 4, generator=torch.Generator().manual_seed(k))
            if k == 5:
                x = torch.full((4, 4), 0.5)
            low, high = x.min(), x.max()
            x = (x - low) / (high - low).clamp_min(1e-6) if fixed else (x - low) / (high - low)  # ORIGIN
            return x, k % 2

    kept = DataLoader(Pictures(), batch_size=4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    feed = iter([])

    def step_loss(i):
        nonlocal feed
        try:
            x, y = next(feed)
        except StopIteration:
            feed = iter(kept)
            x, y = next(feed)
        return F.cross_entropy(net(x), y)

    return net, train(net.parameters(), step_loss, lr=1e-2)


@fault("optimizer-arithmetic", "sqrt", "optimizer", step=23, steps=30, ops=("addcdiv_", "sqrt_", "_foreach_sqrt_", "_foreach_sqrt", "_foreach_addcmul", "addcmul", "_foreach_addcdiv_"), also=("sqrt-of-negative", "div-by-zero"))
def centred_moments_of_a_constant_gradient(fixed):
    w = nn.Parameter(torch.linspace(0.1, 2.3, 12))
    slope = torch.linspace(0.37, 1.91, 12)
    opt = torch.optim.RMSprop([w], lr=1e-3, alpha=0.5, centered=not fixed, eps=1e-12)

    def step(i):
        opt.zero_grad()
        loss = (w * slope).sum()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("dtype-overflow", "_to_copy", "forward", step=0, steps=3, building=True, ops=("to", "arange", "mul", "sin"), also=("poisoned-buffer", "inf-in-input"))
def table_of_positions_in_half(fixed):
    torch.manual_seed(7)

    class Positions(nn.Module):
        def __init__(self, length=70_000, width=2):
            super().__init__()
            at = torch.arange(0, length, 500).float() if fixed else torch.arange(0, length, 500).half()  # ORIGIN
            wave = at[:, None] * torch.tensor([1.0, 0.01], dtype=at.dtype)
            self.register_buffer("table", torch.sin(wave).float())  # ALSO

        def forward(self, x):
            return x + self.table

    net = nn.Sequential(Positions(), nn.Linear(2, 1))
    x = drawn(8, 140, 2)
    return net, train(net.parameters(), lambda i: net(x).square().mean(), lr=1e-2)


@fault("log-of-zero", "log", "forward", step=0, steps=3, building=True, ops=("expm1",), also=("poisoned-parameter",))
def start_of_a_positive_parameter_at_zero(fixed):
    torch.manual_seed(9)

    class Positive(nn.Module):
        def __init__(self, start):
            super().__init__()
            start = torch.as_tensor(start)
            self.raw = nn.Parameter(torch.log(torch.expm1(start)))  # ORIGIN

        def forward(self):
            return F.softplus(self.raw)

    scale, net = Positive([0.5, 0.1 if fixed else 0.0, 1.0]), nn.Linear(3, 3)
    x = drawn(10, 6, 3)
    both = nn.ModuleList([scale, net])

    def loss(i):
        return ((net(x) - x) / (scale() + 1e-3)).square().mean() + scale.raw.square().mean() * 1e-3

    return both, train(both.parameters(), loss, lr=1e-4)


@fault("mask-overflow", "mul", step=0, steps=3, ops=("add", "_to_copy"), also=("softmax-all-masked", "dtype-overflow"))
def padding_as_a_large_negative_bias_in_half(fixed):
    torch.manual_seed(11)
    q = nn.Linear(4, 4)
    x = drawn(12, 2, 5, 4)
    pad = torch.tensor([[0.0, 0, 0, 1, 1], [1.0, 1, 1, 1, 1]])

    def loss(i):
        h = q(x)
        scores = (h @ h.transpose(1, 2)).half()
        bias = pad[:, None].half() * (-6e4 if fixed else -1e5)  # ORIGIN
        p = torch.softmax(scores + bias, -1)  # ALSO
        return (p.float() @ h).square().mean()

    return q, train(q.parameters(), loss, lr=1e-2)


@fault("exploding-gradient", "mul", "backward", step=0, steps=3, ops=("mm", "addmm", "tanh", "matmul"), also=("dtype-overflow",))
def orbit_unrolled_for_a_long_time(fixed):
    """A chaotic map: its state stays in [0, 1], its derivative grows by 2 a turn."""
    r = nn.Parameter(torch.tensor(3.99))

    def loss(i):
        x = torch.tensor([0.3, 0.41])
        for t in range(400):
            x = r * x * (1 - x)  # ORIGIN
            if fixed and t % 10 == 0:
                x = x.detach()
        return (x - 0.5).square().sum()

    return None, train([r], loss, lr=1e-9)


@fault("learning-rate", "add_", "optimizer", step=11, steps=16, ops=("_foreach_add_", "sub_", "add", "mse_loss", "mul", "addmm"), also=("exploding-gradient", "dtype-overflow"))
def regression_on_raw_kilometres(fixed):
    torch.manual_seed(13)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = drawn(14, 32, 3) * (1.0 if fixed else 12.0)

    class Fit:
        def __init__(self, model, optimizer):
            self.model, self.optimizer, self.log = model, optimizer, []

        def run(self, batch):
            self.optimizer.zero_grad(set_to_none=True)
            loss = F.mse_loss(self.model(batch)[:, 0], batch.sum(1))
            loss.backward()
            self.optimizer.step()  # ORIGIN
            self.log.append(loss.item())
            return loss

    fit = Fit(net, opt)

    def step(i):
        return fit.run(x)

    return net, step


@fault("zero-times-inf", "mul", step=2, ops=("log", "sum"), also=("log-of-zero", "div-by-zero"))
def divergence_of_a_histogram_with_an_empty_bin(fixed):
    torch.manual_seed(15)
    net = nn.Linear(4, 6)

    def kl(p, q):
        if fixed:
            return torch.xlogy(p, p).sum(-1) - (p * q.log()).sum(-1)
        return (p * torch.log(p / q)).sum(-1)  # ORIGIN

    def loss(i):
        counts = drawn(i, 5, 6).abs() + 0.1
        if i == 2:
            counts[1, 3] = 0.0
        p = counts / counts.sum(1, keepdim=True)
        return kl(p, net(drawn(i, 5, 4)).softmax(-1)).mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("eps-underflow", "log", step=1, ops=("add",), also=("log-of-zero",))
def entropy_with_an_epsilon_that_half_cannot_hold(fixed):
    torch.manual_seed(16)
    net = nn.Linear(4, 4)

    def entropy(p):
        eps = 1e-4 if fixed else 1e-9
        return -(p * torch.log(p + eps)).sum(-1)  # ORIGIN

    def loss(i):
        x = drawn(i, 6, 4) * (40.0 if i == 1 else 1.0)
        p = net(x).softmax(-1).half()
        return entropy(p).float().mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("dead-gradient", "prod", "backward", step=0, steps=6, ops=("mul", "cumprod", "exp", "sigmoid"), also=("dtype-underflow",))
def survival_through_three_hundred_gates(fixed):
    """The product of many gates is exactly 0, and so is every derivative of it."""
    torch.manual_seed(17)
    gate = nn.Linear(2, 1)
    head = nn.Linear(1, 1)
    x = drawn(18, 8, 400, 2)

    def loss(i):
        if fixed:
            alive = F.logsigmoid(gate(x))[..., 0].mean(1, keepdim=True)
        else:
            alive = torch.sigmoid(gate(x))[..., 0].prod(1, keepdim=True)  # ORIGIN
        return (head(alive) - 0.3).square().mean()

    return nn.ModuleList([gate, head]), train([*gate.parameters(), *head.parameters()], loss, lr=1e-2)


@fault("absorbed-update", "add_", "optimizer", step=0, steps=8, ops=("sub_", "_foreach_add_", "add", "addcdiv_"))
def rate_below_the_last_place_of_float32(fixed):
    """Learned offsets in metres of a national grid: 1e-5 m is less than half a unit in the last place."""
    grid = nn.Parameter(torch.tensor([[4.51e6, 5.41e6], [4.52e6, 5.42e6]]) * (0 if fixed else 1))
    seen = grid.detach() + drawn(19, 2, 2)
    opt = torch.optim.Adam([grid], lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = (grid - seen).square().mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    step.parameters = {"grid": grid}
    return None, step


@fault("norm-at-zero", "div", step=3, also=("div-by-zero",), ops=("linalg_vector_norm",))
def prototype_of_a_class_that_cancels(fixed):
    torch.manual_seed(20)
    net = nn.Linear(3, 4, bias=False)

    def prototypes(z, y):
        mean = torch.stack([z[y == c].mean(0) for c in range(2)])
        return mean / (mean.norm(dim=1, keepdim=True) + (1e-6 if fixed else 0))  # ORIGIN

    def loss(i):
        x, y = drawn(i, 8, 3), torch.arange(8) % 2
        if i == 3:
            x[1::2] = torch.tensor([[1.0, 2, 3], [-1.0, -2, -3], [0.5, 0, 1], [-0.5, 0, -1]])
        return F.cross_entropy(net(x) @ prototypes(net(x), y).T, y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("std-of-constant", "div", step=2, also=("div-by-zero", "norm-at-zero", "sqrt-at-zero"), ops=("std", "sub", "rsqrt"))
def forward_hook_that_whitens_a_dead_layer(fixed):
    torch.manual_seed(21)
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))

    def whiten(module, args, out):
        return (out - out.mean(1, keepdim=True)) / (out.std(1, keepdim=True) + (1e-5 if fixed else 0))  # ORIGIN

    net[1].register_forward_hook(whiten)
    with torch.no_grad():
        net[0].bias.fill_(-0.5)
        net[0].bias[0] = 1.0

    def loss(i):
        x = drawn(i, 6, 3)
        if i == 2:
            with torch.no_grad():
                x[3] = torch.linalg.lstsq(net[0].weight, -(net[0].bias + 50.0)[:, None]).solution[:, 0]
                x[3] = 0
                net[0].bias[0] = -0.5
        return (net(x)[:, 0] - x[:, 0]).square().mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("exp-overflow", "exp", step=8, steps=14, also=("learning-rate", "dtype-overflow"), ops=("mul",))
def perplexity_as_a_weight_of_hard_documents(fixed):
    torch.manual_seed(22)
    net = nn.Linear(6, 30)
    scale = [1.0] * 8 + [300.0] * 6

    def loss(i):
        logits = net(drawn(i, 10, 6) * scale[i])
        each = F.cross_entropy(logits, torch.arange(10), reduction="none")
        weight = each.detach().clamp(max=10).exp() if fixed else torch.exp(each.detach())  # ORIGIN
        return (weight * each).mean() / 10

    return net, train(net.parameters(), loss, lr=1e-6)


@fault("nan-in-input", "addmm", "data", step=2, steps=5, ops=("linear", "mm", "gru_cell", "add", "mul"), also=("poisoned-buffer",))
def memory_that_survives_a_batch_with_gaps(fixed):
    """The bad batch is not learned from, but the hidden state has seen it."""
    torch.manual_seed(23)
    cell, head = nn.GRUCell(2, 4), nn.Linear(4, 1)
    params = [*cell.parameters(), *head.parameters()]
    opt = torch.optim.SGD(params, lr=0.05)
    h = torch.zeros(3, 4)

    def step(i):
        nonlocal h
        x = drawn(i, 3, 2)
        if i == 1:
            x[0, 1] = float("nan")  # DATA
        opt.zero_grad()
        new = cell(x, h.detach())  # ORIGIN
        loss = head(new).square().mean()  # ALSO
        if not loss.isfinite():
            if not fixed:
                h = new
            return torch.zeros(())
        loss.backward()
        opt.step()
        h = new
        return loss

    return nn.ModuleList([cell, head]), step


@fault("uninitialised-memory", "empty", "forward", step=0, steps=3, ops=("addmm", "mul", "add", "empty_like", "new_empty", "mm"))
def state_that_was_allocated_and_never_filled(fixed):
    torch.manual_seed(24)
    net = nn.Linear(3, 3)

    def blank(*shape):
        before = torch.utils.deterministic.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        try:
            return torch.zeros(*shape) if fixed else torch.empty(*shape)  # ORIGIN
        finally:
            torch.use_deterministic_algorithms(False)
            torch.utils.deterministic.fill_uninitialized_memory = before

    def loss(i):
        h = blank(4, 3)
        x = drawn(i, 4, 3)
        return (net(h * 0.5 + x)).square().mean()  # ALSO

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("log-of-negative", "log", step=12, steps=40, also=("learning-rate",), ops=("mul",))
def intensity_that_is_linear_in_its_features(fixed):
    """A point process whose rate is a linear function: one day it is below 0."""
    w = nn.Parameter(torch.tensor([1.0, 0.4]))
    x = torch.tensor([[1.0, -1.0], [1.0, 0.5], [1.0, 2.0]])
    count = torch.tensor([0.0, 1.0, 5.0])

    def step(i):
        w.grad = None
        rate = F.softplus(x @ w) if fixed else x @ w
        loss = (rate - count * torch.log(rate)).sum() if fixed else (rate[1:] - count[1:] * rate[1:].log()).sum() + (rate[0] - 0.1 * torch.log(rate[0]))  # ORIGIN
        loss.backward()
        with torch.no_grad():
            w.add_(torch.tensor([0.0, 0.05]))
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("empty-reduction", "mean", step=2, also=("div-by-zero", "nan-in-input"), ops=("div", "var", "std"))
def negatives_that_are_all_too_easy(fixed):
    torch.manual_seed(25)
    net = nn.Linear(4, 3)

    def mined(z, y, margin=0.5):
        d = 1 - F.normalize(z, dim=1) @ F.normalize(z, dim=1).T
        other = y[:, None] != y
        hard = (margin - d)[other & (d < margin)]
        near = d[(y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)]
        if fixed:
            return near.mean() + hard.sum() / max(len(hard), 1)
        return near.mean() + hard.mean()  # ORIGIN

    def loss(i):
        x, y = drawn(i, 8, 4), torch.arange(8) % 2
        if i == 2:
            x = torch.where(y[:, None] == 1, torch.ones(4) * 9, -torch.ones(4) * 9) + 0.01 * x
        return mined(net(x), y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("where-grad-trap", "log", "backward", step=2, ops=("div", "mul", "sqrt", "pow"), also=("log-of-zero", "zero-times-inf", "repair-forward-only"))
def logarithm_that_is_replaced_where_it_fails(fixed):
    torch.manual_seed(26)
    net = nn.Linear(3, 4, bias=False)

    def loss(i):
        rate = net(drawn(i, 6, 3) * (0.0 if i == 2 else 1.0)).square()
        if fixed:
            safe = torch.where(rate > 0, rate, torch.ones_like(rate))
            value = torch.where(rate > 0, safe.log(), torch.zeros_like(rate))
        else:
            value = torch.nan_to_num(torch.log(rate), neginf=0.0)  # ORIGIN
        return value.square().mean() * 1e-3

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("div-by-zero", "div", step=3, also=("empty-reduction",))
def recall_at_a_threshold_nobody_reaches(fixed):
    torch.manual_seed(27)
    net = nn.Linear(3, 1)

    def soft_f1(p, y):
        tp, fp, fn = (p * y).sum(), (p * (1 - y)).sum(), ((1 - p) * y).sum()
        if fixed:
            return 2 * tp / (2 * tp + fp + fn + 1e-8)
        precision, recall = tp / (tp + fp), tp / (tp + fn)  # ORIGIN
        return 2 * precision * recall / (precision + recall)  # ALSO

    def loss(i):
        x = drawn(i, 10, 3)
        y = (x[:, 0] > 0).float() * (i != 3)
        return 1 - soft_f1(torch.sigmoid(net(x))[:, 0], y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("dtype-underflow", "mul", "backward", step=0, steps=6, ops=("_to_copy", "div", "mse_loss", "mean", "pow", "to", "mm", "addmm"), also=("dead-gradient",))
def distillation_with_a_mean_over_a_vocabulary_in_half(fixed):
    torch.manual_seed(28)
    student, teacher = nn.Linear(6, 64), nn.Linear(6, 64).requires_grad_(False)
    x = drawn(29, 16, 6)
    opt = torch.optim.SGD(student.parameters(), lr=1.0)

    def step(i):
        opt.zero_grad()
        with torch.no_grad():
            goal = teacher(x)
        with torch.autocast("cpu", torch.float16, enabled=not fixed):
            out = student(x)  # ALSO
        loss = (out.float() - goal).square().sum(1).mean() / 64 / 1e6  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([student, teacher]), step


@fault("div-by-zero", "div", step=2, ops=("reciprocal",), also=("softmax-all-masked", "dtype-underflow", "zero-times-inf"))
def softmax_written_out_for_scores_far_below(fixed):
    torch.manual_seed(30)
    net = nn.Linear(4, 4)

    def attention(score):
        e = torch.exp(score - score.amax(-1, keepdim=True) if fixed else score)
        return e / e.sum(-1, keepdim=True)  # ORIGIN

    def loss(i):
        h = net(drawn(i, 5, 4))
        score = h @ h.T
        if i == 2:
            score = score - 150.0
        return (attention(score) @ h).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("custom-backward", "mul", "backward", step=2, ops=("div", "log", "exp", "sub"), also=("log-of-zero", "zero-times-inf", "div-by-zero", "exp-overflow"))
def logsumexp_with_a_derivative_of_its_own(fixed):
    torch.manual_seed(31)

    class LogSumExp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            m = x.amax(-1, keepdim=True)
            y = m + (x - m).exp().sum(-1, keepdim=True).log()
            ctx.save_for_backward(x)
            return y[..., 0]

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if fixed:
                return g[..., None] * x.softmax(-1)
            e = x.exp()  # ALSO
            return g[..., None] * e / e.sum(-1, keepdim=True)  # ORIGIN

    net = nn.Linear(4, 5)

    def loss(i):
        x = drawn(i, 6, 4)
        x = x * (900.0 if i == 2 else 1.0)
        z = net(x)
        return (LogSumExp.apply(z) - z[:, 0]).mean()

    return net, train(net.parameters(), loss, lr=1e-5)
