"""Healthy training scripts that look suspicious: infinities, zeros, NaN and stillness that are meant."""

import copy
import math
from itertools import pairwise

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(*widths):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@healthy("the loss scale is found: the first steps are skipped", steps=14)
def scale_that_is_found_from_above(fixed):
    torch.manual_seed(0)
    net = mlp(8, 16, 3)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    x, y = 30 * rows(1, 32, 8), torch.arange(32) % 3

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@healthy("padded keys are -inf, and each row has a key")
def encoder_with_padding(fixed):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    head = nn.Linear(8, 2)
    x = rows(2, 6, 7, 8)
    pad = torch.arange(7) >= torch.tensor([7, 5, 1, 3, 7, 2])[:, None]

    def loss(i):
        h = layer(x, src_key_padding_mask=pad).masked_fill(pad[..., None], 0)
        return F.cross_entropy(head(h.sum(1) / (~pad).sum(1, keepdim=True)), torch.arange(6) % 2)

    return nn.ModuleList([layer, head]), train([*layer.parameters(), *head.parameters()], loss, lr=1e-2)


@healthy("most units are off, the others learn", steps=8)
def wide_layer_with_sleeping_units(fixed):
    torch.manual_seed(0)
    net = mlp(6, 64, 1)
    nn.init.uniform_(net[0].bias, -3.0, 0.2)
    x = rows(3, 32, 6)
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x)[:, 0], x[:, 0]), lr=0.05)


@healthy("the trunk is frozen and its gradients are asked for nobody", steps=6)
def linear_probe_on_frozen_features(fixed):
    torch.manual_seed(0)
    trunk, head = mlp(6, 12, 8), nn.Linear(8, 3)
    trunk.requires_grad_(False)
    x, y = rows(4, 24, 6), torch.arange(24) % 3

    def loss(i):
        with torch.no_grad():
            z = trunk(x)
        return F.cross_entropy(head(z), y)

    return nn.ModuleList([trunk, head]), train(head.parameters(), loss, lr=0.1)


@healthy("perplexity overflows on the first page and is only printed", steps=5)
def language_model_that_prints_its_perplexity(fixed):
    torch.manual_seed(0)
    emb, rnn, head = nn.Embedding(30, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 30)
    nn.init.normal_(head.weight, std=60.0)
    net = nn.ModuleList([emb, rnn, head])
    ids = torch.randint(0, 30, (8, 11), generator=torch.Generator().manual_seed(5))
    printed = []

    def loss(i):
        logits = head(rnn(emb(ids[:, :-1]))[0])
        value = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
        printed.append(float(torch.exp(2 * value.detach())))
        return value

    return net, train(net.parameters(), loss, lr=1e-2, optimizer=torch.optim.Adam)


@healthy("a class that does not occur has accuracy 0 / 0, left out of the mean")
def accuracy_of_each_class(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 5)
    x, y = rows(6, 20, 6), torch.arange(20) % 4
    told = []

    def loss(i):
        out = net(x)
        with torch.no_grad():
            hit = torch.zeros(5).index_add_(0, y, (out.argmax(1) == y).float())
            told.append(torch.nanmean(hit / torch.bincount(y, minlength=5)).item())
        return F.cross_entropy(out, y)

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("the best loss so far begins at infinity", steps=8)
def early_stopping_from_infinity(fixed):
    torch.manual_seed(0)
    net = mlp(4, 8, 1)
    x = rows(7, 16, 4)
    best, kept = torch.tensor(float("inf")), None
    opt = torch.optim.SGD(net.parameters(), lr=0.05)

    def step(i):
        nonlocal best, kept
        opt.zero_grad()
        loss = F.mse_loss(net(x)[:, 0], x.sum(1))
        if loss.detach() < best - 1e-3:
            best, kept = loss.detach(), copy.deepcopy(net.state_dict())
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("forbidden moves have the logit -inf; entropy by torch")
def policy_with_forbidden_moves(fixed):
    torch.manual_seed(0)
    net = mlp(5, 16, 4)
    x = rows(8, 12, 5)
    legal = torch.rand(12, 4, generator=torch.Generator().manual_seed(9)) < 0.6
    legal[:, 1] = True
    gen = torch.Generator().manual_seed(10)

    def loss(i):
        logits = net(x).masked_fill(~legal, torch.finfo(torch.float32).min)
        dist = torch.distributions.Categorical(logits=logits)
        move = torch.multinomial(dist.probs.detach(), 1, generator=gen)[:, 0]
        reward = (move == 1).float() - 0.5
        return -(dist.log_prob(move) * reward).mean() - 0.01 * dist.entropy().mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("the nearest other point: the diagonal is infinite and never the least")
def spread_of_points_by_their_nearest_neighbour(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x = rows(11, 14, 4)
    inf_diagonal = torch.zeros(14, 14).fill_diagonal_(float("inf"))

    def loss(i):
        z = F.normalize(net(x), dim=1)
        near = (2 - 2 * z @ z.T + inf_diagonal).amin(1)
        return -torch.log(near + 1e-6).mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@healthy("warm-up from a rate of zero: the first update is none", steps=8)
def warm_up_from_nothing(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 2)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, i / 4))
    x, y = rows(12, 24, 6), torch.arange(24) % 2

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step


@healthy("missing targets are NaN and indexed away", steps=6)
def several_assays_with_gaps(fixed):
    torch.manual_seed(0)
    net = mlp(8, 16, 4)
    x = rows(13, 20, 8)
    y = rows(14, 20, 4)
    y[torch.rand(20, 4, generator=torch.Generator().manual_seed(15)) < 0.4] = float("nan")

    def loss(i):
        known = ~y.isnan()
        return F.mse_loss(net(x)[known], y[known])

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("a buffer made by empty is written before it is read")
def bank_of_embeddings_filled_as_they_come(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    bank = torch.empty(64, 4)
    filled = 0
    x = rows(16, 6, 8, 6)

    def loss(i):
        nonlocal filled
        z = F.normalize(net(x[i % 6]), dim=1)
        value = z.square().sum() * 0 - (z[0] * z[1]).sum()
        if filled:
            value = value + torch.logsumexp(z @ bank[:filled].clone().T / 0.2, 1).mean()
        bank[filled : filled + 8] = z.detach()
        filled += 8
        return value

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("some experts get no token in a step", steps=8)
def switch_of_experts(fixed):
    torch.manual_seed(0)
    gate, experts = nn.Linear(6, 5), nn.ModuleList(nn.Linear(6, 2) for _ in range(5))
    net = nn.ModuleList([gate, experts])
    x = rows(17, 4, 7, 6)

    def loss(i):
        tokens = x[i % 4]
        p = gate(tokens).softmax(-1)
        best, which = p.max(1)
        out = torch.zeros(7, 2)
        for e, expert in enumerate(experts):
            out[which == e] = expert(tokens[which == e])
        out = out * best[:, None]
        share = F.one_hot(which, 5).float().mean(0)
        return F.mse_loss(out, tokens[:, :2]) + 0.01 * 5 * (share * p.mean(0)).sum()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("rounding with a straight-through gradient", steps=6)
def training_aware_of_its_quantisation(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 2)
    x, y = rows(18, 24, 6), torch.arange(24) % 2

    def quantised(w):
        s = w.detach().abs().max() / 7
        q = torch.round(w / s).clamp(-8, 7) * s
        return w + (q - w).detach()

    def loss(i):
        h = torch.relu(F.linear(x, quantised(net[0].weight), net[0].bias))
        return F.cross_entropy(F.linear(h, quantised(net[2].weight), net[2].bias), y)

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("cosine restarts touch a rate of zero", steps=12)
def warm_restarts(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=4)
    x, y = rows(19, 24, 6), torch.arange(24) % 2

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step


@healthy("forward algorithm in the log domain with impossible starts", steps=5)
def chain_with_impossible_starts(fixed):
    torch.manual_seed(0)
    emit, trans = nn.Linear(4, 3), nn.Parameter(torch.zeros(3, 3))
    x = rows(20, 6, 8, 4)
    start = torch.tensor([0.0, -math.inf, -math.inf])

    def loss(i):
        e = emit(x).log_softmax(-1)
        t = trans.log_softmax(-1)
        alpha = start + e[:, 0]
        alpha = torch.where(alpha.isinf(), torch.full_like(alpha, -1e4), alpha)
        for n in range(1, 8):
            alpha = torch.logsumexp(alpha[:, :, None] + t, 1) + e[:, n]
        return -alpha.logsumexp(-1).mean() + 0.1 * trans.square().sum()

    return emit, train([*emit.parameters(), trans], loss, lr=0.05)


@healthy("a sample too short for its labels is told to count zero")
def speech_with_a_sample_that_is_too_short(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 6)
    x = rows(21, 12, 3, 5)
    labels = torch.tensor([[1, 2, 3, 4], [2, 2, 2, 2], [5, 1, 5, 1]])

    def loss(i):
        return F.ctc_loss(net(x).log_softmax(-1), labels, torch.tensor([12, 4, 10]), torch.tensor([4, 4, 4]), zero_infinity=True)

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("weights in bfloat16 with a master copy in float32", steps=8)
def master_copy(fixed):
    torch.manual_seed(0)
    net = mlp(8, 16, 2).bfloat16()
    master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    opt = torch.optim.AdamW(master, lr=1e-3)
    x, y = rows(22, 32, 8).bfloat16(), torch.arange(32) % 2

    def step(i):
        loss = F.cross_entropy(net(x).float(), y)
        net.zero_grad()
        loss.backward()
        for m, p in zip(master, net.parameters(), strict=True):
            m.grad = p.grad.float()
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, net.parameters(), strict=True):
                p.copy_(m)
        return loss

    return net, step


@healthy("low-rank adapters begin with a factor of zero", steps=6)
def adapters_that_begin_at_nothing(fixed):
    torch.manual_seed(0)
    base = nn.Linear(10, 10).requires_grad_(False)
    a, b = nn.Parameter(0.1 * rows(23, 2, 10)), nn.Parameter(torch.zeros(10, 2))
    x = rows(24, 16, 10)
    return None, train([a, b], lambda i: F.mse_loss(base(x) + x @ a.T @ b.T, x.flip(1)), lr=0.1, optimizer=torch.optim.Adam)


@healthy("the branch begins behind a gain of zero", steps=6)
def residual_branches_that_begin_closed(fixed):
    torch.manual_seed(0)
    body = nn.ModuleList(mlp(6, 12, 6) for _ in range(3))
    gains = nn.Parameter(torch.zeros(3))
    head = nn.Linear(6, 2)
    x, y = rows(25, 24, 6), torch.arange(24) % 2

    def loss(i):
        h = x
        for n, block in enumerate(body):
            h = h + gains[n] * block(h)
        return F.cross_entropy(head(h), y)

    return nn.ModuleList([body, head]), train([*body.parameters(), gains, *head.parameters()], loss, lr=0.1)


@healthy("the target network is detached and follows slowly", steps=8)
def value_learning_with_a_slow_target(fixed):
    torch.manual_seed(0)
    net = mlp(4, 24, 3)
    target = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(26)

    def step(i):
        s, s2 = torch.randn(2, 32, 4, generator=gen)
        a = torch.randint(0, 3, (32, 1), generator=gen)
        r = s[:, :1]
        done = (torch.rand(32, 1, generator=gen) < 0.2).float()
        with torch.no_grad():
            goal = r + 0.99 * (1 - done) * target(s2).amax(1, keepdim=True)
        loss = F.smooth_l1_loss(net(s).gather(1, a), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.005)
        return loss

    return nn.ModuleList([net, target]), step


@healthy("one branch has its gradient stopped on purpose", steps=6)
def two_views_with_a_stopped_gradient(fixed):
    torch.manual_seed(0)
    enc, pred = mlp(6, 16, 8), mlp(8, 4, 8)
    x = rows(27, 16, 6)
    noise = torch.Generator().manual_seed(28)

    def loss(i):
        a, b = (enc(x + 0.1 * torch.randn(16, 6, generator=noise)) for _ in range(2))
        pa, pb = pred(a), pred(b)
        return -(F.cosine_similarity(pa, b.detach()).mean() + F.cosine_similarity(pb, a.detach()).mean()) / 2

    return nn.ModuleList([enc, pred]), train([*enc.parameters(), *pred.parameters()], loss, lr=0.05)


@healthy("all margins are kept at last, and the loss is exactly zero", steps=30)
def margins_that_are_all_kept(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    x = rows(29, 16, 4)
    x[:, 0] = torch.where(torch.arange(16) % 2 == 0, 2.0, -2.0)
    y = torch.sign(x[:, 0])
    return net, train(net.parameters(), lambda i: F.relu(1 - y * net(x)[:, 0]).mean(), lr=0.5)


@healthy("no reward in the first episodes: the gradient is exactly zero until one comes", steps=10)
def reward_that_comes_seldom(fixed):
    torch.manual_seed(0)
    net = mlp(4, 16, 2)
    gen = torch.Generator().manual_seed(30)

    def loss(i):
        s = torch.randn(20, 4, generator=gen)
        dist = torch.distributions.Categorical(logits=net(s))
        a = torch.randint(0, 2, (20,), generator=gen)
        reward = torch.zeros(20)
        if i in (4, 7, 8):
            reward[a == 1] = 1.0
        return -(dist.log_prob(a) * reward).mean()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("gaps of a series are NaN, and the window's mean leaves them out", steps=6)
def series_with_gaps_filled_by_the_mean(fixed):
    torch.manual_seed(0)
    net = mlp(12, 16, 1)
    series = rows(31, 24, 13)
    series[torch.rand(24, 13, generator=torch.Generator().manual_seed(32)) < 0.1] = float("nan")
    series[:, 12] = torch.nan_to_num(series[:, 12])

    def loss(i):
        window = series[:, :12]
        mean = window.nanmean(1, keepdim=True)
        return F.mse_loss(net(torch.where(window.isnan(), mean, window))[:, 0], series[:, 12])

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("light is used up behind a wall: the product is exactly zero there", steps=6)
def rays_that_end_at_a_wall(fixed):
    torch.manual_seed(0)
    field = mlp(3, 24, 4)
    points = rows(33, 8, 16, 3)
    colour = torch.rand(8, 3, generator=torch.Generator().manual_seed(34))
    wall = torch.zeros(16)
    wall[11:] = 1e4

    def loss(i):
        out = field(points)
        alpha = 1 - torch.exp(-(F.softplus(out[..., 0]) + wall) * 0.1)
        through = torch.cumprod(torch.cat([torch.ones(8, 1), 1 - alpha], 1), 1)[:, :-1]
        seen = ((alpha * through)[..., None] * out[..., 1:].sigmoid()).sum(1)
        return F.mse_loss(seen, colour)

    return field, train(field.parameters(), loss, lr=1e-2, optimizer=torch.optim.Adam)


@healthy("the replay memory is kept in half precision, the computing is not", steps=6)
def memory_in_half(fixed):
    torch.manual_seed(0)
    net = mlp(4, 16, 1)
    memory = (rows(35, 200, 4) * 1e-6).half()
    gen = torch.Generator().manual_seed(36)

    def loss(i):
        at = torch.randint(0, 200, (32,), generator=gen)
        x = memory[at].float() * 1e6
        return F.mse_loss(net(x)[:, 0], x.sum(1))

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("the variance is bounded below before it is logged", steps=6)
def mean_and_variance_by_one_net(fixed):
    torch.manual_seed(0)
    net = mlp(5, 16, 2)
    x = rows(37, 24, 5)

    def loss(i):
        mean, raw = net(x).unbind(1)
        var = torch.clamp(F.softplus(raw - 3), min=1e-3)
        return F.gaussian_nll_loss(mean, x[:, 0], var)

    return net, train(net.parameters(), loss, lr=1e-4)


@healthy("sparse updates of a table: most rows have no gradient", steps=8)
def table_of_users_with_sparse_updates(fixed):
    torch.manual_seed(0)
    users = nn.Embedding(500, 6, sparse=True)
    head = nn.Linear(6, 1)
    sparse, dense = torch.optim.SparseAdam(users.parameters(), lr=1e-2), torch.optim.Adam(head.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(38)

    def step(i):
        ids = torch.randint(0, 500, (8,), generator=gen)
        loss = F.mse_loss(head(users(ids))[:, 0], (ids % 3).float())
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        return loss

    return nn.ModuleList([users, head]), step


@healthy("a task without data in some steps", steps=8)
def two_tasks_by_turns(fixed):
    torch.manual_seed(0)
    trunk, heads = mlp(6, 12, 8), nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 1)])
    x = rows(39, 20, 6)
    net = nn.ModuleList([trunk, heads])
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad(set_to_none=False)
        h = trunk(x)
        a, b = F.cross_entropy(heads[0](h), torch.arange(20) % 2), F.mse_loss(heads[1](h)[:, 0], x[:, 0])
        on = float(i % 2)
        loss = on * a + (1 - on) * b
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("layers are dropped at random as a whole", steps=8)
def layers_dropped_at_random(fixed):
    torch.manual_seed(0)
    blocks, head = nn.ModuleList(mlp(6, 8, 6) for _ in range(4)), nn.Linear(6, 2)
    x, y = rows(40, 24, 6), torch.arange(24) % 2
    gen = torch.Generator().manual_seed(41)

    def loss(i):
        h = x
        for block in blocks:
            keep = (torch.rand(24, 1, generator=gen) < 0.4).float()
            h = h + block(h) * keep / 0.4
        return F.cross_entropy(head(h), y)

    return nn.ModuleList([blocks, head]), train([*blocks.parameters(), *head.parameters()], loss, lr=0.1)


@healthy("the tail of a sharp softmax is exactly zero", steps=6)
def sharp_attention_over_a_memory(fixed):
    torch.manual_seed(0)
    q, v = nn.Linear(6, 8), nn.Linear(8, 2)
    keys = 6 * rows(42, 40, 8)
    x, y = rows(43, 16, 6), torch.arange(16) % 2

    def loss(i):
        w = (q(x) @ keys.T / 0.05).softmax(-1)
        return F.cross_entropy(v(w @ keys), y)

    return nn.ModuleList([q, v]), train([*q.parameters(), *v.parameters()], loss, lr=1e-3)


@healthy("gradients are gathered over four parts before the update", steps=8)
def gathered_gradients(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = rows(44, 8, 8, 6), torch.arange(8) % 2

    def step(i):
        loss = F.cross_entropy(net(x[i]), y) / 4
        loss.backward()
        if i % 4 == 3:
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            opt.step()
            opt.zero_grad()
        return loss

    return net, step


@healthy("a batch with an infinity is left out before the network sees it", steps=8)
def loader_that_leaves_bad_batches_out(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = rows(45, 4, 16, 5)
    x[2, 4, 1] = float("inf")

    def step(i):
        batch = x[i % 4]
        if not bool(torch.isfinite(batch).all()):
            return torch.zeros(())
        loss = F.mse_loss(net(batch)[:, 0], batch.sum(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("a layer in half precision by hand, the norm and the loss in float32", steps=8)
def half_matrix_products_only(fixed):
    torch.manual_seed(0)
    a, norm, b = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 2)
    x, y = rows(46, 32, 8), torch.arange(32) % 2

    def loss(i):
        h = F.linear(x.half(), a.weight.half(), a.bias.half()).float()
        return F.cross_entropy(b(torch.relu(norm(h))), y)

    return nn.ModuleList([a, norm, b]), train([*a.parameters(), *norm.parameters(), *b.parameters()], loss, lr=0.1)


@healthy("annealing: the weight of the divergence is zero at first", steps=9)
def divergence_that_is_faded_in(fixed):
    torch.manual_seed(0)
    enc, dec = nn.Linear(8, 6), nn.Linear(3, 8)
    x = rows(47, 24, 8)
    gen = torch.Generator().manual_seed(48)

    def loss(i):
        mu, logvar = enc(x).chunk(2, 1)
        z = mu + (0.5 * logvar).exp() * torch.randn(24, 3, generator=gen)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
        return F.mse_loss(dec(z), x) + min(1.0, i / 8) * kl

    return nn.ModuleList([enc, dec]), train([*enc.parameters(), *dec.parameters()], loss, lr=0.05)


@healthy("a critic kept in bounds by clipping its weights", steps=8)
def critic_with_clipped_weights(fixed):
    torch.manual_seed(0)
    gen, critic = mlp(3, 12, 2), mlp(2, 16, 1)
    og, oc = torch.optim.RMSprop(gen.parameters(), lr=5e-4), torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    real = rows(49, 32, 2) + 1
    noise = torch.Generator().manual_seed(50)

    def step(i):
        z = torch.randn(32, 3, generator=noise)
        for _ in range(2):
            oc.zero_grad()
            (critic(gen(z).detach()).mean() - critic(real).mean()).backward()
            oc.step()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-0.01, 0.01)
        og.zero_grad()
        loss = -critic(gen(z)).mean()
        loss.backward()
        og.step()
        return loss

    return nn.ModuleList([gen, critic]), step


@healthy("the run goes on from a checkpoint with its moments", steps=8)
def run_that_goes_on_from_a_checkpoint(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 2)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    x, y = rows(51, 24, 6), torch.arange(24) % 2
    saved = {}

    def step(i):
        if i == 3:
            saved.update(copy.deepcopy({"net": net.state_dict(), "opt": opt.state_dict()}))
        if i == 6:
            net.load_state_dict(saved["net"])
            opt.load_state_dict(saved["opt"])
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("a codebook by averages, unused codes among them", steps=8)
def codebook_by_averages(fixed):
    torch.manual_seed(0)
    enc, dec = nn.Linear(6, 3), nn.Linear(3, 6)
    codes, mass, total = rows(52, 12, 3), torch.ones(12), rows(52, 12, 3)
    x = rows(53, 20, 6)

    def loss(i):
        nonlocal codes, mass, total
        z = enc(x)
        which = torch.cdist(z.detach(), codes).argmin(1)
        hot = F.one_hot(which, 12).float()
        mass = 0.9 * mass + 0.1 * hot.sum(0)
        total = 0.9 * total + 0.1 * hot.T @ z.detach()
        n = mass.sum()
        codes = total / ((mass + 1e-5) / (n + 12e-5) * n)[:, None]
        q = codes[which]
        return F.mse_loss(dec(z + (q - z).detach()), x) + 0.25 * F.mse_loss(z, q)

    return nn.ModuleList([enc, dec]), train([*enc.parameters(), *dec.parameters()], loss, lr=0.05)


@healthy("transport in the log domain, points without mass", steps=5)
def transport_with_points_without_mass(fixed):
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    x, y = rows(54, 7, 2), rows(55, 9, 2)
    a = torch.tensor([0.25, 0.25, 0.0, 0.25, 0.25, 0.0, 0.0])
    b = torch.full((9,), 1 / 9)
    loga = a.log()

    def loss(i):
        cost = torch.cdist(net(x), y).square()
        f, g = torch.zeros(7), torch.zeros(9)
        with torch.no_grad():
            for _ in range(20):
                f = -0.5 * torch.logsumexp((g - cost) / 0.5 + b.log(), 1)
                g = -0.5 * torch.logsumexp((f[:, None] - cost) / 0.5 + loga[:, None], 0)
            plan = torch.exp((f[:, None] + g - cost) / 0.5 + loga[:, None] + b.log())
        return (plan * cost).sum()

    return net, train(net.parameters(), loss, lr=0.05)
