"""Healthy loops: scalers, accumulation, searches, adversaries, averages, narrow formats, preferences."""

import copy

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def seeded(i, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(i))


@healthy("accumulated under a scaler that skips the first windows", steps=16)
def windows_under_a_calibrating_scaler(fixed=False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    def step(i):
        x = seeded(i, 8, 6)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(net(x), x.sum(1, keepdim=True).half()) / 2
        scaler.scale(loss).backward()
        if i % 2:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        return loss

    return net, step


@healthy("a generator and a critic that wins for some steps")
def critic_that_wins(fixed=False):
    torch.manual_seed(1)
    g, d = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    og, od = (torch.optim.Adam(m.parameters(), lr=1e-2, betas=(0.0, 0.9)) for m in (g, d))

    def step(i):
        real, fake = seeded(i, 8, 2) + 8, g(seeded(i + 20, 8, 2))
        for _ in range(4):
            od.zero_grad()
            hinge = F.relu(1 - d(real)).mean() + F.relu(1 + d(fake.detach())).mean()
            hinge.backward()
            od.step()
        og.zero_grad()
        loss = -d(fake).mean()
        loss.backward()
        og.step()
        return loss

    return nn.ModuleDict({"g": g, "d": d}), step


@healthy("LBFGS at its optimum: gradients are 0 and it stops")
def search_that_has_arrived(fixed=False):
    w = nn.Parameter(torch.tensor([3.0, -2.0]))
    opt = torch.optim.LBFGS([w], max_iter=20)

    def step(i):
        def closure():
            opt.zero_grad()
            loss = (w - torch.tensor([1.0, 2.0])).square().sum()
            loss.backward()
            return loss

        return opt.step(closure)

    step.parameters = {"w": w}
    return None, step


@healthy("an average of weights with a decay that rises from 0")
def average_that_warms_up(fixed=False):
    torch.manual_seed(2)
    net = nn.Linear(3, 1)
    mean = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        x = seeded(i, 6, 3)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay = min(0.999, i / (10 + i))
        with torch.no_grad():
            for a, b in zip(mean.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 1 - decay)
        return loss + 0 * mean(x).mean().detach()

    return net, step


@healthy("scales of a quantiser have a floor, and a channel is never used")
def quantiser_with_a_floor(fixed=False):
    torch.manual_seed(3)
    net = nn.Linear(4, 3)
    net.weight.data[1] = 0

    class Fake(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, s):
            return torch.clamp(torch.round(w / s), -8, 7) * s

        @staticmethod
        def backward(ctx, g):
            return g, None

    def loss(i):
        s = net.weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-8) / 7
        return F.linear(seeded(i, 6, 4), Fake.apply(net.weight, s), net.bias).sub(1).square().mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("activations are clamped before the cast to eight bits")
def eight_bits_with_saturation(fixed=False):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    class Cast(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            return h.clamp(-448, 448).to(torch.float8_e4m3fn).float()

        @staticmethod
        def backward(ctx, g):
            return g

    def loss(i):
        return Cast.apply(net(500 * seeded(i, 5, 4))).mean() * 1e-3

    return net, train(net.parameters(), loss)


@healthy("softmax in bfloat16 whose tail is 0, trained in float32")
def tail_in_bfloat16(fixed=False):
    torch.manual_seed(5)
    net = nn.Linear(4, 6)

    def loss(i):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            p = (net(seeded(i, 6, 4)) * 80).softmax(-1)
        return (p.float() - 1 / 6).square().mean()

    return net, train(net.parameters(), loss, 1e-3)


@healthy("half activations near their largest, which never exceed it")
def large_and_in_range(fixed=False):
    torch.manual_seed(6)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        with torch.autocast("cpu", dtype=torch.float16):
            h = net(torch.full((3, 4), 3e4).mul(torch.tensor([[0.3], [0.2], [0.1]])))
        loss = h.float().div(1e4).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("an outlier batch has a gradient of 1e6, and clipping makes it 1")
def one_clipped_spike(fixed=False):
    torch.manual_seed(7)
    net = nn.LSTM(2, 3, batch_first=True)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        out, _ = net(seeded(i, 3, 6, 2))
        loss = (out - (1e6 if i == 3 else 0)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step


@healthy("advantages are all 0 in a step: the answers got one reward, the spread has an epsilon")
def group_of_equal_answers(fixed=False):
    torch.manual_seed(8)
    net = nn.Linear(4, 5)

    def loss(i):
        logp = net(seeded(i, 6, 4)).log_softmax(-1)[:, 0]
        reward = torch.ones(6) if i in (1, 2) else torch.arange(6.0)
        adv = (reward - reward.mean()) / (reward.std() + 1e-4)
        ratio = (logp - logp.detach()).exp()
        kl = (logp.detach() - logp).exp() - 1 - (logp.detach() - logp)
        return -(torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv) - 0.01 * kl).mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("a pair of answers that the model already ranks with certainty")
def preference_that_is_settled(fixed=False):
    torch.manual_seed(9)
    net = nn.Linear(3, 1)

    def loss(i):
        chosen, rejected = net(seeded(i, 6, 3)) + (200 if i % 2 else 0), net(seeded(i + 1, 6, 3))
        return -F.logsigmoid(chosen - rejected).mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("tokens outside the nucleus get -inf when sampling; training uses all of them")
def sampled_from_the_nucleus(fixed=False):
    torch.manual_seed(10)
    net = nn.Linear(3, 6)

    def loss(i):
        logits = net(seeded(i, 5, 3))
        with torch.no_grad():
            p, order = logits.softmax(-1).sort(descending=True)
            drop = p.cumsum(-1) - p > 0.5
            cut = logits.masked_fill(drop.scatter(1, order, drop), -torch.inf)
            pick = cut.softmax(-1).argmax(-1)
        return -(logits.log_softmax(-1).gather(1, pick[:, None]) * 0.5).mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("the best validation loss begins at inf and patience runs out", steps=8)
def patience_that_runs_out(fixed=False):
    torch.manual_seed(11)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    state = {"best": torch.tensor(torch.inf), "wait": 0, "weights": copy.deepcopy(net.state_dict())}

    def step(i):
        loss = (net(seeded(i, 6, 3)) - 1).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            value = (net(seeded(99, 20, 3)) - 1).square().mean()
        if value < state["best"]:
            state.update(best=value, wait=0, weights=copy.deepcopy(net.state_dict()))
        else:
            state["wait"] += 1
        return loss

    return net, step


@healthy("in-batch negatives with the own pair taken out by -inf")
def negatives_without_the_diagonal(fixed=False):
    torch.manual_seed(12)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3))

    def loss(i):
        x = seeded(i, 5, 4)
        z = F.normalize(torch.cat([net(x), net(x)]), dim=-1)
        s = (z @ z.T / 0.07).fill_diagonal_(-torch.inf)
        return F.cross_entropy(s, torch.arange(10).roll(5))

    return net, train(net.parameters(), loss, 1e-3)


@healthy("gradient norms of two tasks by turns, one of which is done")
def weights_by_gradient_norms(fixed=False):
    torch.manual_seed(13)
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        out = net(seeded(i, 6, 3))
        a, b = (out[:, 0] - 1).square().mean(), F.relu(out[:, 1] - 100).mean()
        norms = [
            torch.autograd.grad(t, net.weight, retain_graph=True)[0].norm().clamp(min=1e-6)
            for t in (a, b)
        ]
        loss = a * (norms[1] / norms[0]).clamp(0.1, 10) + b
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
