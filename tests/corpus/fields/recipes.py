"""Training recipes: adversaries, checkpoints, own optimizers, averages, collections of losses."""

import numpy as np
import torch
from programs import fault, train
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint_sequential


@fault("sqrt-at-zero", "sqrt", "backward", step=2, ops=("div", "mul", "pow"))
def penalty_of_a_critic_that_is_flat(fixed):
    torch.manual_seed(0)
    g, d = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    opt_g, opt_d = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (g, d))

    def critic_loss(real, fake):
        mid = (0.5 * real + 0.5 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(d(mid).sum(), mid, create_graph=True)
        square = slope.pow(2).sum(1)
        norm = torch.sqrt(square + 1e-12) if fixed else torch.sqrt(square)  # ORIGIN
        return d(fake).mean() - d(real).mean() + 10 * (norm - 1).square().mean()

    def step(i):
        gen = torch.Generator().manual_seed(i)
        if i == 2:
            d[0].bias.data.fill_(-50.0)
        real, z = torch.randn(2, 8, 2, generator=gen)
        opt_d.zero_grad()
        loss = critic_loss(real, g(z).detach())
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        (-d(g(z)).mean()).backward()
        opt_g.step()
        return loss

    step.parameters = {**{f"g{n}": p for n, p in enumerate(g.parameters())},
                       **{f"d{n}": p for n, p in enumerate(d.parameters())}}
    return nn.ModuleDict({"g": g, "d": d}), step


@fault("div-by-zero", "div", step=2, also=("norm-at-zero",))
def unit_features_in_checkpointed_segments(fixed):
    class Unit(nn.Module):
        def forward(self, h):
            length = torch.linalg.vector_norm(h, dim=-1, keepdim=True)
            return h / (length + 1e-6 if fixed else length)  # ORIGIN

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), Unit(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    net[0].bias.data.fill_(0.5)

    def loss(i):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i)) * 0.1
        if i == 2:
            net[0].bias.data[:] = -0.5
        out = checkpoint_sequential(net, 2, x, use_reentrant=False)
        return F.mse_loss(out, torch.ones_like(out))

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1, ops=("sub", "rsub"))
def scores_per_sample_by_vmap(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def nll(params, x, y):
        p = torch.sigmoid(functional_call(net, params, (x,)).squeeze(-1))
        if fixed:
            p = p.clamp(1e-6, 1 - 1e-6)
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p))  # ORIGIN

    per_sample = vmap(grad(nll), in_dims=(None, 0, 0))

    def step(i):
        gen = torch.Generator().manual_seed(i)
        x, y = torch.randn(5, 3, generator=gen), torch.zeros(5)
        if i == 1:
            x[2] = 200 * net.weight.detach()[0].sign()
        params = {k: p.detach() for k, p in net.named_parameters()}
        grads = per_sample(params, x, y)
        for name, p in net.named_parameters():
            p.grad = grads[name].mean(0)
        opt.step()
        return grads["weight"].square().sum()

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=1, also=("div-by-zero",))
def steps_of_unit_size_for_an_unused_row(fixed):
    class Normalised(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-2):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    rows = p.grad.abs().sum(-1, keepdim=True)
                    rows = rows.clamp(min=1e-8) if fixed else rows
                    p.add_(p.grad / rows, alpha=-group["lr"])  # ORIGIN

    torch.manual_seed(3)
    net = nn.Embedding(5, 4)
    opt = Normalised(net.parameters())

    def step(i):
        ids = torch.arange(5) if i == 0 else torch.tensor([0, 1, 3])
        opt.zero_grad()
        loss = (net(ids) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("zero-times-inf", "mul", step=1, ops=("log", "div"), also=("log-of-zero", "div-by-zero"))
def divergence_of_jensen_and_shannon_by_hand(fixed):
    torch.manual_seed(4)
    student, teacher = nn.Linear(4, 5), nn.Linear(4, 5)

    def kl(p, m):
        if fixed:
            return (torch.xlogy(p, p) - p * torch.log(m)).sum(-1)
        return (p * torch.log(p / m)).sum(-1)  # ORIGIN

    def loss(i):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i))
        p = student(x).softmax(-1)
        with torch.no_grad():
            q = (teacher(x) * (300 if i == 1 else 1)).softmax(-1)
        m = (p + q) / 2
        return 0.5 * (kl(p, m) + kl(q, m)).mean()

    return student, train(student.parameters(), loss)


@fault("div-by-zero", "div", "init", step=0, also=("norm-at-zero", "poisoned-buffer"), building=True)
def queue_of_negatives_that_begins_empty(fixed):
    torch.manual_seed(5)

    class Contrast(nn.Module):
        def __init__(self, dim=4, size=6):
            super().__init__()
            self.encoder = nn.Linear(3, dim)
            queue = torch.randn(dim, size) if fixed else torch.zeros(dim, size)
            self.register_buffer("queue", queue / queue.norm(dim=0))  # ORIGIN

        def forward(self, a, b):
            q, k = (F.normalize(self.encoder(v), dim=1) for v in (a, b))
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue], 1) / 0.2
            return F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))

    net, gen = Contrast(), torch.Generator().manual_seed(6)
    return net, train(net.parameters(), lambda i: net(*torch.randn(2, 5, 3, generator=gen)))


@fault("nan-in-input", "convolution", "data", step=2, ops=("from_numpy", "mkldnn_convolution", "_to_copy", "stack", "cat", "sub", "div"))
def image_standardised_by_numpy(fixed):
    torch.manual_seed(7)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))
    rng = np.random.default_rng(0)

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, n):
            image = rng.normal(size=(1, 4, 4)).astype(np.float32)
            if n == 9:
                image[:] = 0.5
            with np.errstate(invalid="ignore"):
                return (image - image.mean()) / (image.std() + (1e-6 if fixed else 0))  # DATA

    batches = list(torch.utils.data.DataLoader(Images(), batch_size=4))

    def loss(i):
        return (net(batches[i]) - 1).square().mean()  # ORIGIN

    loss_and_step = train(net.parameters(), loss)
    return net, loss_and_step


@fault("nan-in-target", "mul", "data", step=1, ops=("sub", "pow", "mse_loss"), also=("zero-times-inf",))
def missing_label_times_a_mask(fixed):
    torch.manual_seed(8)
    net = nn.Linear(3, 2)

    def masked_error(out, target, mask):
        if fixed:
            target = target.nan_to_num(0.0)
        return ((out - target).square() * mask).sum() / mask.sum()  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x, y = torch.randn(6, 3, generator=gen), torch.randn(6, 2, generator=gen)
        if i == 1:
            y[2, 1] = float("nan")  # DATA
        return masked_error(net(x), y, ~y.isnan())  # ALSO

    return net, train(net.parameters(), loss)


@fault("custom-backward", "div", "backward", step=1, ops=("exp", "mul"))
def own_log_sum_exp_whose_derivative_overflows(fixed):
    class LogSumExp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            top = x.max(-1, keepdim=True).values
            out = (x - top).exp().sum(-1, keepdim=True).log() + top
            ctx.save_for_backward(x, out)
            return out.squeeze(-1)

        @staticmethod
        def backward(ctx, upstream):
            x, out = ctx.saved_tensors
            if fixed:
                return upstream[:, None] * (x - out).exp()
            return upstream[:, None] * (x.exp() / out.exp())  # ORIGIN

    torch.manual_seed(9)
    net = nn.Linear(4, 5)

    def loss(i):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i)) * (300 if i == 1 else 1)
        logits = net(x)
        return (LogSumExp.apply(logits) - logits[:, 0]).mean()  # ALSO

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", "init", step=0, ops=("reciprocal", "mul", "rsqrt"), also=("poisoned-parameter",), building=True)
def start_of_a_layer_without_inputs(fixed):
    torch.manual_seed(10)

    def scaled(shape, groups):
        fan = torch.tensor(float(shape[1] // groups))
        std = torch.sqrt(2.0 / (fan.clamp(min=1) if fixed else fan))  # ORIGIN
        return nn.Parameter(torch.randn(shape) * std)

    net = nn.Module()
    net.weight = scaled((3, 4), groups=8)
    x = torch.randn(5, 4)
    return net, train([net.weight], lambda i: (x @ net.weight.T).tanh().square().mean())


@fault("inf-minus-inf", "add", step=1, ops=("sub", "mean", "sum"))
def centre_of_an_unbounded_interval(fixed):
    torch.manual_seed(11)
    net = nn.Linear(2, 1)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(4, 2, generator=gen)
        low, high = torch.full((4,), -2.0), torch.full((4,), 2.0)
        if i == 1:
            low[1], high[1] = -torch.inf, torch.inf
        if fixed:
            low, high = low.clamp(min=-100), high.clamp(max=100)
        centre = (low + high) / 2  # ORIGIN
        return F.smooth_l1_loss(net(x).squeeze(-1), centre)

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "lgamma", step=2, ops=("sub", "add"), also=("inf-minus-inf",))
def counts_of_a_topic_without_mass(fixed):
    torch.manual_seed(12)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    net[0].bias.data.fill_(3.0)

    def dirichlet_multinomial(alpha, n):
        if fixed:
            alpha = alpha + 1e-3
        a = alpha.sum(-1)
        head = torch.lgamma(a) - torch.lgamma(a + n.sum(-1))  # ALSO
        return head + (torch.lgamma(alpha + n) - torch.lgamma(alpha)).sum(-1)  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(5, 3, generator=gen) * (20 if i == 2 else 0.3)
        n = torch.randint(1, 5, (5, 4), generator=gen).float()
        return -dirichlet_multinomial(net(x), n).mean()

    return net, train(net.parameters(), loss)
