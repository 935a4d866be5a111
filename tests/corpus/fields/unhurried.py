"""Healthy programs that look suspicious: masks, borders, rare and frozen parts, gates, sentinels."""

import math

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@healthy("windows of attention leave whole heads of padding, whose rows are never read")
def banded_attention_with_rows_dropped_afterwards(fixed):
    torch.manual_seed(0)
    net = nn.ModuleDict({"q": nn.Linear(4, 4), "k": nn.Linear(4, 4), "v": nn.Linear(4, 4)})

    def loss(i):
        x, n = drawn(i, 6, 4), 4
        at = torch.arange(6)
        allowed = ((at[:, None] - at).abs() <= 1) & (at[None] < n)
        scores = (net["q"](x) @ net["k"](x).T).masked_fill(~allowed, -torch.inf)
        return (torch.softmax(scores[:n], -1) @ net["v"](x)).square().mean()

    return net, train(net.parameters(), loss)


@healthy("a Viterbi-like recursion in the log domain begins at -inf nearly everywhere")
def longest_path_with_one_start(fixed):
    emission = nn.Linear(3, 5)

    def loss(i):
        scores = torch.log_softmax(emission(drawn(i, 7, 3)), -1)
        alpha = torch.full((5,), -torch.inf)
        alpha[0] = 0.0
        alpha = torch.where(torch.arange(5) == 0, scores[0], -torch.inf)
        for row in scores[1:]:
            move = torch.cat([torch.full((1,), -torch.inf), alpha[:-1]])
            alpha = torch.maximum(alpha, move) + row
        return -alpha.max()

    return emission, train(emission.parameters(), loss)


@healthy("infinite prices of missing roads, relaxed as in Bellman and Ford")
def tolls_over_a_sparse_map(fixed):
    tolls = nn.Parameter(torch.zeros(5))

    def loss(i):
        cost = torch.full((4, 4), torch.inf)
        a, b = torch.tensor([0, 0, 1, 2, 1]), torch.tensor([1, 2, 2, 3, 3])
        cost = cost.index_put((a, b), F.softplus(tolls))
        best = torch.tensor([0.0, torch.inf, torch.inf, torch.inf])
        for _ in range(3):
            best = torch.minimum(best, (best[:, None] + cost).min(0).values)
        return (best[3] - 2).square()

    return None, train([tolls], loss, lr=0.1)


@healthy("rows of an embedding that no batch has seen keep a gradient of 0")
def vocabulary_of_which_few_words_occur(fixed):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Embedding(200, 4), nn.Flatten(), nn.Linear(12, 2))
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(torch.tensor([[3, 5, 7], [3, 9, 5]])), torch.tensor([0, 1])), optimizer=torch.optim.Adam)


@healthy("frozen normalisation in eval mode inside a training model")
def batch_norms_that_are_frozen(fixed):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))
    net[1].eval().requires_grad_(False)
    return net, train([p for p in net.parameters() if p.requires_grad], lambda i: (net(drawn(i, 6, 3)) - 1).square().mean())


@healthy("the gate of a highway layer begins nearly shut and opens")
def highway_with_a_bias_against_change(fixed):
    class Highway(nn.Module):
        def __init__(self):
            super().__init__()
            self.change, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)
            nn.init.constant_(self.gate.bias, -18.0)

        def forward(self, x):
            t = torch.sigmoid(self.gate(x))
            return t * torch.tanh(self.change(x)) + (1 - t) * x

    torch.manual_seed(3)
    net = nn.Sequential(Highway(), nn.Linear(4, 1))
    return net, train(net.parameters(), lambda i: (net(drawn(i, 6, 4)) - 1).square().mean(), lr=0.1)


@healthy("forget gates that saturate at exactly 1 in float32 for a few units")
def memory_that_keeps_everything(fixed):
    torch.manual_seed(4)
    cell, head = nn.LSTMCell(2, 4), nn.Linear(4, 1)
    with torch.no_grad():
        cell.bias_hh[4:6] = 40.0
    net = nn.ModuleList([cell, head])

    def loss(i):
        state = None
        for x in drawn(i, 5, 3, 2):
            state = cell(x, state)
        return (head(state[0]) - 1).square().mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("a sentinel of -999 stands for an absent reading and is masked out")
def weather_with_a_sentinel(fixed):
    torch.manual_seed(5)
    net = nn.Linear(3, 2)

    def loss(i):
        target = drawn(i, 5, 2)
        target[2, 1] = -999.0
        known = target > -998
        error = torch.where(known, net(drawn(i + 9, 5, 3)) - target, 0.0)
        return error.square().sum() / known.sum()

    return net, train(net.parameters(), loss)


@healthy("distances of padding are finfo.max so that they are never the nearest")
def nearest_code_among_padded_ones(fixed):
    torch.manual_seed(6)
    encoder, codes = nn.Linear(3, 2), nn.Parameter(drawn(7, 5, 2))
    used = torch.tensor([True, True, True, False, False])

    def loss(i):
        z = encoder(drawn(i, 6, 3))
        far = torch.cdist(z, codes).masked_fill(~used, torch.finfo(torch.float32).max)
        near = far.argmin(-1)
        chosen = codes[near]
        return (chosen - z.detach()).square().mean() + (z - chosen.detach()).square().mean()

    return nn.ModuleList([encoder]), train([*encoder.parameters(), codes], loss)


@healthy("a two-sided guard around every root, as long as the guard is also in the gradient")
def lengths_of_bones_with_a_double_guard(fixed):
    net = nn.Linear(3, 3)

    def loss(i):
        joints = net(drawn(i, 5, 3))
        squared = (joints[1:] - joints[:-1]).square().sum(-1) * torch.tensor([1.0, 1, 0, 1])
        safe = torch.where(squared > 0, squared, 1.0)
        return torch.where(squared > 0, safe.sqrt(), 0.0).mean()

    return net, train(net.parameters(), loss)


@healthy("LoRA on a quantised base: base without gradient, one factor zero at first", steps=8)
def low_rank_step_over_eight_bits(fixed):
    torch.manual_seed(8)
    base = drawn(8, 4, 4)
    scale = base.abs().amax(1, keepdim=True) / 127
    codes = (base / scale).round().to(torch.int8)
    a, b = nn.Parameter(drawn(9, 2, 4)), nn.Parameter(torch.zeros(4, 2))

    def loss(i):
        x = drawn(i, 6, 4)
        return (x @ (codes.float() * scale).T + x @ a.T @ b.T - 1).square().mean()

    return None, train([a, b], loss, lr=0.05)


@healthy("temperature of a contrastive loss is clipped as in practice; diagonal of -inf")
def contrast_without_itself(fixed):
    torch.manual_seed(10)
    net, scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def loss(i):
        x = drawn(i, 4, 4)
        z = F.normalize(torch.cat([net(x), net(x + 0.1)]), dim=-1)
        scores = (z @ z.T * scale.exp().clamp(max=100)).fill_diagonal_(-torch.inf)
        return F.cross_entropy(scores, torch.arange(8).roll(4))

    return nn.ModuleList([net]), train([*net.parameters(), scale], loss)


@healthy("a critic whose hinge is satisfied has no gradient for a while, then again")
def hinge_that_rests_and_wakes(fixed):
    torch.manual_seed(11)
    net = nn.Linear(2, 1)

    def loss(i):
        x = drawn(i, 5, 2)
        wanted = torch.sign(net(x).detach())
        far = 0.0 if i in (1, 2) else 2.0
        return F.relu(far - net(x) * wanted * (1e3 if i in (1, 2) else 1)).mean()

    return net, train(net.parameters(), loss)


@healthy("log-determinants of triangular matrices; an infinite log-variance of an off switch is cut")
def cholesky_factor_by_softplus(fixed):
    raw = nn.Parameter(drawn(12, 3, 3))

    def loss(i):
        lower = raw.tril(-1) + torch.diag(F.softplus(raw.diagonal()) + 1e-4)
        x = drawn(i, 6, 3)
        whitened = torch.linalg.solve_triangular(lower, x.T, upper=False)
        return whitened.square().mean() + lower.diagonal().log().sum()

    return None, train([raw], loss)


@healthy("the scale of an fp16 loss is halved at first because it was set high on purpose", steps=8)
def scale_that_is_set_high_on_purpose(fixed):
    torch.manual_seed(13)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            value = net(drawn(i, 6, 4)).float().square().mean()
        scaler.scale(value).backward()
        scaler.step(opt)
        scaler.update()
        return value

    return net, step


@healthy("an exponential moving average that is far slower than its source, in float32")
def slow_average_in_single_precision(fixed):
    torch.manual_seed(14)
    net = nn.Linear(3, 1)
    slow = [p.detach().clone() for p in net.parameters()]
    inner = train(net.parameters(), lambda i: (net(drawn(i, 5, 3)) - 1).square().mean(), lr=0.05)

    def step(i):
        value = inner(i)
        with torch.no_grad():
            for s, p in zip(slow, net.parameters(), strict=True):
                s.lerp_(p, 1e-4)
        return value

    return net, step


@healthy("the first and last elements of a schedule are infinite and are never drawn")
def schedule_with_an_infinite_end(fixed):
    net = nn.Linear(3, 2)
    times = torch.linspace(0, 1, 11)
    ratio = (1 - times) / times

    def loss(i):
        t = torch.tensor([1, 3, 5, 9])
        weight = torch.log(ratio)[t].sigmoid()
        error = net(torch.cat([drawn(i, 4, 2), times[t, None]], -1)) - drawn(i + 3, 4, 2)
        return (weight * error.square().mean(-1)).mean()

    return net, train(net.parameters(), loss)


@healthy("the reward model is only read; the policy's clipped half has no gradient")
def policy_against_a_frozen_judge(fixed):
    torch.manual_seed(15)
    policy, judge = nn.Linear(3, 4), nn.Linear(3, 4).requires_grad_(False)

    def loss(i):
        x = drawn(i, 6, 3)
        logp = torch.log_softmax(policy(x), -1)
        old = logp.detach() + 0.3 * torch.sign(drawn(i, 6, 4))
        ratio = torch.exp(logp - old)
        gain = judge(x) - judge(x).mean(-1, keepdim=True)
        return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()

    return nn.ModuleList([policy]), train(policy.parameters(), loss)


@healthy("an empty class divides by zero in a metric that is only printed")
def recall_that_is_only_printed(fixed):
    torch.manual_seed(16)
    net = nn.Linear(3, 3)
    log = []

    def loss(i):
        y = torch.tensor([0, 0, 1, 1])
        logits = net(drawn(i, 4, 3))
        with torch.no_grad():
            hit = torch.bincount(y[logits.argmax(-1) == y], minlength=3)
            log.append(hit / torch.bincount(y, minlength=3))
        return F.cross_entropy(logits, y)

    return net, train(net.parameters(), loss)


@healthy("gradients of -0.0 and subnormal numbers in a kernel of distant points")
def kernel_whose_tails_are_subnormal(fixed):
    centre = nn.Parameter(torch.zeros(2))

    def loss(i):
        x = drawn(i, 8, 2) * torch.tensor([1.0, 1, 1, 1, 9, 9, 20, 40])[:, None]
        return 1 - torch.exp(-(x - centre).square().sum(-1) / 2).mean()

    return None, train([centre], loss, lr=0.5)
