"""Ordinary training scripts with one fault each, as they are handed in: loops, loaders, schedules, checkpoints, narrow formats."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def forever(loader):
    while True:
        yield from loader


@fault("std-of-constant", "div", "data", building=True, also=("div-by-zero",))
def table_with_a_constant_column_standardised(fixed):
    torch.manual_seed(0)
    table = rows(1, 64, 6)
    table[:, 4] = 3.0
    target = (table[:, 0] > 0).long()
    mean, std = table.mean(0), table.std(0)
    if fixed:
        std[std == 0] = 1.0
    table = (table - mean) / std  # ORIGIN
    loader = iter(forever(DataLoader(TensorDataset(table, target), batch_size=16)))
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    def step(i):
        x, y = next(loader)
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("div-by-zero", "div", step=2)
def overlap_score_of_a_crop_without_the_class(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    images = rows(2, 5, 4, 1, 12, 12)
    labels = (images > 0.5).float()
    labels[2, 1] = 0

    def jaccard(logits, target):
        chosen = (logits > 0).float() * 0 + torch.relu(logits).clamp(max=1)
        chosen = chosen * (target.amax((1, 2, 3), keepdim=True) > 0)
        both = (chosen * target).sum((1, 2, 3))
        either = (chosen + target - chosen * target).sum((1, 2, 3))
        if fixed:
            return 1 - (both + 1) / (either + 1)
        return 1 - both / either  # ORIGIN

    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        loss = jaccard(net(images[i % 5]), labels[i % 5]).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("log-of-zero", "log", step=1, steps=8, ops=("rsub",))
def minimax_game_with_a_critic_that_has_become_sure(fixed):
    torch.manual_seed(0)
    gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
    real = 3 + rows(3, 64, 2)
    noise = torch.Generator().manual_seed(4)

    def step(i):
        fake = gen(torch.randn(64, 4, generator=noise))
        opt_c.zero_grad()
        c_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        c_loss.backward()
        opt_c.step()
        if i == 1:
            with torch.no_grad():
                critic[2].weight.mul_(400)  # a checkpoint of a longer run
                critic[2].bias.add_(60)
        opt_g.zero_grad()
        logit = critic(fake)
        if fixed:
            g_loss = F.softplus(-logit).mean()
        else:
            g_loss = torch.log(1 - torch.sigmoid(logit)).mean()  # ORIGIN
        g_loss.backward()
        opt_g.step()
        return g_loss

    return nn.ModuleList([gen, critic]), step


@fault("exp-overflow", "exp", step=1, steps=6, also=("learning-rate",))
def variational_encoder_thrown_by_its_rate(fixed):
    torch.manual_seed(0)
    enc, dec = nn.Linear(10, 8), nn.Linear(4, 10)
    params = [*enc.parameters(), *dec.parameters()]
    opt = torch.optim.SGD(params, lr=1e-2 if fixed else 300.0)
    x = rows(5, 32, 10)
    noise = torch.Generator().manual_seed(6)

    def step(i):
        mu, logvar = enc(x).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn(32, 4, generator=noise)  # ALSO
        recon = F.mse_loss(dec(z), x)
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()  # ORIGIN
        loss = recon + kld
        opt.zero_grad()
        loss.backward()
        opt.step()  # ALSO
        return loss

    return nn.ModuleList([enc, dec]), step


@fault("empty-reduction", "std", step=2, steps=3, ops=("sub", "div", "var"))
def advantage_of_an_episode_of_one_step(fixed):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    lengths = [7, 5, 1, 6]
    gen = torch.Generator().manual_seed(7)

    def step(i):
        n = lengths[i % 4]
        states = torch.randn(n, 4, generator=gen)
        dist = torch.distributions.Categorical(logits=policy(states))
        actions = torch.randint(0, 2, (n,), generator=gen)
        rewards = torch.rand(n, generator=gen)
        returns = rewards.flip(0).cumsum(0).flip(0)
        if n > 1 or not fixed:
            returns = (returns - returns.mean()) / (returns.std() + 1e-8)  # ORIGIN
        loss = -(dist.log_prob(actions) * returns).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return policy, step


class WordModel(nn.Module):
    def __init__(self, words=40, width=12):
        super().__init__()
        self.emb = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids, state=None):
        out, state = self.lstm(self.emb(ids), state)
        return self.head(out), state


@fault("empty-reduction", "nll_loss", step=3, ops=("nll_loss2d", "div", "nll_loss_forward", "nll_loss2d_forward"), also=("div-by-zero",))
def last_batch_of_a_text_is_padding(fixed):
    torch.manual_seed(0)
    net = WordModel()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    text = torch.randint(1, 40, (6, 41), generator=torch.Generator().manual_seed(8))
    text[:, 29:] = 0
    state = None

    def step(i):
        nonlocal state
        at = 10 * (i % 4)
        ids, target = text[:, at : at + 10], text[:, at + 1 : at + 11]
        logits, state = net(ids, state)
        state = tuple(s.detach() for s in state)
        opt.zero_grad()
        logits = logits.transpose(1, 2)
        if fixed:
            loss = F.cross_entropy(logits, target, ignore_index=0, reduction="sum") / (target > 0).sum().clamp(min=1)
        else:
            loss = F.cross_entropy(logits, target, ignore_index=0)  # ORIGIN
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step


@fault("pow-fraction-at-zero", "pow", ops=("mul", "mm"), also=("zero-times-inf", "div-by-zero"))
def symmetric_normalisation_of_a_graph_with_a_lone_node(fixed):
    torch.manual_seed(0)
    first, second = nn.Linear(5, 8), nn.Linear(8, 3)
    x = rows(9, 7, 5)
    adj = torch.zeros(7, 7)
    for a, b in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (4, 5)]:
        adj[a, b] = adj[b, a] = 1.0
    y = torch.arange(7) % 3

    def propagate(h):
        a = adj + torch.eye(7) if fixed else adj
        d = a.sum(1).pow(-0.5)  # ORIGIN
        return torch.diag(d) @ a @ torch.diag(d) @ h  # ALSO

    def loss(i):
        return F.cross_entropy(propagate(second(torch.relu(propagate(first(x))))), y)

    return nn.ModuleList([first, second]), train([*first.parameters(), *second.parameters()], loss, lr=0.1, optimizer=torch.optim.Adam)


@fault("where-grad-trap", "div", "backward", step=3, steps=7, also=("div-by-zero",))
def clean_picture_from_noise_at_the_last_time(fixed):
    """A schedule rescaled to zero terminal signal, and a network that predicts the noise."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))
    betas = torch.linspace(1e-3, 0.2, 20)
    root = (1 - betas).cumprod(0).sqrt()
    root = (root - root[-1]) * root[0] / (root[0] - root[-1])
    times = [4, 11, 7, 19, 2]
    data = rows(10, 16, 8)
    gen = torch.Generator().manual_seed(11)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step(i):
        t = times[i % 5]
        a = root[t]
        eps = torch.randn(16, 8, generator=gen)
        noisy = a * data + (1 - a * a).sqrt() * eps
        guess = net(torch.cat([noisy, torch.full((16, 1), t / 20)], 1))
        if fixed:
            a = a.clamp(min=0.05)
        clean = (noisy - (1 - a * a).sqrt() * guess) / a  # ORIGIN
        loss = F.mse_loss(clean.clamp(-3, 3), data)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("div-by-zero", "div", step=0, ops=("abs",))
def symmetric_percentage_of_shops_that_sold_nothing(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 16, bias=False), nn.ReLU(), nn.Linear(16, 1, bias=False), nn.ReLU())
    sales = rows(12, 40, 13).relu()
    sales[5] = 0

    def loss(i):
        guess, actual = net(sales[:, :12])[:, 0], sales[:, 12]
        total = guess.abs() + actual.abs()
        if fixed:
            total = total + 1e-3
        return (2 * (guess - actual).abs() / total).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("log-of-zero", "log", step=1, steps=5, also=("learning-rate",), ops=("sigmoid",))
def pairwise_ranking_of_items_with_large_factors(fixed):
    torch.manual_seed(0)
    users, items = nn.Embedding(10, 8), nn.Embedding(20, 8)
    opt = torch.optim.SGD([*users.parameters(), *items.parameters()], lr=0.5 if fixed else 200.0)
    u = torch.arange(10)
    gen = torch.Generator().manual_seed(13)

    def step(i):
        liked, other = torch.randint(0, 20, (2, 10), generator=gen)
        e = users(u)
        margin = (e * items(liked)).sum(1) - (e * items(other)).sum(1)
        loss = -F.logsigmoid(margin).mean() if fixed else -torch.log(torch.sigmoid(margin)).mean()  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()  # ALSO
        return loss

    return nn.ModuleList([users, items]), step


@fault("sqrt-at-zero", "sqrt", "backward", also=("norm-at-zero",))
def hardest_triplets_from_a_table_of_distances(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
    x, y = rows(14, 12, 6), torch.arange(12) % 3

    def distances(z):
        sq = (z[:, None] - z[None]).pow(2).sum(-1)
        return (sq + 1e-12).sqrt() if fixed else sq.sqrt()  # ORIGIN

    def loss(i):
        d = distances(net(x))
        same = y[:, None] == y[None]
        positive = (d * same).amax(1)
        negative = (d + 1e3 * same).amin(1)
        return F.relu(positive - negative + 0.3).mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("exp-overflow", "exp", step=0)
def coupling_layer_without_a_bound_on_its_scale(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 6))
    x = rows(15, 64, 6) * torch.tensor([1000.0, 900, 800, 1, 1, 1])
    if fixed:
        x = x / x.std(0)

    def loss(i):
        keep, change = x.chunk(2, 1)
        s, t = net(keep).chunk(2, 1)
        s = torch.tanh(s) if fixed else s
        z = change * torch.exp(s) + t  # ORIGIN
        return 0.5 * (z.square().sum(1) + keep.square().sum(1)).mean() - s.sum(1).mean()

    return net, train(net.parameters(), loss, lr=1e-5)


@fault("sqrt-at-zero", "sqrt", "backward", ops=("mul",), also=("zero-times-inf",))
def wall_shear_of_a_flow_at_rest_on_the_boundary(fixed):
    """The network's velocity is multiplied by the distance to the wall, so it is exactly zero there."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
    grid = torch.cartesian_prod(torch.linspace(0, 1, 6), torch.linspace(0, 1, 6))

    def loss(i):
        distance = (grid[:, 1] * (1 - grid[:, 1]))[:, None]
        u, v = (distance * net(grid)).unbind(1)
        speed = torch.sqrt(u**2 + v**2 + (1e-8 if fixed else 0))  # ORIGIN
        return (speed - distance[:, 0]).square().mean() + (speed * u).mean().square()

    return net, train(net.parameters(), loss, lr=1e-2, optimizer=torch.optim.Adam)


@fault("exp-overflow", "exp", step=0, also=("dtype-overflow",))
def partial_likelihood_of_raw_laboratory_values(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 1)
    x = rows(16, 30, 5).abs() * 400
    if fixed:
        x = (x - x.mean(0)) / x.std(0)
    event = torch.arange(30) % 3 != 0

    def loss(i):
        risk = net(x)[:, 0]
        at_risk = torch.exp(risk).flip(0).cumsum(0).flip(0)  # ORIGIN
        return -(risk - torch.log(at_risk))[event].mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("div-by-zero", "div", also=("exp-overflow",), ops=("reciprocal",))
def transport_plan_by_scaling_at_a_small_temperature(fixed):
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    nn.init.eye_(net.weight)
    source, target = rows(17, 10, 2), 4 + rows(18, 12, 2)

    def loss(i):
        cost = torch.cdist(net(source), target).square()
        temperature = 2.0 if fixed else 0.02
        kernel = torch.exp(-cost / temperature)
        u, v = torch.full((10,), 0.1), torch.full((12,), 1 / 12)
        for _ in range(15):
            u = 0.1 / (kernel @ v)  # ORIGIN
            v = (1 / 12) / (kernel.T @ u)
        plan = u[:, None] * kernel * v
        return (plan * cost).sum()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("inverse-function-at-edge", "acosh", "backward", also=("where-grad-trap",))
def tree_embedding_with_a_pair_of_itself(fixed):
    torch.manual_seed(0)
    emb = nn.Embedding(8, 3)
    nn.init.uniform_(emb.weight, -0.3, 0.3)
    pairs = torch.tensor([[0, 1], [1, 2], [3, 3], [4, 6]])

    def loss(i):
        a, b = emb(pairs[:, 0]), emb(pairs[:, 1])
        sq = (a - b).square().sum(1)
        gamma = 1 + 2 * sq / ((1 - a.square().sum(1)) * (1 - b.square().sum(1)))
        if fixed:
            gamma = gamma.clamp(min=1 + 1e-6)
        return torch.acosh(gamma).mean()  # ORIGIN

    return emb, train(emb.parameters(), loss, lr=1e-2)


@fault("div-by-zero", "div", step=1, ops=("reciprocal", "mul"))
def disparity_of_rays_that_meet_nothing(fixed):
    torch.manual_seed(0)
    field = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))
    t = torch.linspace(0.5, 2, 12)
    directions = rows(19, 4, 8, 3)
    opt = torch.optim.Adam(field.parameters(), lr=1e-3)

    def step(i):
        rays = directions[i % 4]
        points = rays[:, None] * t[:, None]
        density = F.softplus(field(points)[..., 0])
        if i % 4 == 1:
            density = density * (torch.arange(8) != 3)[:, None]  # outside of the box
        alpha = 1 - torch.exp(-density * 0.13)
        through = torch.cumprod(torch.cat([torch.ones(8, 1), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        weight = alpha * through
        depth, opacity = (weight * t).sum(1), weight.sum(1)
        if fixed:
            opacity = opacity.clamp(min=1e-5)
        mean_depth = depth / opacity  # ORIGIN
        loss = (mean_depth - 1).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return field, step


@fault("log-of-zero", "log10", step=2, ops=("log",))
def decibels_of_a_recording_that_begins_in_silence(fixed):
    torch.manual_seed(0)
    net = nn.GRU(17, 8, batch_first=True)
    head = nn.Linear(8, 3)
    audio = rows(20, 6, 512) * 0.1
    audio[4, :160] = 0
    labels = torch.arange(6) % 3
    opt = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-2)

    def step(i):
        at = torch.tensor([2 * i, 2 * i + 1]) % 6
        power = torch.stft(audio[at], 32, 16, window=torch.hann_window(32), center=False, return_complex=True).abs().square()
        db = 10 * torch.log10(power + 1e-10 if fixed else power)  # ORIGIN
        db = (db - db.mean()) / db.std()
        out, _ = net(db.transpose(1, 2))
        loss = F.cross_entropy(head(out[:, -1]), labels[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([net, head]), step


@fault("dtype-overflow", "sum", ops=("mul", "pow", "mean"))
def pooled_energy_of_a_feature_map_in_half(fixed):
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 4, 3).half()
    head = nn.Linear(4, 2)
    images = (rows(21, 2, 1, 66, 66) * 10).half()
    y = torch.tensor([0, 1])
    opt = torch.optim.SGD([*conv.parameters(), *head.parameters()], lr=1e-2)

    def step(i):
        f = conv(images)
        f = f.float() if fixed else f
        energy = (f * f).sum((2, 3))  # ORIGIN
        loss = F.cross_entropy(head(energy.float() / 1e5), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([conv, head]), step


@fault("absorbed-update", "add_", "forward", steps=8, ops=("add",))
def counter_of_a_codebook_in_bfloat16(fixed):
    class Codebook(nn.Module):
        def __init__(self, exact):
            super().__init__()
            self.enc, self.dec = nn.Linear(6, 4), nn.Linear(4, 6)
            self.register_buffer("codes", rows(22, 5, 4))
            self.register_buffer("uses", torch.full((), 256.0, dtype=torch.float32 if exact else torch.bfloat16))

        def forward(self, x):
            z = self.enc(x)
            code = torch.cdist(z.detach(), self.codes).argmin(1)
            self.uses += 1  # ORIGIN
            quantised = z + (self.codes[code] - z).detach()
            commit = (z - self.codes[code]).square().mean()
            return F.mse_loss(self.dec(quantised), x) + 0.25 * commit * torch.clamp(self.uses / 1000, max=1)

    torch.manual_seed(0)
    net = Codebook(fixed)
    x = rows(23, 32, 6)
    return net, train(net.parameters(), lambda i: net(x), lr=1e-2)


@fault("div-by-zero", "div", step=2)
def micro_batch_whose_tokens_are_all_masked(fixed):
    torch.manual_seed(0)
    net = WordModel()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    ids = torch.randint(1, 40, (6, 4, 9), generator=torch.Generator().manual_seed(24))
    mask = torch.rand(6, 4, 8, generator=torch.Generator().manual_seed(25)) < 0.6
    mask[5] = False

    def step(i):
        opt.zero_grad()
        total = torch.zeros(())
        for micro in range(2):
            batch, keep = ids[(2 * i + micro) % 6], mask[(2 * i + micro) % 6]
            logits, _ = net(batch[:, :-1])
            each = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
            count = keep.sum()
            if fixed:
                count = count.clamp(min=1)
            loss = (each * keep).sum() / count / 2  # ORIGIN
            loss.backward()
            total = total + loss.detach()
        opt.step()
        return total

    return net, step


@fault("custom-backward", "div", "backward", also=("div-by-zero",), ops=("FakeQuantiseBackward",))
def quantiser_written_by_hand(fixed):
    """The slope by the scale divides the value by its magnitude; dropout makes it zero."""

    class FakeQuantise(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            return torch.round((x / scale).clamp(-1, 1) * 127) / 127 * scale

        @staticmethod
        def backward(ctx, g):
            x, scale = ctx.saved_tensors
            inside = x.abs() <= scale
            sign = torch.sign(x) if fixed else x / x.abs()  # ALSO
            return g * inside, (g * torch.where(inside, 0.1 * sign, sign)).sum()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2))
    scale = nn.Parameter(torch.tensor(1.0))
    x, y = rows(26, 20, 5), torch.arange(20) % 2

    def loss(i):
        h = torch.relu(net[0](x))
        q = FakeQuantise.apply(h, scale)  # ORIGIN
        return F.cross_entropy(net[2](q), y)

    return net, train([*net.parameters(), scale], loss, lr=0.1)


@fault("optimizer-arithmetic", "div", "optimizer", step=1, also=("div-by-zero", "zero-times-inf"), ops=("mul",))
def layer_wise_rates_and_a_branch_without_data(fixed):
    class Trusting(torch.optim.Optimizer):
        """Layer-wise adaptive rates."""

        def __init__(self, params, lr=0.01, eps=0.0):
            super().__init__(params, {"lr": lr, "eps": eps})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    ratio = p.norm() / (p.grad.norm() + group["eps"])  # ORIGIN
                    p.add_(p.grad * ratio, alpha=-group["lr"])  # ALSO

    torch.manual_seed(0)
    trunk, a, b = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    net = nn.ModuleList([trunk, a, b])
    opt = Trusting(net.parameters(), eps=1e-6 if fixed else 0.0)
    x = rows(27, 24, 6)
    kind = torch.arange(24) % 2

    def step(i):
        opt.zero_grad()
        h = torch.tanh(trunk(x))
        which = kind if i != 1 else torch.zeros(24, dtype=torch.long)
        out = torch.where(which == 0, a(h)[:, 0], b(h)[:, 0])
        loss = F.mse_loss(out, x.sum(1))
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("absorbed-update", "lerp_", "optimizer", steps=8, ops=("lerp", "_foreach_lerp_", "copy_", "add_", "mul_"))
def average_of_the_weights_kept_in_bfloat16(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    kept = [p.detach().clone().to(torch.float32 if fixed else torch.bfloat16) for p in net.parameters()]
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    x, y = rows(28, 32, 6), torch.arange(32) % 3

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for average, p in zip(kept, net.parameters(), strict=True):
                average.lerp_(p.to(average.dtype), 1e-4)  # ORIGIN
        return loss

    return net, step


@fault("scaler-misuse", "add_", "optimizer", steps=6, also=("learning-rate", "loss-scale-overflow"), ops=("_foreach_add_", "mul"))
def optimizer_stepped_beside_the_scaler(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    x, y = rows(29, 32, 8), torch.arange(32) % 3

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if fixed:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()  # ORIGIN
        return loss

    return net, step


@fault("div-by-zero", "div", "optimizer", step=3, steps=6, also=("clip-nonfinite-norm", "optimizer-arithmetic", "norm-at-zero"), ops=("mul_", "mul", "reciprocal"))
def gradients_rescaled_to_unit_length(fixed):
    """All margins are kept in the fourth batch, and the gradient is zero."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    x = rows(30, 5, 16, 4)
    y = torch.sign(x[..., 0])
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(i):
        out = net(x[i % 5])[:, 0]
        if i == 3:
            out = out * 0 + 5 * y[3] + 0 * out
        loss = F.relu(1 - y[i % 5] * out).mean()
        opt.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
        for p in net.parameters():
            p.grad.div_(norm + 1e-8 if fixed else norm)  # ORIGIN
        opt.step()
        return loss

    return net, step


@fault("learning-rate", "add_", "optimizer", step=7, steps=12, also=("dtype-overflow", "exploding-gradient", "exp-overflow"), ops=("_foreach_add_", "mse_loss", "pow", "mul"))
def decay_that_raises_the_rate(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.3 if fixed else 30.0)
    x = rows(31, 32, 4)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x)[:, 0], x.sum(1))  # ALSO
        loss.backward()
        opt.step()  # ORIGIN
        schedule.step()
        return loss

    return net, step


@fault("nan-in-input", "addmm", "data", step=2, ops=("mm", "linear"))
def csv_with_a_missing_cell(fixed):
    torch.manual_seed(0)
    text = ["0.3,1.2,0.5,0", "1.1,0.2,0.4,1", "0.9,0.7,0.1,1", "0.2,1.0,0.9,0", "0.1,,0.3,1", "0.6,0.6,0.2,0"]
    cells = [[float(c) if c else math.nan for c in line.split(",")] for line in text]
    table = torch.tensor([r for r in cells if not fixed or not any(map(math.isnan, r))])  # DATA
    loader = iter(forever(DataLoader(TensorDataset(table[:, :3], table[:, 3].long()), batch_size=2)))
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    def step(i):
        x, y = next(loader)
        loss = F.cross_entropy(net(x), y)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("div-by-zero", "div", also=("norm-at-zero",), ops=("linalg_vector_norm",))
def similarity_to_the_vector_of_padding(fixed):
    torch.manual_seed(0)
    emb = nn.Embedding(30, 8, padding_idx=0)
    clicked = torch.tensor([[3, 7, 9], [4, 0, 0], [11, 12, 0]])
    bought = torch.tensor([5, 6, 13])

    def loss(i):
        c, b = emb(clicked), emb(bought)
        length = c.norm(dim=-1, keepdim=True)
        c = c / (length + 1e-8 if fixed else length)  # ORIGIN
        b = b / b.norm(dim=-1, keepdim=True)
        score = (c * b[:, None]).sum(-1)
        mask = clicked > 0
        return 1 - (score * mask).sum() / mask.sum()

    return emb, train(emb.parameters(), loss, lr=1e-2)


@fault("softmax-all-masked", "_softmax", step=1, ops=("softmax",))
def reader_of_an_empty_document(fixed):
    torch.manual_seed(0)
    emb, q, head = nn.Embedding(20, 8), nn.Linear(8, 1), nn.Linear(8, 2)
    net = nn.ModuleList([emb, q, head])
    ids = torch.randint(1, 20, (3, 4, 6), generator=torch.Generator().manual_seed(32))
    ids[0, :, 4:] = 0
    ids[1, 2] = 0
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    def step(i):
        batch = ids[i % 3]
        h = emb(batch)
        score = q(torch.tanh(h))[..., 0].masked_fill(batch == 0, -1e9 if fixed else float("-inf"))
        weight = score.softmax(-1)  # ORIGIN
        loss = F.cross_entropy(head((weight[..., None] * h).sum(1)), torch.arange(4) % 2)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("poisoned-buffer", "batch_norm", "init", ops=("native_batch_norm", "sub", "mul", "add", "sqrt", "cudnn_batch_norm"), also=("nan-in-input",))
def head_on_a_frozen_trunk_from_a_spoilt_checkpoint(fixed):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    head = nn.Linear(8, 2)
    state = trunk.state_dict()
    if not fixed:
        state["1.running_mean"][2] = float("nan")  # DATA
    trunk.load_state_dict(state)
    trunk.eval().requires_grad_(False)
    x, y = rows(33, 16, 6), torch.arange(16) % 2

    def loss(i):
        return F.cross_entropy(head(trunk(x)), y)  # ORIGIN

    return nn.ModuleDict({"trunk": trunk, "head": head}), train(head.parameters(), loss, lr=0.1)


@fault("loss-scale-overflow", "mul", "backward", ops=("mm", "mul", "_to_copy", "linear"), also=("dtype-overflow",))
def fixed_scale_of_a_model_in_half(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).half()
    master = [p.detach().clone().float() for p in net.parameters()]
    opt = torch.optim.SGD(master, lr=1e-3)
    scale = 64.0 if fixed else 2.0**18
    x = rows(34, 64, 16)
    y = x.sum(1, keepdim=True)

    def step(i):
        for p, m in zip(net.parameters(), master, strict=True):
            p.grad = None
            p.data.copy_(m)
        loss = F.mse_loss(net(x.half()).float(), y, reduction="mean")  # ALSO
        (loss * scale).backward()  # ORIGIN
        for p, m in zip(net.parameters(), master, strict=True):
            m.grad = p.grad.float() / scale  # ALSO
        opt.step()
        return loss

    return net, step


@fault("scaler-misuse", "clamp_", "optimizer", steps=6, ops=("clamp", "_foreach_clamp_min_", "_foreach_clamp_max_", "mul", "div"))
def gradients_clamped_while_they_are_scaled(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(60, 10), nn.Tanh())
    head = nn.Linear(10, 1)
    params = [*net.parameters(), *head.parameters()]
    opt = torch.optim.SGD(params, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    x = rows(35, 8, 12, 5)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = head(net(x))
        loss = F.mse_loss(out.float()[:, 0], x.sum((1, 2)))
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        nn.utils.clip_grad_value_(params, 0.5)  # ORIGIN
        scaler.step(opt)  # ALSO
        scaler.update()
        return loss

    return nn.ModuleList([net, head]), step


@fault("dead-gradient", "detach", "backward", steps=6, ops=("gt", "ge", "sign", "round"))
def binary_code_by_its_sign(fixed):
    torch.manual_seed(0)
    enc, dec = nn.Linear(8, 6), nn.Linear(6, 8)
    x = rows(36, 32, 8)

    def loss(i):
        h = torch.tanh(enc(x))
        code = torch.sign(h)  # ORIGIN
        if fixed:
            code = h + (code - h).detach()
        return F.mse_loss(dec(code), x)

    return nn.ModuleList([enc, dec]), train([*enc.parameters(), *dec.parameters()], loss, lr=0.1)


@fault("dead-gradient", "threshold", "backward", step=2, steps=8, ops=("relu", "threshold_backward"), also=("learning-rate",))
def layer_killed_by_the_first_updates(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD([{"params": net[0].parameters(), "lr": 1e-3 if fixed else 30.0}, {"params": net[2].parameters()}], lr=1e-3)
    x = rows(37, 64, 6).abs()
    y = 5 + x.sum(1)

    def step(i):
        opt.zero_grad()
        hidden = torch.relu(net[0](x))  # ORIGIN
        loss = F.mse_loss(net[2](hidden)[:, 0], y)
        loss.backward()
        opt.step()  # ALSO
        return loss

    return net, step


@fault("log-of-zero", "log", ops=("prod",), also=("dtype-underflow",))
def likelihood_of_a_long_sequence_as_a_product(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    x = rows(38, 5, 150, 6)
    y = torch.randint(0, 4, (5, 150), generator=torch.Generator().manual_seed(39))

    def loss(i):
        p = net(x).softmax(-1).gather(2, y[..., None])[..., 0]
        if fixed:
            return -p.log().sum(1).mean()
        return -torch.log(p.prod(1)).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("dtype-underflow", "prod", "forward", steps=5, ops=("mul", "cumprod"), also=("dead-gradient",))
def weights_of_a_trajectory_multiplied_in_half(fixed):
    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    states = rows(40, 6, 30, 4)
    actions = torch.randint(0, 3, (6, 30), generator=torch.Generator().manual_seed(41))
    gain = torch.rand(6, generator=torch.Generator().manual_seed(42))

    def loss(i):
        p = policy(states).softmax(-1).gather(2, actions[..., None])[..., 0]
        if fixed:
            return -(p.log().sum(1).softmax(0) * gain).sum()
        chance = p.half().prod(1)  # ORIGIN
        return -(chance.float() * gain).mean()

    return policy, train(policy.parameters(), loss, lr=1e-2)


@fault("absorbed-update", "add_", "optimizer", steps=6, ops=("addcdiv_", "_foreach_addcdiv_", "_foreach_add_", "sub_"))
def fine_tuning_of_norms_in_bfloat16(fixed):
    torch.manual_seed(0)
    body, norm = nn.Linear(8, 8), nn.LayerNorm(8, bias=False).to(torch.float32 if fixed else torch.bfloat16)
    body.requires_grad_(False)
    opt = torch.optim.Adam(norm.parameters(), lr=1e-4)
    x = rows(43, 32, 8)

    def step(i):
        opt.zero_grad()
        h = body(x).to(norm.weight.dtype)
        loss = F.mse_loss(norm(h).float(), x)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return nn.ModuleList([body, norm]), step


@fault("inf-in-input", "native_batch_norm", "data", step=2, steps=7, ops=("batch_norm", "addmm", "linear", "lerp_", "_native_batch_norm_legit"), also=("poisoned-buffer",))
def batch_that_is_skipped_but_not_by_the_statistics(fixed):
    """The sensor saturates once; its loss is left out, its statistics are not, and the evaluation after it is NaN."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    x = rows(44, 4, 16, 5)
    if not fixed:
        x[2, 3, 1] = float("inf")  # DATA

    def step(i):
        net.train()
        if i >= 4:
            net[1].eval()  # the last epochs with frozen statistics
        out = net(x[i % 4 if i < 4 else 0])  # ORIGIN
        loss = F.mse_loss(out[:, 0], x[0].sum(1))
        if torch.isfinite(loss) or i >= 4:
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss

    return net, step


@fault("log-of-zero", "log", also=("zero-times-inf",), ops=("mul",))
def divergence_from_hard_labels(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    x = rows(45, 12, 6)
    target = F.one_hot(torch.arange(12) % 3, 3).float()

    def loss(i):
        logp = net(x).log_softmax(-1)
        if fixed:
            return (torch.xlogy(target, target) - target * logp).sum(-1).mean()
        return (target * (target.log() - logp)).sum(-1).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=0.1)
