"""Healthy programs of many fields that look suspicious."""

import copy
import math

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@healthy("the infinite ratio of signal to noise at time 0 is clamped")
def weights_of_a_schedule_that_begins_clean(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    alpha_bar = torch.cos(torch.linspace(0, 1, 21) * math.pi / 2) ** 2

    def loss(i):
        t = torch.tensor([0, 3, 9, 15])
        snr = alpha_bar[t] / (1 - alpha_bar[t])
        weight = snr.clamp(max=5) / (snr + 1).clamp(max=6)
        x, n = drawn(i, 4, 2), drawn(i + 5, 4, 2)
        a = alpha_bar[t][:, None]
        v = a.sqrt() * n - (1 - a).sqrt() * x
        guess = net(torch.cat([a.sqrt() * x + (1 - a).sqrt() * n, t[:, None] / 20], 1))
        return (weight * (guess - v).square().mean(1)).mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@healthy("the time of a missing event is infinite; its survival is 0 and is meant")
def hazard_with_times_that_never_come(fixed):
    torch.manual_seed(1)
    net = nn.Linear(2, 1)
    time = torch.tensor([1.0, 2.0, float("inf"), 0.5])

    def loss(i):
        rate = F.softplus(net(drawn(2, 4, 2)))[:, 0]
        known = time.isfinite()
        t = torch.where(known, time, torch.ones(()))
        return (rate * t - torch.where(known, rate.log(), torch.zeros(()))).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("impossible transitions cost infinity; a minimum is taken over the others")
def shortest_path_over_a_soft_grid(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 1)
    wall = torch.tensor([[0, 0, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0]]).bool()

    def loss(i):
        cost = F.softplus(net(drawn(3, 3, 4, 3)))[..., 0].masked_fill(wall, math.inf)
        best = [[None] * 4 for _ in range(3)]
        for r in range(3):
            for c in range(4):
                ways = [best[r - 1][c] if r else None, best[r][c - 1] if c else None]
                ways = [w for w in ways if w is not None]
                best[r][c] = cost[r, c] + (torch.stack(ways).amin() if ways else 0)
        return best[2][3]

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("a log-domain transport plan between clouds far apart: most of it underflows")
def plan_whose_entries_are_nearly_all_zero(fixed):
    torch.manual_seed(3)
    net = nn.Linear(2, 2)
    y = drawn(4, 6, 2) * 5

    def loss(i):
        x = net(drawn(5, 6, 2) * 5)
        cost = torch.cdist(x, y) ** 2
        f, g = torch.zeros(6), torch.zeros(6)
        for _ in range(8):
            f = -0.05 * torch.logsumexp((g - cost) / 0.05, 1)
            g = -0.05 * torch.logsumexp((f[:, None] - cost) / 0.05, 0)
        plan = torch.exp((f[:, None] + g - cost) / 0.05)
        return (plan.detach() * cost).sum() / 6

    return net, train(net.parameters(), loss, lr=1e-3)


@healthy("LoRA begins with B = 0, so A has no gradient in the first step")
def adapters_of_low_rank(fixed):
    torch.manual_seed(4)
    base = nn.Linear(5, 5).requires_grad_(False)
    a, b = nn.Parameter(torch.randn(2, 5) * 0.3), nn.Parameter(torch.zeros(5, 2))
    x, y = drawn(6, 12, 5), drawn(7, 12, 5)
    return None, train([a, b], lambda i: F.mse_loss(base(x) + x @ a.T @ b.T, y), lr=0.1)


@healthy("an expert without tokens is skipped in this batch, and has no gradient")
def experts_some_of_which_rest(fixed):
    torch.manual_seed(5)
    gate = nn.Linear(4, 4)
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def loss(i):
        x = drawn(i, 5, 4)
        p = gate(x).softmax(-1)
        weight, choice = p.max(-1)
        out = torch.zeros(5, 4)
        for k in choice.unique().tolist():
            rows = (choice == k).nonzero()[:, 0]
            out = out.index_copy(0, rows, experts[k](x[rows]) * weight[rows, None])
        load = F.one_hot(choice, 4).float().mean(0)
        return (out - x).square().mean() + 0.01 * 4 * (load * p.mean(0)).sum()

    return nn.ModuleList([gate, *experts]), train([*gate.parameters(), *experts.parameters()], loss, lr=0.05)


@healthy("an isolated node has degree 0; its infinite factor is set to 0")
def convolution_with_a_node_of_its_own(fixed):
    torch.manual_seed(6)
    lin = nn.Linear(3, 2)
    edges = torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2]])
    x = drawn(8, 4, 3)

    def loss(i):
        degree = torch.zeros(4).index_add(0, edges[1], torch.ones(4))
        factor = degree.pow(-0.5)
        factor = factor.masked_fill(factor == math.inf, 0.0)
        w = factor[edges[0]] * factor[edges[1]]
        h = lin(x)
        return (h + torch.zeros(4, 2).index_add(0, edges[1], w[:, None] * h[edges[0]])).square().mean()

    return lin, train(lin.parameters(), loss, lr=0.05)


@healthy("SAM divides by a norm with an epsilon; the perturbation is taken back")
def flat_minimum_by_two_gradients(fixed):
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, y = drawn(9, 16, 4), torch.arange(16) % 2

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            n = torch.stack([p.grad.norm() for p in net.parameters()]).norm() + 1e-12
            moves = [0.05 * p.grad / n for p in net.parameters()]
            for p, m in zip(net.parameters(), moves, strict=True):
                p += m
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), moves, strict=True):
                p -= m
        opt.step()
        return loss

    return net, step


@healthy("the queue is filled with zeros by F.normalize until keys have come")
def queue_of_keys_that_fills_up(fixed):
    torch.manual_seed(8)
    q = nn.Linear(4, 3)
    k = copy.deepcopy(q).requires_grad_(False)
    queue = torch.zeros(12, 3)
    opt = torch.optim.SGD(q.parameters(), lr=0.05)

    def step(i):
        x = drawn(i, 4, 4)
        opt.zero_grad()
        a = F.normalize(q(x), dim=1)
        with torch.no_grad():
            for p, r in zip(k.parameters(), q.parameters(), strict=True):
                p.lerp_(r, 0.01)
            b = F.normalize(k(x + 0.1), dim=1)
        old = F.normalize(queue, dim=1)
        logits = torch.cat([(a * b).sum(1, keepdim=True), a @ old.T], 1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long))
        loss.backward()
        opt.step()
        at = 4 * (i % 3)
        queue[at : at + 4] = b
        return loss

    return q, step


@healthy("DPO against a frozen reference: equal at first, so every margin is 0")
def preferences_that_begin_at_the_reference(fixed):
    torch.manual_seed(9)
    policy = nn.Linear(4, 6)
    reference = copy.deepcopy(policy).requires_grad_(False)
    x, good, bad = drawn(10, 8, 4), torch.arange(8) % 6, (torch.arange(8) + 2) % 6

    def loss(i):
        def margin(m):
            logp = m(x).log_softmax(-1)
            return (logp.gather(1, good[:, None]) - logp.gather(1, bad[:, None]))[:, 0]

        with torch.no_grad():
            ref = margin(reference)
        return -F.logsigmoid(0.1 * (margin(policy) - ref)).mean()

    return nn.ModuleList([policy, reference]), train(policy.parameters(), loss, lr=0.5)


@healthy("PPO: ratios are 1 in the first epoch, the clip bites later")
def surrogate_that_is_clipped(fixed):
    torch.manual_seed(10)
    net = nn.Linear(4, 3)
    x, action = drawn(11, 16, 4), torch.arange(16) % 3
    adv = drawn(12, 16)
    with torch.no_grad():
        old = net(x).log_softmax(-1).gather(1, action[:, None])[:, 0]

    def loss(i):
        logp = net(x).log_softmax(-1)
        ratio = (logp.gather(1, action[:, None])[:, 0] - old).exp()
        return -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() + 0.01 * (logp.exp() * logp).sum(-1).mean()

    return net, train(net.parameters(), loss, lr=2.0)


@healthy("impossible labels are -inf in a forward variable and meet possible ones by logaddexp with a floor")
def alignment_lattice_with_a_floor(fixed):
    torch.manual_seed(11)
    net = nn.Linear(3, 4)
    x, label = drawn(13, 6, 3), torch.tensor([1, 2])

    def loss(i):
        logp = net(x).log_softmax(-1)
        alpha = torch.tensor([0.0, -1e30, -1e30])
        for t in range(6):
            stay = alpha + logp[t, 0]
            move = torch.cat([torch.full((1,), -1e30), alpha[:-1] + logp[t, label]])
            alpha = torch.logaddexp(stay, move)
        return -alpha[-1]

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("CTC with zero_infinity: one target is longer than its input")
def recogniser_with_a_target_that_does_not_fit(fixed):
    torch.manual_seed(12)
    net = nn.Linear(4, 5)

    def loss(i):
        logp = net(drawn(i, 6, 3, 4)).log_softmax(-1)
        target = torch.tensor([[1, 2, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1], [3, 4, 2, 0, 0, 0, 0]])
        return F.ctc_loss(logp, target, torch.tensor([6, 6, 6]), torch.tensor([2, 7, 3]), zero_infinity=True)

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("a silent clip: the spectrogram has a floor before the logarithm")
def mel_of_a_clip_that_is_silent(fixed):
    torch.manual_seed(13)
    net = nn.Linear(17, 2)
    window = torch.hann_window(32)

    def loss(i):
        wave = drawn(i, 2, 128)
        wave[1] = 0
        s = torch.stft(wave, 32, 16, window=window, return_complex=True).abs().square()
        return net((s.clamp_min(1e-10).log10() * 10).mean(-1)).square().mean()

    return net, train(net.parameters(), loss, lr=1e-6)


@healthy("gaps in a series are NaN, and never chosen", steps=5)
def imputation_with_a_decay(fixed):
    torch.manual_seed(14)
    cell, head = nn.GRUCell(2, 5), nn.Linear(5, 1)

    def loss(i):
        x = drawn(i, 4, 7)
        x[torch.rand(4, 7, generator=torch.Generator().manual_seed(i)) < 0.3] = float("nan")
        h, last, total = torch.zeros(4, 5), torch.zeros(4), 0.0
        for t in range(7):
            seen = ~x[:, t].isnan()
            last = torch.where(seen, x[:, t], 0.9 * last)
            guess = head(h)[:, 0]
            total = total + torch.where(seen, (guess - last).square(), torch.zeros(4)).sum()
            h = cell(torch.stack([last, seen.float()], 1), h)
        return total / 20

    return nn.ModuleList([cell, head]), train([*cell.parameters(), *head.parameters()], loss, lr=1e-2)


@healthy("a residual of second order on a smooth net; boundary loss in turn")
def beam_under_its_own_weight(fixed):
    torch.manual_seed(15)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    x = torch.linspace(0, 1, 8)[:, None]

    def loss(i):
        y = x.clone().requires_grad_()
        u = net(y)
        for _ in range(2):
            (u,) = torch.autograd.grad(u.sum(), y, create_graph=True)
        return (u + 1).square().mean() + net(x[[0, -1]]).square().sum() * 10

    return net, train(net.parameters(), loss, lr=1e-3)


@healthy("rotation by a series at 0, chosen by where on both sides")
def rodrigues_with_a_safe_angle(fixed):
    torch.manual_seed(16)
    net = nn.Linear(3, 3, bias=False)

    def loss(i):
        x = drawn(i, 5, 3)
        x[2] = 0
        w = net(x)
        t2 = w.square().sum(-1, keepdim=True)
        small = t2 < 1e-6
        t = torch.where(small, torch.ones_like(t2), t2).sqrt()
        s = torch.where(small, 1 - t2 / 6, t.sin() / t)
        p = torch.tensor([0.0, 0.0, 1.0]).expand(5, 3)
        return (p + s * torch.linalg.cross(w, p) - 0.3).square().mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("a ray that meets nothing has the depth infinity, which is masked out by index")
def sphere_that_some_rays_miss(fixed):
    radius = nn.Parameter(torch.tensor(0.8))
    origin = torch.stack([torch.linspace(-1.2, 1.2, 9), torch.zeros(9), torch.full((9,), -3.0)], 1)

    def loss(i):
        b = origin[:, 2]
        disc = b**2 - (origin.square().sum(1) - radius**2)
        hit = disc.detach() > 0
        depth = torch.full((9,), math.inf)
        near = -b[hit] - disc[hit].sqrt()
        depth[hit] = near.detach()
        return (near - 2.0).square().mean() + 0 * depth[hit].sum()

    return None, train([radius], loss, lr=0.02)


@healthy("a loss scale that is doubled until it overflows, and halved again", steps=12)
def scaler_that_grows_every_second_step(fixed):
    torch.manual_seed(17)
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)
    x, y = drawn(14, 16, 6), torch.arange(16) % 3

    def step(i):
        opt.zero_grad()
        for part in range(2):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x[part::2]), y[part::2]) / 2
            scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@healthy("bfloat16 weights with an optimizer whose state and master are float32", steps=6)
def master_weights_by_hand(fixed):
    torch.manual_seed(18)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
    master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    opt = torch.optim.AdamW(master, lr=1e-3)
    x = drawn(15, 16, 4).bfloat16()

    def step(i):
        net.zero_grad()
        loss = (net(x).float() - 1).square().mean()
        loss.backward()
        for m, p in zip(master, net.parameters(), strict=True):
            m.grad = p.grad.float()
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, net.parameters(), strict=True):
                p.copy_(m)
        return loss

    return net, step


@healthy("Lion moves by signs; many gradients are exactly 0")
def signs_of_sparse_gradients(fixed):
    torch.manual_seed(19)
    table, head = nn.Embedding(50, 4), nn.Linear(4, 2)
    params = [*table.parameters(), *head.parameters()]
    m = [torch.zeros_like(p) for p in params]

    def step(i):
        ids = torch.randint(0, 50, (6,), generator=torch.Generator().manual_seed(i))
        for p in params:
            p.grad = None
        loss = F.cross_entropy(head(table(ids)), ids % 2)
        loss.backward()
        with torch.no_grad():
            for p, v in zip(params, m, strict=True):
                p.sub_(1e-3 * torch.sign(0.9 * v + 0.1 * p.grad))
                v.mul_(0.99).add_(p.grad, alpha=0.01)
        return loss

    return nn.ModuleList([table, head]), step


@healthy("LBFGS with a strong Wolfe line search ends at the minimum and stands still", steps=5)
def quasi_newton_that_has_arrived(fixed):
    w = nn.Parameter(torch.tensor([3.0, -1.0]))
    opt = torch.optim.LBFGS([w], line_search_fn="strong_wolfe", max_iter=20)

    def step(i):
        def closure():
            opt.zero_grad()
            loss = (w - torch.tensor([1.0, 2.0])).square().sum()
            loss.backward()
            return loss

        return opt.step(closure)

    step.parameters = {"w": w}
    return None, step


@healthy("a cosine schedule that reaches a rate of 0 and begins again", steps=9)
def restarts_with_a_rate_of_zero(fixed):
    torch.manual_seed(20)
    net = nn.Linear(4, 2)
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 0.5 * (1 + math.cos(math.pi * (i % 5) / 4)))
    x, y = drawn(16, 12, 4), torch.arange(12) % 2

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        sched.step()
        return loss

    return net, step


@healthy("the encoder is frozen on purpose for the first steps and then set free", steps=8)
def trunk_that_is_thawed(fixed):
    torch.manual_seed(21)
    trunk, head = nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(8, 2)
    opt = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.05)
    x, y = drawn(17, 16, 5), torch.arange(16) % 2

    def step(i):
        opt.zero_grad()
        with torch.set_grad_enabled(i >= 4):
            z = trunk(x)
        loss = F.cross_entropy(head(z), y)
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([trunk, head]), step


@healthy("a hinge that is satisfied: the gradient is exactly 0 from some step on", steps=25)
def margin_that_is_reached(fixed):
    torch.manual_seed(22)
    net = nn.Linear(2, 1)
    x = torch.tensor([[2.0, 1.0], [1.0, 2.0], [-2.0, -1.0], [-1.0, -2.0]])
    y = torch.tensor([1.0, 1.0, -1.0, -1.0])
    return net, train(net.parameters(), lambda i: (1 - y * net(x)[:, 0]).relu().mean(), lr=0.1)


@healthy("checkpointed blocks with dropout and a mask of -inf")
def blocks_computed_twice(fixed):
    torch.manual_seed(23)
    layers = nn.ModuleList(nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True) for _ in range(2))
    head = nn.Linear(8, 1)
    causal = torch.full((5, 5), -math.inf).triu(1)

    def loss(i):
        h = drawn(i, 3, 5, 8)
        for layer in layers:
            h = h + checkpoint(lambda z, m=layer: m(z, z, z, attn_mask=causal)[0], h, use_reentrant=False)
        return (head(h)[..., 0] - 1).square().mean()

    return nn.ModuleList([*layers, head]), train([*layers.parameters(), *head.parameters()], loss, lr=1e-2)


@healthy("weights of a sampler: one is exactly 0 and its logarithm is -inf, as Categorical wants it")
def particles_of_which_some_die(fixed):
    torch.manual_seed(24)
    net = nn.Linear(2, 1)
    gen = torch.Generator().manual_seed(25)

    def loss(i):
        x = drawn(i, 10, 2)
        logw = net(x)[:, 0].masked_fill(x[:, 0] > 1.0, -math.inf)
        w = logw.softmax(0)
        keep = torch.multinomial(w.detach(), 10, replacement=True, generator=gen)
        return (x[keep, 1] * w[keep]).sum() - torch.logsumexp(logw, 0)

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("a flow's log-determinant; tanh bounds the scale; far values underflow in the density")
def coupling_that_is_bounded(fixed):
    torch.manual_seed(26)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2))
    x = drawn(18, 20, 2)
    x[0] = 40.0

    def loss(i):
        s, t = net(x[:, :1]).chunk(2, 1)
        s = 2 * s.tanh()
        z = torch.cat([x[:, :1], (x[:, 1:] - t) * (-s).exp()], 1)
        logp = -0.5 * z.square().sum(1) - s[:, 0] - math.log(2 * math.pi)
        density = logp.exp()
        return -(logp * (0.5 + 0 * density.detach())).mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@healthy("meta-learning with torch.func: a task is solved already and has no gradient")
def tasks_of_which_one_is_easy(fixed):
    torch.manual_seed(27)
    net = nn.Linear(2, 1)

    def outer(i):
        weights = dict(net.named_parameters())

        def inner(w, x, y):
            return (torch.func.functional_call(net, w, (x,)) - y).square().mean()

        total = 0.0
        for task in range(3):
            x = drawn(i * 3 + task, 6, 2)
            y = net(x).detach() if task == 1 else x.sum(1, keepdim=True) * task
            g = torch.func.grad(inner)(weights, x, y)
            total = total + inner({k: w - 0.1 * g[k] for k, w in weights.items()}, x, y)
        return total

    return net, train(net.parameters(), outer, lr=0.05)


@healthy("a validation metric is NaN in an epoch without positives, and is only logged")
def score_that_is_undefined_for_a_fold(fixed):
    torch.manual_seed(28)
    net = nn.Linear(3, 1)
    x = drawn(19, 16, 3)
    y = (x[:, 0] > 0).float()
    logged = []

    def loss(i):
        out = net(x)[:, 0]
        with torch.no_grad():
            hit = ((out > 3) * y).sum()
            precision = hit / (out > 3).sum()
            recall = hit / y.sum()
            logged.append((2 * precision * recall / (precision + recall)).item())
        return F.binary_cross_entropy_with_logits(out, y)

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("rows with NaN are left out by the loader's collate function")
def loader_that_drops_what_is_missing(fixed):
    torch.manual_seed(29)
    x = drawn(20, 24, 3)
    x[[3, 8, 9]] = float("nan")
    net = nn.Linear(3, 1)

    def collate(rows):
        batch = torch.stack([r[0] for r in rows])
        return batch[~batch.isnan().any(1)]

    loader = DataLoader(TensorDataset(x), batch_size=4, collate_fn=collate)
    kept = list(loader)

    def loss(i):
        b = kept[i % len(kept)]
        return (net(b)[:, 0] - b.sum(1)).square().sum() / max(len(b), 1)

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("quantisation by a straight-through rounding; the scale has a floor")
def weights_of_four_bits(fixed):
    torch.manual_seed(30)
    net = nn.Linear(6, 3)
    x, y = drawn(21, 16, 6), torch.arange(16) % 3

    def loss(i):
        w = net.weight
        s = (w.abs().amax(1, keepdim=True) / 7).clamp_min(1e-8)
        q = (w / s).round().clamp(-8, 7) * s
        return F.cross_entropy(F.linear(x, w + (q - w).detach(), net.bias), y)

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("8-bit floats: values are scaled by their largest, which has a floor")
def products_in_float8(fixed):
    torch.manual_seed(31)
    net = nn.Linear(8, 4, bias=False)
    x, y = drawn(22, 12, 8), torch.arange(12) % 4

    def cast(t):
        s = 448 / t.detach().abs().amax().clamp_min(1e-12)
        return t + ((t * s).to(torch.float8_e4m3fn).float() / s - t).detach()

    return net, train(net.parameters(), lambda i: F.cross_entropy(cast(x) @ cast(net.weight).T, y), lr=0.1)


@healthy("hooks zero the gradient of padding rows")
def table_with_a_padding_row(fixed):
    torch.manual_seed(32)
    table, head = nn.Embedding(12, 4), nn.Linear(4, 2)
    with torch.no_grad():
        table.weight[0] = 0
    table.weight.register_hook(lambda g: g * (torch.arange(12) != 0).float()[:, None])
    ids = torch.tensor([[1, 2, 0, 0], [3, 4, 5, 0], [6, 0, 0, 0]])

    def loss(i):
        keep = (ids != 0).float()[..., None]
        return F.cross_entropy(head((table(ids) * keep).sum(1) / keep.sum(1)), torch.tensor([0, 1, 1]))

    return nn.ModuleList([table, head]), train([*table.parameters(), *head.parameters()], loss, lr=0.1)


@healthy("critic and generator by turns, with a gradient penalty that has an epsilon")
def critic_with_a_penalty(fixed):
    torch.manual_seed(33)
    g, d = nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    og, od = torch.optim.Adam(g.parameters(), lr=1e-3), torch.optim.Adam(d.parameters(), lr=1e-3)

    def step(i):
        if i % 2:
            og.zero_grad()
            loss = -d(g(drawn(i, 8, 3))).mean()
            loss.backward()
            og.step()
            return loss
        od.zero_grad()
        real, fake = drawn(i, 8, 2), g(drawn(i, 8, 3)).detach()
        mix = ((real + fake) / 2).requires_grad_()
        (s,) = torch.autograd.grad(d(mix).sum(), mix, create_graph=True)
        loss = d(fake).mean() - d(real).mean() + ((s.square().sum(1) + 1e-12).sqrt() - 1).square().mean()
        loss.backward()
        od.step()
        return loss

    return nn.ModuleList([g, d]), step


@healthy("a straight-through choice of codes; unused codes have no gradient and are moved by averages")
def codebook_with_codes_at_rest(fixed):
    torch.manual_seed(34)
    enc, dec = nn.Linear(4, 2), nn.Linear(2, 4)
    book, count = drawn(23, 8, 2) * 3, torch.zeros(8)
    x = drawn(24, 16, 4)

    def loss(i):
        z = enc(x)
        near = torch.cdist(z, book).argmin(1)
        with torch.no_grad():
            hot = F.one_hot(near, 8).float()
            count.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            mean = hot.T @ z / hot.sum(0)[:, None]
            used = hot.sum(0) > 0
            book[used] = book[used] * 0.9 + mean[used] * 0.1
        q = z + (book[near] - z).detach()
        return F.mse_loss(dec(q), x) + 0.25 * (z - book[near]).square().mean()

    return nn.ModuleList([enc, dec]), train([*enc.parameters(), *dec.parameters()], loss, lr=0.05)


@healthy("reward is the same for every answer of a group: an epsilon makes the advantage 0", steps=5)
def groups_without_a_difference(fixed):
    torch.manual_seed(35)
    net = nn.Linear(3, 4)

    def loss(i):
        logp = net(drawn(i, 6, 3)).log_softmax(-1)
        reward = torch.ones(6, 4) if i == 2 else torch.eye(4)[torch.arange(6) % 4]
        adv = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        return -(logp * adv).mean()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("an average of weights in which the first value is copied", steps=6)
def average_that_begins_with_a_copy(fixed):
    torch.manual_seed(36)
    net = nn.Linear(4, 2)
    avg = torch.optim.swa_utils.AveragedModel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = drawn(25, 12, 4), torch.arange(12) % 2

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        avg.update_parameters(net)
        return loss

    return net, step


@healthy("early stopping holds NaN until the first validation, and compares with it in vain", steps=6)
def history_that_begins_with_nan(fixed):
    torch.manual_seed(37)
    net = nn.Linear(3, 1)
    x = drawn(26, 12, 3)
    best = torch.tensor(float("nan"))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)

    def step(i):
        nonlocal best
        opt.zero_grad()
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            best = torch.where(best.isnan() | (loss < best), loss.detach(), best)
        return loss

    return net, step
