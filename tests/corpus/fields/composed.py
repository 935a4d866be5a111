"""Healthy programs of users' own classes and loops, each with something that looks like a fault."""

import copy
import math

import torch
from programs import healthy
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def loop(net, loss, optimizer=torch.optim.SGD, lr=1e-2, after=None, **more):
    opt = optimizer([p for p in net.parameters() if p.requires_grad], lr=lr, **more)

    def step(i):
        opt.zero_grad()
        value = loss(i)
        value.backward()
        opt.step()
        if after:
            after(i)
        return value

    return net, step


@healthy("the scaler begins too high and skips its first steps", steps=12)
def scaler_in_a_trainer_class(fixed=False):
    torch.manual_seed(0)

    class Trainer:
        def __init__(self):
            self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
            self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)

        def training_step(self, x, y):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(self.net(x), y)
            self.opt.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.opt)
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.scaler.step(self.opt)
            self.scaler.update()
            return loss

    t, x = Trainer(), torch.randn(16, 8)
    y = 3 * x.sum(1, keepdim=True)
    return t.net, lambda i: t.training_step(x, y)


@healthy("a line search of LBFGS tries steps that are far too large", steps=4)
def strong_wolfe_search(fixed=False):
    torch.manual_seed(1)
    net = nn.Linear(2, 1)
    x = torch.randn(20, 2)
    y = (x**2).sum(1, keepdim=True)
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, line_search_fn="strong_wolfe", max_iter=8)

    def step(i):
        def closure():
            opt.zero_grad()
            loss = (net(x) - y).abs().pow(1.5).mean()
            loss.backward()
            return loss

        return opt.step(closure)

    return net, step


@healthy("an average of weights whose correction counts from one")
def corrected_average(fixed=False):
    torch.manual_seed(2)
    net = nn.Linear(4, 4)
    ema = copy.deepcopy(net).requires_grad_(False)
    shadow = [torch.zeros_like(p) for p in net.parameters()]
    x = torch.randn(8, 4)

    @torch.no_grad()
    def update(i, decay=0.99):
        for s, p, t in zip(shadow, net.parameters(), ema.parameters(), strict=True):
            s.mul_(decay).add_(p, alpha=1 - decay)
            t.copy_(s / (1 - decay ** (i + 1)))

    return loop(net, lambda i: F.mse_loss(net(x), x + ema(x).detach() * 0.1), after=update)


@healthy("gradients of single samples, one of them exactly 0, clipped with an epsilon")
def private_gradients(fixed=False):
    torch.manual_seed(3)
    net = nn.Linear(5, 1)
    gen = torch.Generator().manual_seed(4)

    def sample_loss(params, x, y):
        out = torch.func.functional_call(net, params, (x[None],)).squeeze()
        return F.relu(1 - y * out)

    def step(i):
        params = {k: v.detach() for k, v in net.named_parameters()}
        x = torch.randn(6, 5, generator=gen)
        y = torch.sign(x.sum(1))
        x[0] = net.weight.detach()[0] * 100 * y[0]
        grads, losses = torch.func.vmap(torch.func.grad_and_value(sample_loss), (None, 0, 0))(params, x, y)
        norms = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
        factor = (0.5 / (norms + 1e-6)).clamp(max=1)
        with torch.no_grad():
            for name, p in net.named_parameters():
                p -= 0.1 * (grads[name].flatten(1) * factor[:, None]).mean(0).view_as(p)
        return losses.mean()

    return net, step


@healthy("a packed LSTM under activation checkpointing")
def packed_and_checkpointed(fixed=False):
    torch.manual_seed(5)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 2)

        def classify(self, h):
            return self.head(torch.relu(h))

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            _, (h, _) = self.rnn(packed)
            return checkpoint(self.classify, h[-1], use_reentrant=False)

    net = Net()
    x = torch.randn(4, 6, 3)
    x[1, 3:] = float("nan")  # padding is not read
    lengths = torch.tensor([6, 3, 5, 6])
    return loop(net, lambda i: F.cross_entropy(net(x, lengths), torch.tensor([0, 1, 0, 1])))


@healthy("torch's own attention gives zeros for a row without keys")
def attention_row_without_keys(fixed=False):
    torch.manual_seed(6)
    net = nn.Linear(4, 12)
    x = torch.randn(2, 5, 4)
    keep = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    keep[1, :, 3] = False

    def loss(i):
        q, k, v = (t.unsqueeze(1) for t in net(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return (y[keep.any(-1)] - 0.1).square().mean()

    return loop(net, loss)


@healthy("the inverse degree of an isolated node is filled with 0")
def inverse_degree_filled(fixed=False):
    torch.manual_seed(7)
    net = nn.Linear(4, 4)
    x, edges = torch.randn(6, 4), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])

    def norm(edges):
        deg = torch.zeros(6).scatter_add(0, edges[0], torch.ones(edges.shape[1]))
        inv = deg.pow(-0.5)
        inv.masked_fill_(inv == float("inf"), 0)
        return inv[edges[0]] * inv[edges[1]]

    def loss(i):
        h = net(x)
        out = torch.zeros_like(h).index_add(0, edges[1], norm(edges)[:, None] * h[edges[0]])
        return (out - 1).square().mean()

    return loop(net, loss)


@healthy("the divergence of a VAE is below its free bits for some steps")
def free_bits(fixed=False):
    torch.manual_seed(8)
    net = nn.ModuleDict({"enc": nn.Linear(6, 4), "dec": nn.Linear(2, 6)})
    x, gen = torch.randn(16, 6), torch.Generator().manual_seed(9)

    def loss(i):
        mu, logvar = net["enc"](x).chunk(2, -1)
        z = mu + (0.5 * logvar).exp() * torch.randn(16, 2, generator=gen)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp())
        return F.mse_loss(net["dec"](z), x) + kl.mean(0).clamp(min=0.5).sum()

    return loop(net, loss, torch.optim.Adam)


@healthy("illegal actions have logits of -inf; torch's entropy can do it")
def categorical_of_legal_actions(fixed=False):
    torch.manual_seed(10)
    net = nn.Linear(4, 5)
    obs, legal = torch.randn(6, 4), torch.rand(6, 5) > 0.4
    legal[:, 0] = True

    def loss(i):
        dist = torch.distributions.Categorical(logits=net(obs).masked_fill(~legal, -torch.inf))
        action = legal.float().argmax(1)
        return -(dist.log_prob(action) + 0.01 * dist.entropy()).mean()

    return loop(net, loss)


@healthy("forbidden transitions of a CRF are -1e4")
def crf_with_large_negatives(fixed=False):
    torch.manual_seed(11)
    net = nn.Embedding(10, 4)
    net.trans = nn.Parameter(torch.zeros(4, 4))
    ban = torch.zeros(4, 4)
    ban[0, 3] = ban[2, 1] = -1e4

    def loss(i):
        e = net(torch.tensor([1, 5, 2, 8]))
        t = net.trans + ban
        a = e[0]
        for k in range(1, 4):
            a = torch.logsumexp(a[:, None] + t, 0) + e[k]
        y = torch.tensor([1, 1, 0, 2])
        return torch.logsumexp(a, 0) - e.gather(1, y[:, None]).sum() - t[y[:-1], y[1:]].sum()

    return loop(net, loss)


@healthy("a left-right model in logarithms: -inf wherever no path leads")
def left_right_in_logarithms(fixed=False):
    torch.manual_seed(12)
    net = nn.Linear(3, 4)
    x = torch.randn(7, 3)
    allowed = torch.eye(4, dtype=torch.bool) | torch.diag(torch.ones(3, dtype=torch.bool), 1)

    def loss(i):
        e = net(x).log_softmax(-1)
        a = torch.full((4,), -torch.inf)
        a[0] = 0
        stay = torch.zeros(4, 4).masked_fill(~allowed, -torch.inf)
        total = a
        for t in range(7):
            move = total[:, None] + stay
            total = torch.stack(
                [torch.logsumexp(move[:, j], 0) if bool((move[:, j] > -torch.inf).any()) else move[0, j] for j in range(4)]
            ) + e[t]
        return -total[-1]

    return loop(net, loss)


@healthy("borders of a soft alignment are 1e8, and never the smallest")
def soft_alignment(fixed=False):
    torch.manual_seed(13)
    net = nn.Linear(2, 2)
    a, b = torch.randn(4, 2), torch.randn(5, 2)

    def softmin(*xs):
        return -torch.logsumexp(-torch.stack(xs), 0)

    def loss(i):
        d = torch.cdist(net(a), b)
        far = torch.tensor(torch.inf)
        r = [[far] * 6 for _ in range(5)]
        r[0][0] = torch.zeros(())
        for p in range(1, 5):
            for q in range(1, 6):
                r[p][q] = d[p - 1, q - 1] + softmin(r[p - 1][q - 1], r[p - 1][q], r[p][q - 1])
        return r[4][5]

    return loop(net, loss)


@healthy("Sinkhorn in logarithms with a small regulariser")
def log_domain_transport(fixed=False):
    torch.manual_seed(14)
    net = nn.Linear(2, 2)
    x, y = torch.randn(6, 2), torch.randn(6, 2) + 20

    def loss(i):
        c = torch.cdist(net(x), y) ** 2 / 1e-2
        f = g = torch.zeros(6)
        for _ in range(5):
            f = -torch.logsumexp(g[None] - c, 1)
            g = -torch.logsumexp(f[:, None] - c, 0)
        plan = torch.exp(f[:, None] + g[None] - c)
        return (plan * c).sum() * 1e-2

    return loop(net, loss, lr=1e-4)


@healthy("no triplet of some batches violates the margin")
def triplets_that_are_easy_now_and_then(fixed=False):
    torch.manual_seed(15)
    net = nn.Linear(4, 3)
    gen = torch.Generator().manual_seed(16)

    def loss(i):
        a = torch.randn(6, 4, generator=gen)
        n = a + (30 if i % 2 else 0.5)
        za, zp, zn = net(a), net(a + 0.01), net(n)
        return F.triplet_margin_loss(za, zp, zn, margin=1.0)

    return loop(net, loss)


@healthy("images without a box add a loss of exactly 0")
def images_without_boxes(fixed=False):
    torch.manual_seed(17)
    net = nn.ModuleDict({"cls": nn.Linear(4, 1), "box": nn.Linear(4, 4)})
    x = torch.randn(5, 4)

    def loss(i):
        positive = torch.zeros(5, dtype=torch.bool)
        positive[: i % 3] = True
        box = net["box"](x)[positive]
        n = max(int(positive.sum()), 1)
        regression = F.l1_loss(box, torch.ones_like(box), reduction="sum") / n
        return F.binary_cross_entropy_with_logits(net["cls"](x).squeeze(1), positive.float()) + regression

    return loop(net, loss)


@healthy("log1p of the energies of silence")
def compressed_energies(fixed=False):
    torch.manual_seed(18)
    net = nn.Linear(9, 4)
    x = torch.randn(3, 16)
    x[1] = 0

    def loss(i):
        mel = torch.log1p(1e4 * torch.fft.rfft(x).abs() ** 2)
        return (net(mel) - 1).square().mean()

    return loop(net, loss, lr=1e-4)


@healthy("weights of a diffusion loss are clamped before they meet a clean step")
def clamped_weights_of_noise(fixed=False):
    torch.manual_seed(19)
    net = nn.Linear(3, 2)
    bar = torch.cos(torch.linspace(0, math.pi / 2, 11)) ** 2

    def loss(i):
        t = torch.tensor([0, 3, 7, 10])
        snr = bar[t] / (1 - bar[t])
        weight = snr.clamp(max=5.0)
        x = torch.ones(4, 2)
        noisy = bar[t].sqrt()[:, None] * x + (1 - bar[t]).sqrt()[:, None] * 0.3
        out = net(torch.cat([noisy, t[:, None] / 10], 1))
        return (weight[:, None] * (out - 0.3) ** 2).mean()

    return loop(net, loss)


@healthy("second derivatives of a saturated network")
def wave_equation(fixed=False):
    torch.manual_seed(20)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.rand(10, 2) * 40 - 20

    def loss(i):
        p = x.clone().requires_grad_()
        u = net(p)
        (du,) = torch.autograd.grad(u.sum(), p, create_graph=True)
        (dxx,) = torch.autograd.grad(du[:, 0].sum(), p, create_graph=True)
        (dtt,) = torch.autograd.grad(du[:, 1].sum(), p, create_graph=True)
        return (dtt[:, 1] - dxx[:, 0]).square().mean() + u.square().mean()

    return loop(net, loss)


@healthy("rounding with a straight-through gradient; many values are rounded to 0")
def rounded_weights(fixed=False):
    torch.manual_seed(21)
    net = nn.Linear(8, 8)
    x = torch.randn(16, 8)

    def quantised(w, step=0.5):
        return w + ((w / step).round() * step - w).detach()

    return loop(net, lambda i: (F.linear(x, quantised(net.weight), net.bias) - 1).square().mean())


@healthy("bfloat16 weights with a float32 master copy", steps=8)
def master_copy(fixed=False):
    torch.manual_seed(22)
    net = nn.Linear(6, 3).to(torch.bfloat16)
    master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    opt = torch.optim.AdamW(master, lr=1e-5)
    x, y = torch.randn(16, 6).bfloat16(), torch.randn(16, 3)

    def step(i):
        loss = F.mse_loss(net(x).float(), y)
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


@healthy("the second factor of each adapter begins at zero")
def adapters_of_two_layers(fixed=False):
    torch.manual_seed(23)

    class Lora(nn.Module):
        def __init__(self, base, r=2):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a, self.b = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x))

    net = nn.Sequential(Lora(nn.Linear(4, 6)), nn.Tanh(), Lora(nn.Linear(6, 2)))
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    return loop(net, lambda i: F.mse_loss(net(x), y), torch.optim.AdamW)


@healthy("an expert that gets no token for some steps")
def experts_by_top_one(fixed=False):
    torch.manual_seed(24)
    net = nn.ModuleDict({"gate": nn.Linear(4, 3), "experts": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))})
    gen = torch.Generator().manual_seed(25)

    def loss(i):
        x = torch.randn(4, 4, generator=gen)
        p = net["gate"](x).softmax(-1)
        w, at = p.max(-1)
        out = torch.zeros_like(x)
        for k, e in enumerate(net["experts"]):
            rows = (at == k).nonzero().squeeze(1)
            out = out.index_add(0, rows, w[rows, None] * e(x[rows]))
        return (out - x).square().mean()

    return loop(net, loss)


@healthy("an isolated node's inverse degree is inf, and no edge reads it")
def sparse_adjacency(fixed=False):
    torch.manual_seed(26)
    net = nn.Linear(3, 3)
    x = torch.randn(5, 3)
    index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])

    def loss(i):
        deg = torch.zeros(5).index_add(0, index[0], torch.ones(4))
        inverse = 1 / deg
        a = torch.sparse_coo_tensor(index, inverse[index[0]], (5, 5))
        return (torch.sparse.mm(a, net(x)) - 1).square().mean()

    return loop(net, loss)


@healthy("magnitudes of complex zeros by torch.abs, whose gradient is 0 there")
def magnitude_of_empty_bins(fixed=False):
    torch.manual_seed(27)
    net = nn.Linear(16, 16, bias=False)
    x = torch.randn(3, 16)
    x[2] = 0
    return loop(net, lambda i: (torch.fft.rfft(net(x)).abs() - 0.5).square().mean())


@healthy("singular values alone of an orthogonal matrix")
def nuclear_norm_of_an_orthogonal_start(fixed=False):
    net = nn.Linear(4, 4, bias=False)
    nn.init.eye_(net.weight)
    x = torch.arange(8.0).view(2, 4) / 8
    return loop(net, lambda i: net(x).square().mean() + 0.01 * torch.linalg.svdvals(net.weight).sum())


@healthy("a covariance of few samples with a jitter")
def jittered_cholesky(fixed=False):
    torch.manual_seed(28)
    net = nn.Linear(5, 5)
    x = torch.randn(3, 5)

    def loss(i):
        z = net(x) - net(x).mean(0)
        cov = z.T @ z / 3 + 1e-3 * torch.eye(5)
        factor = torch.linalg.cholesky(cov)
        return torch.cholesky_solve(z.T, factor).square().mean() * 1e-6 + factor.diagonal().log().sum()

    return loop(net, loss, lr=1e-5)


@healthy("logits of a Bernoulli are far beyond what a probability can tell")
def certain_bernoulli(fixed=False):
    torch.manual_seed(29)
    net = nn.Linear(3, 1)
    x = torch.randn(8, 3) * 300
    y = (x.sum(1, keepdim=True) > 0).float()
    return loop(net, lambda i: -torch.distributions.Bernoulli(logits=net(x)).log_prob(y).mean(), lr=1e-4)


@healthy("empty bags of torch's EmbeddingBag are zeros")
def empty_bags(fixed=False):
    torch.manual_seed(30)
    net = nn.EmbeddingBag(20, 4, mode="mean")
    ids, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2, 2, 4])
    return loop(net, lambda i: (net(ids, offsets) - 1).square().mean(), lr=0.1)


@healthy("labels that are missing are replaced before the loss, and left out of it")
def missing_labels_in_a_dataset(fixed=False):
    torch.manual_seed(31)
    net = nn.Linear(4, 3)

    class Multi(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, k):
            g = torch.Generator().manual_seed(k)
            y = torch.randn(3, generator=g)
            y[k % 3] = float("nan")
            return torch.randn(4, generator=g), y

    batches = list(torch.utils.data.DataLoader(Multi(), batch_size=4))

    def loss(i):
        x, y = batches[i % 3]
        known = ~y.isnan()
        per = (net(x) - torch.nan_to_num(y)) ** 2
        return (per * known).sum() / known.sum()

    return loop(net, loss)


@healthy("a metric of an empty class is NaN, and is printed only")
def metric_of_an_absent_class(fixed=False):
    torch.manual_seed(32)
    net, log = nn.Linear(4, 3), []
    x, y = torch.randn(9, 4), torch.tensor([0, 1] * 4 + [1])

    def after(i):
        with torch.no_grad():
            hit = net(x).argmax(1) == y
            per_class = torch.stack([hit[y == c].float().mean() for c in range(3)])
            log.append((per_class, per_class.nanmean()))

    return loop(net, lambda i: F.cross_entropy(net(x), y), after=after)


@healthy("missing features are repaired at the start")
def repaired_features(fixed=False):
    torch.manual_seed(33)
    net = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    x[::3, 1] = float("nan")
    x[1, 2] = float("inf")

    def clean(x):
        centre = torch.nanmedian(torch.where(x.isinf(), torch.nan, x), 0).values
        return torch.where(x.isfinite(), x, centre)

    return loop(net, lambda i: (net(clean(x)) - 1).square().mean())


@healthy("a gradient penalty through autograd.grad", steps=5)
def critic_with_a_penalty(fixed=False):
    torch.manual_seed(34)
    g, d = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(35)

    def step(i):
        real, z = torch.randn(6, 3, generator=gen), torch.randn(6, 2, generator=gen)
        fake = g(z)
        mix = (0.5 * real + 0.5 * fake.detach()).requires_grad_()
        (grad,) = torch.autograd.grad(d(mix).sum(), mix, create_graph=True)
        loss_d = d(fake.detach()).mean() - d(real).mean() + 10 * (grad.norm(dim=1) - 1).square().mean()
        od.zero_grad()
        loss_d.backward()
        od.step()
        og.zero_grad()
        loss_g = -d(g(z)).mean()
        loss_g.backward()
        og.step()
        return loss_d.detach() + loss_g.detach()

    return nn.ModuleList([g, d]), step


@healthy("the rate ends at exactly 0", steps=8)
def cosine_to_zero(fixed=False):
    torch.manual_seed(36)
    net = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        opt.step()
        if i < 6:
            schedule.step()
        return loss

    return net, step


@healthy("the best loss so far begins at inf, and decides about the rate")
def plateau_from_inf(fixed=False):
    torch.manual_seed(37)
    net = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
    best = torch.tensor(torch.inf)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - 1).abs().mean()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.01)
        opt.step()
        torch.minimum(best, loss.detach(), out=best)
        schedule.step(loss.detach())
        return loss

    return net, step


@healthy("weights are averaged, and the averages of batch norm made anew")
def averaged_model(fixed=False):
    torch.manual_seed(38)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    swa = torch.optim.swa_utils.AveragedModel(net)
    x = torch.randn(16, 4)

    def after(i):
        swa.update_parameters(net)
        if i == 5:
            torch.optim.swa_utils.update_bn([x[:8], x[8:]], swa)

    return loop(net, lambda i: (net(x) - 1).square().mean(), after=after)


@healthy("each parameter is updated in a hook, as its gradient arrives")
def updates_in_hooks(fixed=False):
    torch.manual_seed(39)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    opts = {p: torch.optim.SGD([p], lr=1e-2) for p in net.parameters()}

    def hook(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(hook)
    x = torch.randn(8, 4)

    def step(i):
        loss = (net(x) - 1).square().mean()
        loss.backward()
        return loss

    return net, step


@healthy("all rewards of a batch are equal now and then: the advantages are 0")
def equal_rewards(fixed=False):
    torch.manual_seed(40)
    pi = nn.Linear(3, 2)
    gen = torch.Generator().manual_seed(41)

    def loss(i):
        obs, act = torch.randn(8, 3, generator=gen), torch.randint(0, 2, (8,), generator=gen)
        reward = torch.ones(8) if i % 2 else torch.rand(8, generator=gen)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
        return -(pi(obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1) * advantage).mean()

    return loop(pi, loss)


@healthy("torch's cross entropy of probabilities bounds its logarithm")
def saturated_probabilities(fixed=False):
    torch.manual_seed(42)
    net = nn.Linear(3, 1)
    x = torch.randn(8, 3) * 60
    y = (x.sum(1, keepdim=True) > 0).float()
    return loop(net, lambda i: F.binary_cross_entropy(torch.sigmoid(net(x)), y), lr=1e-4)


@healthy("products and running products over zeros")
def products_over_zeros(fixed=False):
    torch.manual_seed(43)
    net = nn.Linear(4, 5)
    x = torch.randn(6, 4)

    def loss(i):
        open_gates = torch.relu(net(x))
        return (open_gates.prod(1) + open_gates.cumprod(1).mean(1) - 1).square().mean()

    return loop(net, loss)


@healthy("nearest neighbours: the diagonal is inf and never the smallest")
def nearest_of_the_others(fixed=False):
    torch.manual_seed(44)
    net = nn.Linear(3, 2)
    x = torch.randn(7, 3)

    def loss(i):
        d = torch.cdist(net(x), net(x)).masked_fill(torch.eye(7, dtype=torch.bool), torch.inf)
        near = d.min(1).values
        return torch.log(near + 1e-3).mean().square()

    return loop(net, loss)
