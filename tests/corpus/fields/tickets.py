"""Training scripts as they come with a bug ticket: one fault each."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("dead-gradient", "threshold", "backward", step=0, steps=6, ops=("relu", "threshold_backward", "clamp", "clamp_min"))
def detector_whose_boxes_are_clamped_to_the_picture(fixed):
    """The offsets are in pixels, the picture in shares: every corner is cut off."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    nn.init.constant_(net.bias, 0.5 if fixed else 60.0)
    x, boxes = rows(1, 16, 6), torch.rand(16, 4, generator=torch.Generator().manual_seed(2))

    def loss(i):
        corner = net(x).clamp(0.0, 1.0)  # ORIGIN
        return F.l1_loss(corner, boxes)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("absorbed-update", "add_", "optimizer", steps=6, ops=("_foreach_add_", "sub_", "addcdiv_", "_foreach_addcdiv_"))
def policy_in_half_with_the_rate_of_the_paper(fixed):
    torch.manual_seed(0)
    net = nn.Linear(8, 3).to(torch.float32 if fixed else torch.float16)
    with torch.no_grad():
        net.weight.add_(torch.sign(net.weight))
        net.bias.add_(1)
    opt = torch.optim.SGD(net.parameters(), lr=2.5e-5)
    x, y = rows(3, 24, 8), torch.arange(24) % 3

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x.to(net.weight.dtype)).float(), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step


@fault("nan-in-target", "mse_loss", "data", step=2, ops=("sub", "pow"))
def returns_of_a_price_that_was_not_quoted(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
    price = 10 + rows(4, 40).cumsum(0).abs()
    price[27] = float("nan")  # DATA
    if fixed:
        price[27] = price[26]
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    def step(i):
        at = torch.arange(8 * (i % 4), 8 * (i % 4) + 8)
        x = rows(5 + i % 4, 8, 5)
        y = price[at]
        loss = F.mse_loss(net(x)[:, 0], y)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    def late(i):
        return step(i + 1)

    return net, late


@fault("div-by-zero", "div", step=1)
def focal_weights_by_the_frequency_in_the_batch(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    x = rows(9, 3, 12, 6)
    y = torch.stack([torch.arange(12) % 4, torch.arange(12) % 3, torch.arange(12) % 4])
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(i):
        count = torch.bincount(y[i % 3], minlength=4).float()
        if fixed:
            count = count.clamp(min=1)
        weight = 12 / (4 * count)  # ORIGIN
        weight = weight / weight.sum()
        loss = F.cross_entropy(net(x[i % 3]), y[i % 3], weight=weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("exp-overflow", "exp", step=0, ops=("sum", "pow"))
def energies_of_a_model_summed_by_hand(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))
    x = rows(10, 32, 4)
    noise = 150 * rows(11, 32, 4)

    def loss(i):
        low, high = -net(x)[:, 0], -20 * net(noise)[:, 0]
        if fixed:
            return -(low.mean() - high.logsumexp(0)) * 1e-3
        return -(low.mean() - torch.log(torch.exp(high).sum()))  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("sqrt-of-negative", "sqrt", step=0)
def running_spread_by_the_mean_of_squares(fixed):
    """E[x^2] - E[x]^2 in float32 of values next to a thousand."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x = 4000 + 1e-3 * rows(12, 64, 4)

    def loss(i):
        mean, square = x.mean(0), x.square().mean(0)
        var = x.var(0) if fixed else square - mean.square() - 1e-3
        std = torch.sqrt(var)  # ORIGIN
        return net((x - mean) / (std + 1e-5)).square().mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("log-of-zero", "log", step=1, ops=("sub", "xlogy"))
def entropy_of_attention_with_forbidden_places(fixed):
    torch.manual_seed(0)
    q, k = nn.Linear(6, 6), nn.Linear(6, 6)
    x = rows(13, 3, 5, 6)
    causal = torch.ones(5, 5).triu(1).bool()

    def loss(i):
        score = q(x[i % 3]) @ k(x[i % 3]).T
        if i >= 1:
            score = score.masked_fill(causal, float("-inf"))
        p = score.softmax(-1)
        each = torch.special.entr(p.clamp(min=1e-9)) if fixed else -p * torch.log(p)  # ORIGIN
        return each.sum(-1).mean()

    return nn.ModuleList([q, k]), train([*q.parameters(), *k.parameters()], loss, lr=0.1)


@fault("sqrt-at-zero", "sqrt", "backward", ops=("mul", "div"), also=("norm-at-zero",))
def gradient_penalty_where_the_critic_is_flat(fixed):
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        critic[0].bias.fill_(-1.0)
    x = rows(14, 16, 3)
    x[2] = 0

    def loss(i):
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(critic(at).sum(), at, create_graph=True)
        size = (slope.square().sum(1) + 1e-12).sqrt() if fixed else slope.square().sum(1).sqrt()  # ORIGIN
        return (size - 1).square().mean() + critic(x).mean()

    def finite(i):
        return loss(i)

    return critic, train(critic.parameters(), finite, lr=1e-3)


@fault("pow-fraction-at-zero", "pow", "backward")
def gamma_correction_of_black_pixels(fixed):
    torch.manual_seed(0)
    net = nn.Conv2d(1, 1, 3, padding=1)
    x = rows(15, 2, 1, 8, 8)

    def loss(i):
        light = net(x)
        light = light * (light > 0)
        if fixed:
            light = light + 1e-4
        shown = light ** (1 / 2.2)  # ORIGIN
        return (shown - 0.5).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("empty-reduction", "mean", step=2)
def loss_of_the_foreground_without_foreground(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    x = rows(16, 4, 10, 6)
    kind = torch.randint(0, 2, (4, 10), generator=torch.Generator().manual_seed(17))
    kind[2] = 0
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    def step(i):
        out = net(x[i % 4])
        chosen = F.smooth_l1_loss(out[kind[i % 4] == 1], x[i % 4][kind[i % 4] == 1][:, :2], reduction="none")
        near = chosen.sum() / max(chosen.numel(), 1) if fixed else chosen.mean()  # ORIGIN
        loss = near + 0.1 * out.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("degenerate-matrix", "linalg_cholesky_ex", "forward", ops=("cholesky", "linalg_cholesky", "linalg_eigh", "_linalg_eigh", "div", "reciprocal", "linalg_inv_ex", "linalg_inv", "sub", "pow"), also=("div-by-zero",), steps=1)
def whitening_of_features_that_repeat(fixed):
    """Eigenvalues that are equal: the derivative of the vectors divides by their differences."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3, 4))
        net.bias.zero_()
    x = torch.cat([torch.eye(4), -torch.eye(4)])

    def loss(i):
        z = net(x)
        cov = z.T @ z / 8
        if fixed:
            cov = cov + torch.diag(torch.tensor([0.01, 0.02, 0.03]))
        values, vectors = torch.linalg.eigh(cov)  # ORIGIN
        return (vectors[:, 0] * torch.arange(3.0)).sum().square() + values.sum()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("infeasible-likelihood", "_ctc_loss", step=1, ops=("ctc_loss", "mean"), also=("intended-inf-in-loss",))
def transcript_longer_than_its_recording(fixed):
    torch.manual_seed(0)
    net = nn.GRU(5, 8, batch_first=True)
    head = nn.Linear(8, 6)
    x = rows(18, 3, 2, 7, 5)
    text = torch.tensor([[[1, 2, 3], [4, 5, 1]], [[1, 1, 2], [3, 3, 3]], [[2, 3, 4], [5, 4, 3]]])
    length = torch.tensor([[7, 5], [7, 4], [6, 7]])
    opt = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-2)

    def step(i):
        logp = head(net(x[i % 3])[0]).log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(logp, text[i % 3], length[i % 3], torch.tensor([3, 3]), zero_infinity=fixed)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([net, head]), step


@fault("eps-underflow", "div", "forward", ops=("add", "rsqrt", "sqrt", "_to_copy"), also=("div-by-zero",))
def layer_norm_by_hand_in_half(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 8).half()
    x = rows(19, 6, 4).half()
    x[2] = 0
    with torch.no_grad():
        net.bias.zero_()

    def loss(i):
        h = net(x)
        h = h - h.mean(-1, keepdim=True)
        std = torch.sqrt(h.square().mean(-1, keepdim=True) + (1e-4 if fixed else 1e-8))  # ALSO
        return ((h / std).float() - 0.5)[:, :3].square().mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=0.1)


@fault("dtype-overflow", "bmm", ops=("matmul", "mm", "mul", "_to_copy", "baddbmm"), step=0)
def attention_in_half_without_its_scale(fixed):
    torch.manual_seed(0)
    wide = torch.float32 if fixed else torch.float16
    q, k = nn.Linear(64, 64).to(wide), nn.Linear(64, 64).to(wide)
    with torch.no_grad():
        k.weight.copy_(q.weight)
    x = (60 * rows(20, 2, 9, 64)).to(wide)

    def loss(i):
        a, b = q(x), k(x)
        score = a @ b.transpose(1, 2)  # ORIGIN
        return ((score / 8e3).softmax(-1) @ x).float().square().mean() / 3600

    return nn.ModuleList([q, k]), train([*q.parameters(), *k.parameters()], loss, lr=1e-3)


@fault("div-by-zero", "div", also=("norm-at-zero",))
def yaw_of_a_vehicle_that_has_not_moved(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 2, bias=False)
    track = rows(21, 10, 4)
    track[6] = 0

    def loss(i):
        dx, dy = net(track).unbind(1)
        yaw = torch.asin(0.99 * dy / torch.sqrt(dx**2 + dy**2 + 1e-8) if fixed else 0.99 * dy / torch.sqrt(dx**2 + dy**2))  # ORIGIN
        return (yaw - 0.1).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("custom-backward", "log", "backward", ops=("div", "MyEntropyBackward"), also=("log-of-zero",))
def entropy_with_a_backward_of_its_own(fixed):
    class MyEntropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, p):
            ctx.save_for_backward(p)
            return -torch.xlogy(p, p).sum(-1)

        @staticmethod
        def backward(ctx, g):
            (p,) = ctx.saved_tensors
            safe = p.clamp(min=1e-7) if fixed else p
            return -g[:, None] * (torch.log(safe) + 1)  # ALSO

    torch.manual_seed(0)
    net = nn.Linear(5, 6)
    x = rows(22, 8, 5)

    def loss(i):
        h = torch.relu(net(x)) + 1e-3 * (torch.arange(6) == 0)
        p = h / h.sum(-1, keepdim=True)
        return MyEntropy.apply(p).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("optimizer-arithmetic", "div", "optimizer", step=0, ops=("sqrt", "addcdiv_", "mul", "pow", "reciprocal", "rsub"), also=("div-by-zero",))
def bias_correction_that_counts_from_zero(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    moments = [torch.zeros_like(p) for p in net.parameters()]
    count = torch.zeros(())
    x, y = rows(23, 16, 4), torch.arange(16) % 2

    def step(i):
        nonlocal count
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        if fixed:
            count = count + 1
        with torch.no_grad():
            for p, m in zip(net.parameters(), moments, strict=True):
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                p.sub_(0.1 * m / (1 - 0.9**count))  # ORIGIN
        if not fixed:
            count = count + 1
        return loss

    return net, step


@fault("zero-times-inf", "mul", step=0, ops=("sum",))
def masked_loss_of_log_chances(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 4)
    x = rows(24, 6, 5)
    legal = torch.tensor([1.0, 1, 0, 1])

    def loss(i):
        logp = net(x).masked_fill(legal == 0, float("-inf")).log_softmax(-1)
        target = legal / legal.sum()
        if fixed:
            logp = logp.masked_fill(legal == 0, 0.0)
        return -(target * logp).sum(-1).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("where-grad-trap", "div", "backward", ops=("reciprocal", "mul"))
def inverse_distances_with_the_own_place_left_out(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    x = rows(25, 6, 3)
    eye = torch.eye(6, dtype=torch.bool)

    def loss(i):
        z = net(x)
        sq = (z[:, None] - z[None]).square().sum(-1)
        if fixed:
            sq = sq.masked_fill(eye, 1.0)
        force = 1 / sq  # ORIGIN
        return torch.where(eye, torch.zeros(()), force).mean().log()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("exploding-gradient", "mm", "backward", ops=("mul", "_to_copy", "addmm", "sum", "tanh"), also=("dtype-overflow", "learning-rate"))
def linear_network_of_two_hundred_layers(fixed):
    torch.manual_seed(0)
    gain = 0.99 if fixed else 1.9
    layers = nn.ParameterList([nn.Parameter(gain * torch.eye(4) * (1 if n % 2 else -1)) for n in range(160)])
    x = 1e-30 * rows(26, 4, 4) if not fixed else rows(26, 4, 4)

    def loss(i):
        h = x
        for w in layers:
            h = h @ w  # ORIGIN
        return (h * 1e10).mean() if not fixed else h.mean()  # ALSO

    return layers, train(layers.parameters(), loss, lr=1e-3)


@fault("poisoned-gradient", "add", "backward", step=1, ops=("add_", "mul", "addmm", "linear", "pow"), also=("inf-in-input",))
def gradients_of_a_bad_batch_are_kept(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    x = rows(27, 5, 8, 4)
    x[1, 3, 2] = float("inf")  # DATA

    def step(i):
        if fixed and not bool(x[i % 5].isfinite().all()):
            return torch.zeros(())
        value = net(x[i % 5])  # ALSO
        loss = value.square().mean()
        loss.backward()  # ORIGIN
        if bool(torch.isfinite(loss)):
            opt.step()
            opt.zero_grad()
        return loss

    return net, step


@fault("learning-rate", "add_", "optimizer", step=6, steps=12, also=("exploding-gradient", "dtype-overflow"), ops=("_foreach_add_", "mse_loss", "pow", "mul", "mm", "addmm"))
def momentum_and_rate_of_another_model(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01 if fixed else 6.0, momentum=0.95)
    x = 10 * rows(28, 64, 6)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x)[:, 0], x.sum(1))  # ALSO
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    if fixed:
        x = x / 10
    return net, step


@fault("uninitialised-memory", "empty", "init", ops=("mul", "add", "mm", "addmm", "empty_like", "new_empty"), also=("poisoned-parameter", "nan-in-input", "poisoned-buffer"))
def relative_positions_that_nobody_filled(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    torch.use_deterministic_algorithms(True)
    table = nn.Parameter(torch.empty(5, 6))  # DATA
    torch.use_deterministic_algorithms(False)
    if fixed:
        nn.init.zeros_(table)
    x, y = rows(29, 5, 6), torch.arange(5) % 2

    def loss(i):
        return F.cross_entropy(net(x + table), y)  # ORIGIN

    return None, train([table, *net.parameters()], loss, lr=0.1)


@fault("inf-minus-inf", "sub", step=1, ops=("logsumexp", "add"), also=("softmax-all-masked",))
def log_ratio_of_two_impossible_paths(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x = rows(30, 8, 4)
    dead = torch.tensor([0.0, 0.0, -math.inf])

    def loss(i):
        a = net(x).log_softmax(-1)
        b = net(x.flip(0)).log_softmax(-1).detach()
        if i >= 1:
            a, b = a + dead, b + dead
        ratio = (a - b)[:, :2] if fixed else a - b  # ORIGIN
        return (ratio - 0.1).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("dtype-underflow", "mul", "backward", steps=5, ops=("_to_copy", "div", "mm", "mean", "sum", "pow", "mse_loss", "mse_loss_backward", "sub", "linear"), also=("dead-gradient",))
def loss_in_half_that_nobody_scales(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    net = net.half()
    x = rows(31, 64, 8).half()

    def loss(i):
        out = net(x)
        if fixed:
            return (out.float() - 0.5).square().mean()
        return (1e-6 * (out - 0.5).square()).mean().float()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("mask-overflow", "div", ops=("_softmax", "mul", "masked_fill", "_to_copy", "sub"), also=("dtype-overflow", "softmax-all-masked"))
def mask_divided_by_the_temperature(fixed):
    torch.manual_seed(0)
    proj = nn.Linear(8, 8).half()
    x = rows(32, 2, 4, 8).half()
    pad = torch.zeros(2, 1, 4, dtype=torch.bool)
    pad[1] = True

    def loss(i):
        score = proj(x) @ x.transpose(1, 2)
        if fixed:
            score = (score / 0.5).masked_fill(pad, torch.finfo(torch.float16).min)
        else:
            score = score.masked_fill(pad, torch.finfo(torch.float16).min) / 0.5  # ORIGIN
        return (score.softmax(-1) @ x).float().square().mean()  # ALSO

    return proj, train(proj.parameters(), loss, lr=0.1)


@fault("std-of-constant", "std", "backward", ops=("sqrt", "var", "div", "mul"), also=("sqrt-at-zero", "div-by-zero"))
def diversity_of_a_minibatch_that_has_collapsed(fixed):
    torch.manual_seed(0)
    gen = nn.Linear(3, 4)
    with torch.no_grad():
        gen.weight.zero_()
    z = rows(33, 12, 3)

    def loss(i):
        fake = gen(z)
        spread = (fake.var(0) + (1e-6 if fixed else 0)).sqrt()  # ORIGIN
        return -spread.mean() + fake.square().mean()

    return gen, train(gen.parameters(), loss, lr=1e-2)


@fault("inverse-function-domain", "atanh", step=0)
def squashed_action_from_the_memory(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    states = rows(34, 10, 4)
    actions = torch.tanh(3 * rows(35, 10, 2)) * 1.01

    def loss(i):
        a = actions.clamp(-0.999, 0.999) if fixed else actions
        raw = torch.atanh(a)  # ORIGIN
        return (raw - net(states)).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("div-by-tiny", "div", step=0, ops=("reciprocal", "mul"), also=("dtype-overflow", "div-by-zero"))
def importance_weights_of_a_policy_that_was_sure(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x = rows(36, 8, 4)
    old = torch.full((8,), 0.3)
    old[5] = 1e-40

    def loss(i):
        p = net(x).softmax(-1)[:, 0]
        ratio = p / (old.clamp(min=1e-6) if fixed else old)  # ORIGIN
        return -(ratio.clamp(max=1e6) * 1e-6 if fixed else ratio).mean()

    return net, train(net.parameters(), loss, lr=0.1)


@fault("repair-forward-only", "log", "backward", ops=("div", "sub", "mul"), also=("log-of-zero", "where-grad-trap"))
def score_repaired_after_its_logarithm(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 1)
    x = rows(37, 10, 5)

    def loss(i):
        share = net(x)[:, 0]
        share = share * (share > 0)
        if fixed:
            share = share + 1e-4
        score = torch.nan_to_num(torch.log(share), neginf=-5.0)  # ORIGIN
        return (score * share + 0.01 * score).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)
