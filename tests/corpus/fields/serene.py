"""Healthy loops, losses and layers that look wrong."""

import math

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@healthy("a loss that is not finite is looked at, and its batch is left out", steps=6)
def batch_that_is_refused(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)

    def step(i):
        x = drawn(i, 6, 3)
        if i == 3:
            x[2] = float("inf")
        opt.zero_grad()
        loss = (net(x)[:, 0] - 1).square().mean()
        if not torch.isfinite(loss):
            return torch.zeros(())
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("a query without keys gives NaN, which is replaced before and after")
def attention_rows_that_are_filled_in(fixed):
    torch.manual_seed(1)
    net = nn.Linear(4, 4)
    seen = torch.ones(5, 5, dtype=torch.bool).tril(-1)

    def loss(i):
        h = net(drawn(i, 5, 4))
        some = seen.any(1, keepdim=True)
        score = (h @ h.T).masked_fill(~seen & some, -math.inf)
        p = torch.softmax(score, -1) * some
        return (p @ h - 1).square().mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("neighbours by topk over distances; the own distance is infinite")
def graph_of_the_nearest(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 2)

    def loss(i):
        z = net(drawn(i, 10, 3))
        d = torch.cdist(z, z).detach().fill_diagonal_(math.inf)
        near = d.topk(3, largest=False).indices
        return (z - z[near].mean(1)).square().mean() - 0.01 * z.var(0).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("two optimizers share one scaler; a step of one is skipped", steps=8)
def pair_of_optimizers_under_one_scale(fixed):
    torch.manual_seed(3)
    a, b = nn.Linear(4, 4), nn.Linear(4, 2)
    oa, ob = torch.optim.SGD(a.parameters(), lr=0.05), torch.optim.Adam(b.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)

    def step(i):
        oa.zero_grad()
        ob.zero_grad()
        x = drawn(i, 8, 4)
        with torch.autocast("cpu", dtype=torch.float16):
            out = b(a(x).relu())
        loss = F.cross_entropy(out.float(), torch.arange(8) % 2)
        scaler.scale(loss).backward()
        scaler.unscale_(oa)
        nn.utils.clip_grad_norm_(a.parameters(), 1.0)
        scaler.step(oa)
        scaler.step(ob)
        scaler.update()
        return loss

    return nn.ModuleList([a, b]), step


@healthy("probabilities that are exactly 0 and 1 go into binary cross entropy, which bounds its logarithm")
def saturated_probabilities(fixed):
    torch.manual_seed(4)
    net = nn.Linear(2, 1)

    def loss(i):
        x = drawn(i, 8, 2) * 100
        p = torch.sigmoid(net(x))[:, 0]
        return F.binary_cross_entropy(p, (x[:, 0] > 0).float()) * 1e-2

    return net, train(net.parameters(), loss, lr=1e-4)


@healthy("x log x at 0 by xlogy and entr")
def entropies_with_zeros(fixed):
    torch.manual_seed(5)
    net = nn.Linear(3, 4)

    def loss(i):
        p = F.one_hot(torch.arange(6) % 4, 4).float()
        q = net(drawn(i, 6, 3)).log_softmax(-1)
        return (torch.xlogy(p, p) - p * q).sum(-1).mean() + torch.special.entr(p).sum() * 0.1

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("empty bags give zeros")
def bags_some_of_which_are_empty(fixed):
    torch.manual_seed(6)
    bag, head = nn.EmbeddingBag(20, 4, mode="mean"), nn.Linear(4, 2)
    words = torch.tensor([1, 2, 3, 7, 8])
    starts = torch.tensor([0, 2, 2, 5])

    def loss(i):
        return F.cross_entropy(head(bag(words, starts)), torch.tensor([0, 1, 0, 1]))

    return nn.ModuleList([bag, head]), train([*bag.parameters(), *head.parameters()], loss, lr=0.1)


@healthy("layer norm and cosine similarity of zeros have their epsilon")
def blank_rows_through_norms(fixed):
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6))

    def loss(i):
        x = drawn(i, 5, 4)
        x[2] = 0
        h = net(x)
        return 1 - F.cosine_similarity(net[0](x), h.detach(), dim=1).mean() + h.square().mean() * 0.01

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("scores overflow float16 and are clamped to its range")
def scores_brought_back_into_half(fixed):
    torch.manual_seed(8)
    net = nn.Linear(4, 4)

    def loss(i):
        h = net(drawn(i, 6, 4) * 100)
        with torch.no_grad():
            s = (h.half() @ h.half().T * 4).clamp(-6e4, 6e4)
            w = s.float().softmax(-1)
        return (w @ h).square().mean() * 1e-4

    return net, train(net.parameters(), loss, lr=1e-3)


@healthy("truncated backpropagation: the state is detached, the early inputs get no gradient")
def carried_state_that_is_cut(fixed):
    torch.manual_seed(9)
    rnn, head = nn.RNNCell(2, 5), nn.Linear(5, 1)
    params = [*rnn.parameters(), *head.parameters()]
    opt = torch.optim.Adam(params, lr=1e-2)
    h = torch.zeros(4, 5)

    def step(i):
        nonlocal h
        opt.zero_grad()
        total = 0.0
        for t in range(3):
            x = drawn(3 * i + t, 4, 2)
            h = rnn(x, h)
            total = total + (head(h)[:, 0] - x[:, 0]).square().mean()
        total.backward()
        opt.step()
        h = h.detach()
        return total

    return nn.ModuleList([rnn, head]), step


@healthy("the weight of a term begins at 0 and rises", steps=8)
def penalty_that_is_annealed(fixed):
    torch.manual_seed(10)
    enc, dec = nn.Linear(4, 4), nn.Linear(2, 4)
    gen = torch.Generator().manual_seed(11)

    def loss(i):
        x = drawn(i, 8, 4)
        mu, logvar = enc(x).chunk(2, -1)
        z = mu + (0.5 * logvar).exp() * torch.randn(mu.shape, generator=gen)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(-1).mean()
        return F.mse_loss(dec(z), x) + min(1.0, i / 4) * kl

    return nn.ModuleList([enc, dec]), train([*enc.parameters(), *dec.parameters()], loss, lr=1e-2)


@healthy("an all-ignored micro-batch: the sum of its losses is 0, the divisor counts the window", steps=5)
def window_with_an_idle_part(fixed):
    torch.manual_seed(12)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(i):
        opt.zero_grad()
        parts = [torch.tensor([0, 1, 2]), torch.full((3,), -100)]
        tokens = sum((y != -100).sum() for y in parts)
        total = 0.0
        for k, y in enumerate(parts):
            loss = F.cross_entropy(net(drawn(2 * i + k, 3, 4)), y, reduction="sum") / tokens
            loss.backward()
            total = total + loss.detach()
        opt.step()
        return total

    return net, step


@healthy("a spread of 0 is told apart before it divides")
def columns_of_which_one_is_constant(fixed):
    torch.manual_seed(13)
    x = drawn(14, 20, 4)
    x[:, 2] = 7.0
    spread = x.std(0)
    x = (x - x.mean(0)) / torch.where(spread > 0, spread, torch.ones(()))
    net = nn.Linear(4, 1)
    return net, train(net.parameters(), lambda i: (net(x)[:, 0] - x[:, 0]).square().mean(), lr=0.1)


@healthy("beam scores begin at -inf but for the first; the best are kept")
def beam_inside_a_step(fixed):
    torch.manual_seed(15)
    net = nn.Linear(3, 5)

    def loss(i):
        x = drawn(i, 4, 3)
        with torch.no_grad():
            score = torch.tensor([0.0, -math.inf, -math.inf])
            for t in range(4):
                both = score[:, None] + net(x[t]).log_softmax(-1)
                score, flat = both.flatten().topk(3)
        return F.cross_entropy(net(x), flat[:1].expand(4) % 5)

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("binary weights by a sign with a straight-through estimator")
def weights_of_one_bit(fixed):
    torch.manual_seed(16)
    net = nn.Linear(6, 2)
    x, y = drawn(17, 16, 6), torch.arange(16) % 2

    def loss(i):
        w = net.weight
        b = w.sign() * w.abs().mean()
        return F.cross_entropy(F.linear(x, w + (b - w).detach(), net.bias), y)

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("the target network is copied every third step; the maximum is over allowed actions", steps=7)
def values_with_a_slow_copy(fixed):
    torch.manual_seed(18)
    q, slow = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    opt = torch.optim.RMSprop(q.parameters(), lr=1e-3)
    allowed = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()

    def step(i):
        if i % 3 == 0:
            slow.load_state_dict(q.state_dict())
        opt.zero_grad()
        s, n = drawn(i, 4, 4), drawn(i + 9, 4, 4)
        done = ~allowed.any(1)
        with torch.no_grad():
            best = slow(n).masked_fill(~allowed, -math.inf).amax(1)
            goal = 1 + 0.9 * torch.where(done, torch.zeros(4), best)
        loss = F.smooth_l1_loss(q(s)[:, 0], goal)
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([q, slow]), step


@healthy("quantities of very different size in one model, all of which learn", steps=10)
def two_scales_in_one_fit(fixed):
    big, small = nn.Parameter(torch.tensor(3e6)), nn.Parameter(torch.tensor(2e-6))
    x = torch.linspace(0, 1, 9)
    y = 3.1e6 + 2.2e-6 * x
    opt = torch.optim.Adam([{"params": [big], "lr": 1e4}, {"params": [small], "lr": 1e-8}])

    def step(i):
        opt.zero_grad()
        loss = ((big - y.mean()) / 1e6).square() + ((small - 2.2e-6) * 1e6).square()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"big": big, "small": small}
    return None, step


@healthy("gradient checkpoint of a function that draws a mask; sums over nothing are 0")
def sums_over_empty_groups(fixed):
    torch.manual_seed(19)
    net = nn.Linear(3, 2)

    def loss(i):
        z = net(drawn(i, 6, 3))
        groups = torch.tensor([0, 0, 2, 2, 2, 4])
        total = torch.zeros(5, 2).index_add(0, groups, z)
        count = torch.bincount(groups, minlength=5).clamp_min(1)
        mean = total / count[:, None]
        empty = z[groups == 1]
        return mean.square().mean() + empty.square().sum()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("a small adapter in bfloat16 on a float32 model; its updates are large enough", steps=6)
def adapter_in_bfloat16_that_learns(fixed):
    torch.manual_seed(20)
    base = nn.Linear(4, 4).requires_grad_(False)
    a = nn.Parameter((torch.randn(2, 4) * 0.1).bfloat16())
    b = nn.Parameter(torch.zeros(4, 2).bfloat16())
    opt = torch.optim.AdamW([a, b], lr=1e-2, weight_decay=0.0)
    x, y = drawn(21, 16, 4), drawn(22, 16, 4)

    def step(i):
        opt.zero_grad()
        out = base(x) + (x.bfloat16() @ a.T @ b.T).float()
        loss = F.mse_loss(out, y)
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"a": a, "b": b}
    return None, step


@healthy("an infinite patience, an infinite best, a NaN in a table that is printed", steps=6)
def bookkeeping_of_a_run(fixed):
    torch.manual_seed(23)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    table = torch.full((6, 2), float("nan"))
    best = math.inf

    def step(i):
        nonlocal best
        opt.zero_grad()
        x = drawn(i, 8, 3)
        loss = (net(x)[:, 0] - x[:, 0]).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), math.inf)
        opt.step()
        table[i, 0], table[i, 1] = loss.detach(), norm
        best = min(best, loss.item())
        return loss

    return net, step
