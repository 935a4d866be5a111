"""Seventy more runs, written blind: thirty leave the range of their dtype, forty only look as if.

The line that overflows (or underflows) first bears the comment `# overflows` or `# underflows`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Bag(nn.Module):
    """A module made of named parameters, buffers and sub-modules."""

    def __init__(self, params=None, buffers=None, **mods):
        super().__init__()
        for k, v in (params or {}).items():
            self.register_parameter(k, nn.Parameter(v))
        for k, v in (buffers or {}).items():
            self.register_buffer(k, v)
        for k, m in mods.items():
            self.add_module(k, m)


# faulty: overflow


def clip_scores_half():
    torch.manual_seed(1)
    g = rng(101)
    m = Bag(img=nn.Linear(8, 16, bias=False), txt=nn.Linear(8, 16, bias=False))
    opt = torch.optim.SGD(m.parameters(), lr=0.2)
    mix = torch.randn(8, 8, generator=g) * 0.3 + torch.eye(8)

    def step(i):
        opt.zero_grad()
        a = torch.randn(24, 8, generator=g)
        b = a @ mix
        u, v = m.img(a), m.txt(b)
        scores = u.half() @ v.half().t()  # overflows
        lab = torch.arange(24)
        nce = F.cross_entropy(scores.float(), lab)
        spread = u.pow(2).mean() + v.pow(2).mean()
        loss = nce - 0.5 * spread
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 240


def attention_logits_half():
    torch.manual_seed(2)
    g = rng(102)
    d = 16
    m = Bag({"wq": torch.randn(d, d) * 0.2, "wk": torch.randn(d, d) * 0.2}, val=nn.Linear(d, d))
    opt = torch.optim.Adam(m.parameters(), lr=0.06, betas=(0.8, 0.99))
    data = torch.randn(12, d, generator=g)

    def step(i):
        opt.zero_grad()
        x = data + 0.1 * torch.randn(12, d, generator=g)
        q, k = x @ m.wq, x @ m.wk
        att = q.half() @ k.half().transpose(0, 1)  # overflows
        w = torch.softmax(att.float(), -1)
        y = w @ m.val(x)
        sharp = (q * k).sum(-1).mean()
        loss = F.mse_loss(y, x) - 0.05 * sharp
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 260


def lr_too_high_alternating():
    torch.manual_seed(3)
    g = rng(103)
    m = nn.Linear(3, 1)
    x = torch.randn(32, 3, generator=g)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    h = 2.0 * torch.cat([x, torch.ones(32, 1)], 1).t() @ torch.cat([x, torch.ones(32, 1)], 1) / 32
    lr = 2.45 / float(torch.linalg.eigvalsh(h)[-1])
    opt = torch.optim.SGD(m.parameters(), lr=lr)

    def step(i):
        opt.zero_grad()
        pred = m(x)
        sq_err = (pred - y).pow(2).mean()  # overflows
        sq_err.backward()
        opt.step()
        return sq_err.detach()

    return m, step, 150


def momentum_above_one():
    torch.manual_seed(4)
    g = rng(104)
    m = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Tanh())
    params = list(m.parameters())
    bufs = [torch.zeros_like(p) for p in params]
    mu, lr = 1.55, 1e-3

    def step(i):
        m.zero_grad()
        x = torch.randn(16, 4, generator=g)
        loss = F.l1_loss(m(x), torch.sin(x[:, :1]))
        loss.backward()
        with torch.no_grad():
            for j, p in enumerate(params):
                bufs[j] = mu * bufs[j] + torch.nan_to_num(p.grad).clamp(-1, 1)  # overflows
                p.sub_(lr * bufs[j])
        return loss.detach()

    # keep the network's own products bounded: only the buffers may leave first
    class Squash(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            h = x
            for lay in self.net:
                if isinstance(lay, nn.Linear):
                    h = F.linear(h, torch.tanh(lay.weight), torch.tanh(lay.bias))
                else:
                    h = lay(h)
            return h

    m = Squash(m)
    return m, step, 260


def product_of_two_params():
    torch.manual_seed(5)
    g = rng(105)
    m = Bag({"a": torch.rand(5, generator=g) + 0.5, "b": torch.rand(5, generator=g) + 0.5})

    def step(i):
        m.zero_grad()
        x = 0.8 * torch.rand(20, 5, generator=g) + 0.1
        prod = m.a * m.b  # overflows
        score = torch.log1p(x * prod).mean()
        loss = -score
        loss.backward()
        with torch.no_grad():  # exponentiated gradient, step 0.3 in the exponent
            m.a.mul_(torch.exp(0.30 * torch.sign(-m.a.grad)))
            m.b.mul_(torch.exp(0.17 * torch.sign(-m.b.grad)))
        return loss.detach()

    return m, step, 240


def hyperbolic_gain_half():
    torch.manual_seed(6)
    g = rng(106)
    m = Bag({"gain": torch.tensor(10.0)}, head=nn.Linear(4, 1))
    opt = torch.optim.SGD(
        [{"params": [m.gain], "lr": 5e-4}, {"params": m.head.parameters(), "lr": 0.01}]
    )

    def step(i):
        opt.zero_grad()
        x = torch.rand(8, 4, generator=g) * 0.5 + 0.5
        amp = x.half() * m.gain.half()  # overflows
        pred = m.head(torch.tanh(amp.float() * 1e-3))
        fit = F.mse_loss(pred, x.mean(1, keepdim=True))
        loss = fit - m.gain**3 / 3.0
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 240


def hyperbolic_energy_fp32():
    torch.manual_seed(7)
    g = rng(107)
    m = Bag({"s": torch.tensor(3.0)}, fc=nn.Linear(3, 1))
    opt = torch.optim.SGD(m.fc.parameters(), lr=0.05)

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 3, generator=g)
        fit = F.mse_loss(m.fc(x), x.sum(1, keepdim=True))
        energy = m.s * m.s  # overflows
        loss = fit + torch.log1p(energy)
        fit.backward()
        opt.step()
        with torch.no_grad():  # a self-exciting scale: ds/dt = c s^1.2
            m.s.add_(0.03 * m.s**1.2)
        return loss.detach()

    return m, step, 240


def reward_total_half():
    torch.manual_seed(8)
    g = rng(108)
    m = nn.Linear(4, 1)
    opt = torch.optim.Adam(m.parameters(), lr=0.01)
    m.register_buffer("total", torch.zeros((), dtype=torch.float16))

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 4, generator=g)
        r = 410.0 + 60.0 * torch.randn((), generator=g)
        m.total = m.total + r.half()  # overflows
        avg = m.total.float() / (i + 1)
        loss = F.smooth_l1_loss(m(x), (avg / 400.0).expand(10, 1))
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 200


def return_gamma_above_one():
    torch.manual_seed(9)
    g = rng(109)
    m = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(m.parameters(), lr=0.01)
    st = {"ret": torch.zeros(6)}
    gamma = 1.5

    def step(i):
        opt.zero_grad()
        s = torch.rand(6, 3, generator=g)
        rew = s.sum(1)
        st["ret"] = rew + gamma * st["ret"]  # overflows
        loss = F.smooth_l1_loss(m(s).squeeze(1), 0.01 * st["ret"])
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 250


def position_counter_half():
    torch.manual_seed(10)
    g = rng(110)
    m = Bag(emb=nn.Linear(8, 8), out=nn.Linear(8, 4))
    opt = torch.optim.SGD(m.parameters(), lr=0.05)
    freq = 10000.0 ** (-torch.arange(4) / 4.0)

    def step(i):
        opt.zero_grad()
        seen = 480 * i
        pos = torch.arange(1, 17).half() + float(seen)  # overflows
        ang = pos.float()[:, None] * freq
        pe = torch.cat([ang.sin(), ang.cos()], 1)
        x = torch.randn(16, 8, generator=g)
        h = m.emb(x) + pe
        loss = F.mse_loss(m.out(h), x[:, :4])
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 160


def kl_weight_half():
    torch.manual_seed(11)
    g = rng(111)
    m = Bag(enc=nn.Linear(6, 8), dec=nn.Linear(4, 6))
    opt = torch.optim.Adam(m.parameters(), lr=2e-3)

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 6, generator=g)
        mu, lv = m.enc(x).chunk(2, 1)
        z = mu + torch.randn(16, 4, generator=g) * torch.exp(0.5 * lv)
        rec = F.mse_loss(m.dec(z), x)
        kl = 0.5 * (mu**2 + lv.exp() - 1 - lv).sum(1).mean()
        kl = torch.clamp(kl, min=3.0)  # free bits
        beta = 1.0 + 0.6 * i**2
        kl_term = beta * kl.half()  # overflows
        loss = rec + kl_term.float()
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 230


def recurrence_bf16():
    torch.manual_seed(12)
    g = rng(112)
    m = Bag(rec=nn.Linear(16, 16, bias=False), out=nn.Linear(16, 2))
    with torch.no_grad():
        w = torch.rand(16, 16, generator=g)
        m.rec.weight.copy_(1.5 * w / torch.linalg.eigvals(w).abs().max())
    m.rec.weight.requires_grad_(False)
    opt = torch.optim.SGD(m.out.parameters(), lr=0.1)
    st = {"h": torch.zeros(4, 16)}

    def step(i):
        opt.zero_grad()
        u = torch.rand(4, 16, generator=g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            st["h"] = F.relu(m.rec(st["h"]) + u.bfloat16())  # overflows
            feat = st["h"] / st["h"].amax()
            y = m.out(feat)
        loss = F.mse_loss(y.float(), u[:, :2])
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 250


def stage_jumps_half():
    torch.manual_seed(13)
    g = rng(113)
    m = Bag(fc=nn.Linear(6, 6), out=nn.Linear(6, 1))
    opt = torch.optim.SGD(m.parameters(), lr=0.02)
    st = {"level": 1.0}

    def step(i):
        opt.zero_grad()
        if i and torch.rand((), generator=g) < 0.13:
            st["level"] *= 1.7
        x = torch.randn(12, 6, generator=g).clamp(-2.5, 2.5)
        amp = x.half() * st["level"]  # overflows
        h = torch.tanh(m.fc(amp.float() / st["level"]))
        loss = F.mse_loss(m.out(h), x.mean(1, keepdim=True)) + 1e-6 * amp.float().abs().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 220


def es_sigma_random_growth():
    torch.manual_seed(14)
    g = rng(114)
    m = Bag({"mean": torch.zeros(6)}, {"sigma": torch.tensor(0.1)})

    def step(i):
        m.zero_grad()
        eps = torch.randn(10, 6, generator=g)
        cand = m.mean + torch.tanh(m.sigma * 1e-3) * eps
        fit = torch.cos(cand).mean(1)
        loss = -fit.mean() + 1e-3 * torch.log1p(m.sigma)
        loss.backward()
        with torch.no_grad():
            m.mean.sub_(0.1 * m.mean.grad)
            m.sigma = m.sigma * torch.exp(0.45 + 0.6 * torch.randn((), generator=g))  # overflows
        return loss.detach()

    return m, step, 260


def bilinear_game():
    torch.manual_seed(15)
    m = Bag({"gen": torch.tensor([1.0, 0.6, -0.8]), "dis": torch.tensor([0.2, -0.7, 0.5])})
    opt = torch.optim.SGD(m.parameters(), lr=0.8)

    def step(i):
        opt.zero_grad()
        payoff = (m.gen * m.dis).sum()  # overflows
        payoff.backward()
        m.dis.grad.neg_()
        opt.step()
        return payoff.detach()

    return m, step, 220


def fourth_moment_half():
    torch.manual_seed(16)
    g = rng(116)
    m = Bag({"amp": torch.full((4,), 0.2)}, fc=nn.Linear(4, 1), buffers={"m4": torch.zeros(4)})
    opt = torch.optim.Adam(
        [{"params": [m.amp], "lr": 0.3}, {"params": m.fc.parameters(), "lr": 0.01}]
    )

    def step(i):
        opt.param_groups[0]["lr"] = 0.24 * (i + 1) ** -0.3
        opt.zero_grad()
        s = torch.rand(16, 4, generator=g) * 0.2 + 0.8
        feat = s * m.amp
        with torch.no_grad():
            fourth = feat.half().pow(4)  # overflows
            m.m4 = 0.9 * m.m4 + 0.1 * fourth.float().mean(0)
        critic = feat.mean()
        loss = -critic + F.mse_loss(m.fc(s), s[:, :1]) + 1e-6 * m.m4.sum()
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 270


def entropy_bonus_std():
    torch.manual_seed(17)
    g = rng(117)
    m = Bag({"log_std": torch.tensor([-1.0, -0.5])}, mu=nn.Linear(3, 2))
    opt = torch.optim.SGD(
        [{"params": m.mu.parameters(), "lr": 0.05}, {"params": [m.log_std], "lr": 5.0}]
    )

    def step(i):
        opt.zero_grad()
        s = torch.randn(16, 3, generator=g)
        std = m.log_std.exp()  # overflows
        act = torch.tanh(m.mu(s) + std.detach() * 1e-3 * torch.randn(16, 2, generator=g))
        reward = -(act - s[:, :2].tanh()).pow(2).sum(1)
        entropy = m.log_std.sum()
        loss = -reward.mean() - 0.1 * entropy + 1e-9 * (1e-3 * std.detach()).sum().log()
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 230


def loss_scale_half():
    torch.manual_seed(18)
    g = rng(118)
    m = nn.Linear(5, 1)
    opt = torch.optim.SGD(m.parameters(), lr=0.02)
    st = {"scale": 2.0}

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 5, generator=g)
        y = x[:, :1] + 1.2 * torch.randn(16, 1, generator=g)
        loss = F.mse_loss(m(x), y)
        scaled = loss.half() * st["scale"]  # overflows
        scaled.backward()
        for p in m.parameters():
            p.grad.div_(st["scale"])
        opt.step()
        if i % 8 == 7:
            st["scale"] *= 2.0  # grows, never backs off
        return scaled.detach()

    return m, step, 170


def adam_second_moment():
    torch.manual_seed(19)
    g = rng(119)
    m = nn.Linear(4, 1)
    adam = torch.optim.Adam(m.parameters(), lr=0.01)

    def step(i):
        adam.zero_grad()
        x = torch.randn(16, 4, generator=g)
        y = x.sum(1, keepdim=True) + torch.randn(16, 1, generator=g)
        loss = (1.4**i) * F.mse_loss(m(x), y)
        loss.backward()
        adam.step()  # overflows
        return loss.detach()

    return m, step, 180


def norm_gain_fp16_autocast():
    torch.manual_seed(20)
    g = rng(120)
    m = Bag(ln=nn.LayerNorm(8), proj=nn.Linear(8, 4))
    with torch.no_grad():
        m.proj.weight.mul_(6.0)
    opt = torch.optim.SGD(m.ln.parameters(), lr=500.0)

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 8, generator=g)
        h = m.ln(x)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = m.proj(h)  # overflows
        fit = 1e-6 * logits.float().detach().abs().mean()
        loss = fit - m.ln.weight.mean() * (1.0 + 0.4 * float(torch.randn((), generator=g)))
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 270


def temperature_quotient_half():
    torch.manual_seed(21)
    g = rng(121)
    m = nn.Linear(6, 5)
    opt = torch.optim.SGD(m.parameters(), lr=0.05)
    st = {"tau": 1.0}

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 6, generator=g)
        raw = m(x)
        with torch.no_grad():
            sharp = raw.half() / st["tau"]  # overflows
            gum = torch.softmax(sharp.float(), -1)
        loss = F.cross_entropy(raw, x[:, :5].argmax(1)) + (gum * raw).sum(-1).mean() * 0.01
        loss.backward()
        opt.step()
        st["tau"] *= 0.93
        return loss.detach()

    return m, step, 190


# faulty: underflow


def bandwidth_shrinks():
    torch.manual_seed(22)
    g = rng(122)
    ang = torch.arange(6) * (2 * math.pi / 6)
    keys = torch.stack([ang.cos(), ang.sin()], 1)
    m = Bag({"vals": torch.randn(6, generator=g)})
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    st = {"bw": 1.0}

    def step(i):
        opt.zero_grad()
        q = 0.01 * torch.randn(8, 2, generator=g)
        with torch.no_grad():
            d2 = (q[:, None] - keys).pow(2).sum(-1)
            kern = torch.exp(-d2 / (2 * st["bw"] ** 2))  # underflows
            w = kern / kern.sum(1, keepdim=True)
        pred = w @ m.vals
        loss = F.mse_loss(pred, torch.ones(8))
        loss.backward()
        opt.step()
        st["bw"] *= 0.985
        return loss.detach()

    return m, step, 230


def logvar_falls_half():
    torch.manual_seed(23)
    g = rng(123)
    n = 256
    m = Bag({"logvar": 0.2 * torch.randn(n, generator=g)})
    opt = torch.optim.SGD(m.parameters(), lr=n * 0.2)
    resid = 1e-5 * torch.randn(n, generator=g)

    def step(i):
        opt.zero_grad()
        var = m.logvar.half().exp()  # underflows
        v = var.float()
        nll = 0.5 * (resid**2 / v + v.log())
        loss = nll.mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 210


def sequence_likelihood():
    torch.manual_seed(24)
    g = rng(124)
    m = Bag(emb=nn.Embedding(3, 4), out=nn.Linear(4, 3))
    opt = torch.optim.SGD(m.parameters(), lr=0.05)

    def step(i):
        opt.zero_grad()
        n = 4 + i // 2
        seq = torch.randint(0, 3, (5, n + 1), generator=g)
        lp = F.log_softmax(m.out(m.emb(seq[:, :-1])), -1)
        tok = lp.gather(-1, seq[:, 1:, None]).squeeze(-1)
        with torch.no_grad():
            seq_prob = tok.exp().prod(dim=1)  # underflows
            share = seq_prob / seq_prob.sum()
        loss = (share * -tok.mean(1)).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 230


def forward_algorithm():
    torch.manual_seed(25)
    g = rng(125)
    a = torch.softmax(torch.randn(5, 5, generator=g), 1)
    e = torch.softmax(torch.randn(5, 3, generator=g) * 0.3, 1)
    m = nn.Linear(5, 3)
    m.register_buffer("alpha", torch.full((2, 5), 0.2))
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(i):
        opt.zero_grad()
        obs = torch.randint(0, 3, (2,), generator=g)
        m.alpha = (m.alpha @ a) * e[:, obs].t()  # underflows
        post = m.alpha / m.alpha.sum(1, keepdim=True)
        loss = F.cross_entropy(m(post), obs)
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 150


def particle_weights():
    torch.manual_seed(26)
    g = rng(126)
    m = nn.Linear(1, 1)
    opt = torch.optim.SGD(m.parameters(), lr=0.05)
    st = {"w": torch.ones(8) / 8}
    part = torch.linspace(-0.05, 0.05, 8)

    def step(i):
        opt.zero_grad()
        obs = 0.7 * torch.randn((), generator=g)
        lik = torch.exp(-0.5 * (obs - part) ** 2) / math.sqrt(2 * math.pi)
        st["w"] = st["w"] * lik  # underflows
        est = (st["w"] / st["w"].sum() * part).sum()
        x = torch.randn(4, 1, generator=g)
        loss = F.mse_loss(m(x), x * 0.5 + est)
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 140


def noise_level_squared_half():
    torch.manual_seed(27)
    g = rng(127)
    m = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = torch.optim.Adam(m.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        sig = torch.tensor((1.0 + 0.5 * i) ** -1.8).half()
        sig2 = sig * sig  # underflows
        x = torch.randn(16, 2, generator=g)
        nz = torch.randn(16, 2, generator=g)
        out = m(x + sig.float() * nz)
        loss = F.mse_loss(out, x) / sig2.float()
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 285


def rms_of_dying_branch():
    torch.manual_seed(28)
    g = rng(128)
    m = Bag({"w": torch.randn(6, 6, generator=g)}, head=nn.Linear(6, 2))
    opt = torch.optim.SGD([{"params": m.head.parameters(), "lr": 0.05}])

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 6, generator=g)
        with torch.no_grad():
            z = x @ m.w
            ms = z.pow(2).mean()  # underflows
            zn = z / ms.sqrt()
        loss = F.mse_loss(m.head(zn), x[:, :2])
        loss.backward()
        opt.step()
        with torch.no_grad():
            m.w.mul_(1 - 0.3)  # decay with no gradient against it
        return loss.detach()

    return m, step, 180


def gate_closes_half():
    torch.manual_seed(29)
    g = rng(129)
    m = Bag({"glogit": torch.tensor([1.5, 1.3, 1.7])}, fc=nn.Linear(3, 1))
    opt = torch.optim.SGD(
        [{"params": [m.glogit], "lr": 1.0}, {"params": m.fc.parameters(), "lr": 0.05}]
    )

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 3, generator=g)
        gate = torch.sigmoid(m.glogit.half())  # underflows
        keep = -gate.float().log().mean()
        fit = F.mse_loss(m.fc(x), x[:, :1])
        cost = m.glogit.sum() * (0.1 + 0.03 * float(torch.randn((), generator=g)))
        loss = fit + cost + 1e-3 * keep
        loss.backward()
        opt.step()
        return loss.detach()

    return m, step, 240


def half_gradient_vanishes():
    torch.manual_seed(30)
    m = Bag({"w": torch.tensor([0.9, -0.7, 0.8, 0.6])})
    prev = [torch.ones(4)]

    def step(i):
        m.zero_grad()
        loss = 0.5 * (m.w**2).sum()
        loss.backward()
        with torch.no_grad():
            g16 = m.w.grad.half()  # underflows
            gf = g16.float()
            cos = (gf * prev[0]).sum() / (gf.norm() * prev[0].norm())
            m.w.sub_(0.06 * (1.0 + cos) * m.w.grad)
            prev[0] = gf
        return loss.detach()

    return m, step, 180


# healthy


def _train(m, opt, lossfn, steps, before=None, after=None):
    def step(i):
        if before is not None:
            before(i)
        opt.zero_grad()
        loss = lossfn(i)
        loss.backward()
        opt.step()
        if after is not None:
            after(i)
        return loss.detach()

    return m, step, steps


def _lr(opt, fn):
    def before(i):
        for gr in opt.param_groups:
            gr["lr"] = fn(i)

    return before


def _mlp(seed, i=4, h=16, o=1, act=nn.Tanh):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(i, h), act(), nn.Linear(h, o))


def growth_saturates_tanh():
    m = Bag({"gain": torch.tensor(0.05)}, fc=_mlp(201))
    g = rng(201)
    opt = torch.optim.SGD([{"params": m.fc.parameters(), "lr": 0.05}])

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        h = 40.0 * torch.tanh(m.gain.detach() * x / 40.0)
        return F.mse_loss(m.fc(x), x.mean(1, keepdim=True)) + 1e-3 * h.pow(2).mean()

    def after(i):
        with torch.no_grad():
            m.gain.mul_(1.08).clamp_(max=2.0**12)

    return _train(m, opt, loss, 280, after=after)


def warmup_linear_decay():
    m = _mlp(202)
    g = rng(202)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        return F.mse_loss(m(x), x.sum(1, keepdim=True).sin())

    return _train(
        m, opt, loss, 250, _lr(opt, lambda i: 0.02 * min((i + 1) / 60, max(0.01, (260 - i) / 200)))
    )


def warmup_exponential_lr():
    m = _mlp(203)
    g = rng(203)
    opt = torch.optim.SGD(m.parameters(), lr=1e-3)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        return F.mse_loss(m(x), x[:, :1] * x[:, 1:2])

    return _train(m, opt, loss, 220, _lr(opt, lambda i: min(0.2, 1e-7 * 1.12**i)))


def cosine_decay_half():
    m = _mlp(204)
    g = rng(204)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        with torch.autocast("cpu", dtype=torch.float16):
            y = m(x)
        return F.mse_loss(y.float(), x[:, :1].abs())

    return _train(
        m, opt, loss, 200, _lr(opt, lambda i: 1e-5 + 0.03 * (1 + math.cos(math.pi * i / 200)))
    )


def cosine_restarts():
    m = _mlp(205)
    g = rng(205)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    sch = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=30, T_mult=2, eta_min=1e-4)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        return F.mse_loss(m(x), x.norm(dim=1, keepdim=True))

    return _train(m, opt, loss, 270, after=lambda i: sch.step())


def cyclic_lr_triangle():
    m = _mlp(206)
    g = rng(206)
    opt = torch.optim.Adam(m.parameters(), lr=1e-3)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        return F.smooth_l1_loss(m(x), 3 * x[:, :1].sign())

    return _train(m, opt, loss, 240, _lr(opt, lambda i: 1e-4 + 0.05 * abs((i / 20.0) % 2 - 1)))


def cyclic_loss_seasons():
    m = _mlp(207)
    g = rng(207)
    opt = torch.optim.SGD(m.parameters(), lr=0.01)

    def loss(i):
        amp = 10.0 ** (1.2 * math.sin(2 * math.pi * i / 45))
        x = torch.randn(16, 4, generator=g)
        return F.smooth_l1_loss(m(x), amp * x[:, :1])

    return _train(m, opt, loss, 280)


def outlier_batches():
    m = _mlp(208)
    g = rng(208)
    opt = torch.optim.SGD(m.parameters(), lr=0.02)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        if i % 37 == 36:
            x = x * 10.0 ** (1 + i // 37)  # each outlier batch larger than the last
        return F.smooth_l1_loss(m(x), torch.tanh(x[:, :1]))

    return _train(m, opt, loss, 260)


def random_walk_weights():
    torch.manual_seed(209)
    m = Bag({"w": torch.zeros(6)})
    g = rng(209)
    opt = torch.optim.SGD(m.parameters(), lr=1.0)

    def loss(i):
        x = torch.randn(8, 6, generator=g)
        return (x.half() @ m.w.half()).float().mean()  # gradient is pure noise

    return _train(m, opt, loss, 300)


def curriculum_length():
    torch.manual_seed(210)
    m = Bag(rnn=nn.GRU(3, 6, batch_first=True), out=nn.Linear(6, 1))
    g = rng(210)
    opt = torch.optim.Adam(m.parameters(), lr=3e-3)

    def loss(i):
        x = torch.randn(2, 2 + i // 8, 3, generator=g)
        h, _ = m.rnn(x)
        return (m.out(h) - x[..., :1]).pow(2).sum() / 2  # summed over time: grows with the length

    return _train(m, opt, loss, 160)


def curriculum_batch():
    m = _mlp(211)
    g = rng(211)
    opt = torch.optim.SGD(m.parameters(), lr=1e-4)

    def loss(i):
        n = min(512, 4 * 2 ** (i // 30))
        x = torch.randn(n, 4, generator=g)
        return (m(x) - x[:, :1]).pow(2).sum()

    return _train(m, opt, loss, 280)


def step_counter():
    m = _mlp(212, i=5)
    m.register_buffer("t", torch.zeros(()))
    m.register_buffer("samples", torch.zeros(()))
    g = rng(212)
    opt = torch.optim.SGD(m.parameters(), lr=0.05)

    def loss(i):
        m.t += 1
        m.samples += 64
        x = torch.randn(8, 4, generator=g)
        return F.mse_loss(
            m(torch.cat([x, (m.t / 300).expand(8, 1)], 1)), x[:, :1] + m.samples / 2e4
        )

    return _train(m, opt, loss, 300)


def running_sum_half():
    m = _mlp(213)
    m.register_buffer("acc", torch.zeros((), dtype=torch.float16))
    g = rng(213)
    opt = torch.optim.SGD(m.parameters(), lr=0.02)

    def loss(i):
        x = torch.randn(8, 4, generator=g)
        per = F.mse_loss(m(x), x[:, :1] + 2 * torch.randn(8, 1, generator=g))
        m.acc = m.acc + 4 * per.detach().half()
        return per + 1e-4 * m.acc.float() / (i + 1)

    return _train(m, opt, loss, 300)


def temperature_floor():
    torch.manual_seed(214)
    m = nn.Linear(5, 6)
    g = rng(214)
    opt = torch.optim.Adam(m.parameters(), lr=0.01)

    def loss(i):
        tau = max(0.3, 2.0 * 0.96**i)
        x = torch.randn(16, 5, generator=g)
        lg = m(x)
        p = torch.softmax(lg.half() / tau, -1).float()
        return (p * torch.linspace(0, 1, 6)).sum(-1).mean() + 0.3 * lg.pow(2).mean()

    return _train(m, opt, loss, 250)


def ema_warmup():
    m = _mlp(215)
    ema = _mlp(215)
    m = Bag(net=m, ema=ema)
    for p in m.ema.parameters():
        p.requires_grad_(False)
        p.zero_()
    g = rng(215)
    opt = torch.optim.Adam(m.net.parameters(), lr=0.01)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        return F.mse_loss(m.net(x), x.prod(1, keepdim=True)) + 0.1 * F.mse_loss(m.net(x), m.ema(x))

    def after(i):
        with torch.no_grad():
            for a, b in zip(m.ema.parameters(), m.net.parameters(), strict=False):
                a.lerp_(b, 1 - min(0.995, (1 + i) / (10 + i)))

    return _train(m, opt, loss, 250, after=after)


def gan_oscillation():
    torch.manual_seed(216)
    m = Bag({"gen": torch.tensor([1.0, -2.0]), "dis": torch.tensor([0.5, 1.0])})
    opt = torch.optim.SGD(m.parameters(), lr=0.15)
    g = rng(216)

    def step(i):
        opt.zero_grad()
        nz = 0.3 * torch.randn(2, generator=g)
        pay = (m.gen * m.dis).sum() + (nz * m.gen).sum()
        reg = 0.05 * (m.gen**2).sum() - 0.05 * (m.dis**2).sum()
        loss = pay + reg
        loss.backward()
        m.dis.grad.neg_()
        opt.step()
        return loss.detach()

    return m, step, 300


def rl_return_plateau():
    torch.manual_seed(217)
    m = Bag({"logits": torch.zeros(4)})
    g = rng(217)
    opt = torch.optim.SGD(m.parameters(), lr=0.05)
    pay = torch.tensor([10.0, 40.0, 200.0, 500.0])

    def loss(i):
        p = torch.softmax(m.logits, 0)
        r = (pay + 20 * torch.randn(4, generator=g)).half()
        ret = (p.half() * r).sum().float()
        return -ret * 0.02 + 0.5 * (p * p.clamp_min(1e-6).log()).sum()

    return _train(m, opt, loss, 280)


def norm_sqrt_t():
    torch.manual_seed(218)
    m = Bag({"w": torch.randn(8) * 0.1})
    g = rng(218)
    opt = torch.optim.SGD(m.parameters(), lr=0.3)

    def loss(i):
        x = torch.randn(12, 8, generator=g)
        u = m.w / m.w.norm()  # scale-invariant: every step adds to |w|^2
        return ((x @ u) - x[:, 0] * 2 + torch.randn(12, generator=g)).pow(2).mean()

    return _train(m, opt, loss, 300)


def norm_log_t():
    torch.manual_seed(219)
    m = nn.Linear(2, 1)
    g = rng(219)
    opt = torch.optim.SGD(m.parameters(), lr=2.0)
    x = torch.randn(40, 2, generator=g)
    x = x + 1.2 * x.sum(1, keepdim=True).sign()
    y = (x.sum(1, keepdim=True) > 0).float()
    return _train(m, opt, lambda i: F.binary_cross_entropy_with_logits(m(x), y), 300)


def heavy_tails():
    m = _mlp(220)
    g = rng(220)
    opt = torch.optim.SGD(m.parameters(), lr=0.02)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        u = torch.rand(16, 1, generator=g).clamp(1e-4, 1 - 1e-4)
        nz = torch.tan(math.pi * (u - 0.5)).clamp(-3000, 3000)  # Cauchy
        return F.smooth_l1_loss(m(x), x[:, :1] + nz)

    return _train(m, opt, loss, 280)


def grokking_jump():
    m = _mlp(221, h=32)
    g = rng(221)
    opt = torch.optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.1)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        y = 8.0 / (1 + math.exp(-(i - 200) / 3.0)) * x[:, :1].sign() + 0.1 * x[:, :1]
        return F.mse_loss(m(x), y)

    return _train(m, opt, loss, 280)


def adam_bias_start():
    m = _mlp(222)
    g = rng(222)
    opt = torch.optim.Adam(m.parameters(), lr=0.01, betas=(0.99, 0.9995))

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        return F.mse_loss(m(x) * 30, 100 * x[:, :1])

    return _train(m, opt, loss, 250)


def sorted_by_scale():
    torch.manual_seed(223)
    m = nn.Linear(3, 1)
    g = rng(223)
    opt = torch.optim.SGD(m.parameters(), lr=0.01)
    xs = torch.randn(240, 8, 3, generator=g) * torch.logspace(-3, 3, 240)[:, None, None]

    def loss(i):
        x = xs[i]
        y = x.sum(1, keepdim=True)
        return (
            F.smooth_l1_loss(m(x / (1 + x.abs().mean())), y / (1 + x.abs().mean()))
            + 1e-7 * x.pow(2).mean()
        )

    return _train(m, opt, loss, 240)


def periodic_reset():
    m = _mlp(224)
    m.register_buffer("acc", torch.ones(()))
    g = rng(224)
    opt = torch.optim.SGD(m.parameters(), lr=0.05)

    def loss(i):
        if i % 30 == 0:
            m.acc = torch.ones(())
        m.acc = m.acc * 1.6  # up to 1.3e6, then back to one
        x = torch.randn(8, 4, generator=g)
        return F.mse_loss(m(x), x[:, :1] * torch.log(m.acc) / 10)

    return _train(m, opt, loss, 270)


def gradscaler_growth():
    torch.manual_seed(225)
    m = nn.Linear(4, 1)
    g = rng(225)
    opt = torch.optim.SGD(m.parameters(), lr=0.01)
    sc = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=30)

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 4, generator=g)
        with torch.autocast("cpu", dtype=torch.float16):
            y = m(x)
        loss = F.mse_loss(y.float(), x[:, :1] + torch.randn(16, 1, generator=g))
        sc.scale(loss).backward()
        sc.step(opt)
        sc.update()
        return loss.detach()

    return m, step, 285


def hand_scale_capped_half():
    torch.manual_seed(226)
    m = nn.Linear(4, 1)
    g = rng(226)
    opt = torch.optim.SGD(m.parameters(), lr=0.02)

    def step(i):
        opt.zero_grad()
        s = min(1024.0, 2.0 ** (i // 9))
        x = torch.randn(16, 4, generator=g)
        loss = F.mse_loss(m(x), x[:, :1] + torch.randn(16, 1, generator=g))
        (loss.clamp(max=7.0).half() * s).backward()
        for p in m.parameters():
            p.grad.div_(s)
        opt.step()
        return loss.detach()

    return m, step, 240


def kl_weight_ramp():
    torch.manual_seed(228)
    m = Bag(enc=nn.Linear(6, 8), dec=nn.Linear(4, 6))
    g = rng(228)
    opt = torch.optim.Adam(m.parameters(), lr=5e-3)

    def loss(i):
        x = torch.randn(16, 6, generator=g) * 3
        mu, lv = m.enc(x).chunk(2, 1)
        lv = lv.clamp(-8, 4)
        z = mu + torch.randn(16, 4, generator=g) * torch.exp(0.5 * lv)
        kl = 0.5 * (mu**2 + lv.exp() - 1 - lv).sum(1).mean()
        beta = min(1.0, 1e-3 * 1.08**i)
        return F.mse_loss(m.dec(z), x) + beta * kl

    return _train(m, opt, loss, 220)


def logit_scale_clamped():
    torch.manual_seed(230)
    m = Bag({"ls": torch.tensor(0.0)}, a=nn.Linear(6, 8), b=nn.Linear(6, 8))
    g = rng(230)
    opt = torch.optim.Adam(
        [
            {"params": [m.ls], "lr": 0.03},
            {"params": list(m.a.parameters()) + list(m.b.parameters()), "lr": 0.01},
        ]
    )

    def loss(i):
        x = torch.randn(16, 6, generator=g)
        u, v = F.normalize(m.a(x), dim=-1), F.normalize(m.b(x), dim=-1)
        s = m.ls.exp() * (u.half() @ v.half().t()).float()
        return F.cross_entropy(s, torch.arange(16), label_smoothing=0.1) - 0.6 * m.ls

    def after(i):
        with torch.no_grad():
            m.ls.clamp_(max=math.log(30.0))

    return _train(m, opt, loss, 280, after=after)


def logvar_clamped():
    torch.manual_seed(231)
    m = Bag({"lv": torch.zeros(16)})
    g = rng(231)
    opt = torch.optim.SGD(m.parameters(), lr=16 * 0.15)
    r = 1e-3 * torch.randn(16, generator=g)

    def loss(i):
        lv = m.lv
        return 0.5 * (r**2 * torch.exp(-lv) + lv).mean()

    def after(i):
        with torch.no_grad():
            m.lv.clamp_(min=-8.0)

    return _train(m, opt, loss, 240, after=after)


def scurve_half():
    torch.manual_seed(232)
    m = Bag({"u": torch.tensor(0.002)}, fc=nn.Linear(3, 1))
    g = rng(232)
    opt = torch.optim.SGD(m.fc.parameters(), lr=0.05)

    def loss(i):
        x = torch.randn(8, 3, generator=g)
        amp = x.half().clamp(-3, 3) * (2000.0 * m.u.detach().half())
        return F.mse_loss(m.fc(x), torch.tanh(amp.float()[:, :1] / 500))

    def after(i):
        with torch.no_grad():
            m.u.add_(0.09 * m.u * (1 - m.u))  # logistic: exponential first, then flat

    return _train(m, opt, loss, 260, after=after)


def overshoot_then_decay():
    torch.manual_seed(233)
    m = nn.Linear(4, 1)
    g = rng(233)
    h = torch.randn(32, 4, generator=g)
    y = h.sum(1, keepdim=True)
    opt = torch.optim.SGD(m.parameters(), lr=1.0)

    def loss(i):
        return (m(h) - y).pow(2).mean() + 0.01 * torch.randn((), generator=g)

    # too high a learning rate for the first 40 steps (error grows 1.2x a step), then a sane one
    hh = torch.cat([h, torch.ones(32, 1)], 1)
    top = float(torch.linalg.eigvalsh(2 * hh.t() @ hh / 32)[-1])
    return _train(m, opt, loss, 200, _lr(opt, lambda i: (2.2 if i < 40 else 0.5) / top))


def momentum_099():
    m = _mlp(234)
    g = rng(234)
    opt = torch.optim.SGD(m.parameters(), lr=5e-4, momentum=0.99)

    def loss(i):
        x = torch.randn(16, 4, generator=g)
        return F.smooth_l1_loss(m(x), 50 + x[:, :1])

    return _train(m, opt, loss, 280)


def adaptive_bandwidth_plateau():
    torch.manual_seed(236)
    m = Bag({"z": torch.randn(12, 2) * 5})
    g = rng(236)
    opt = torch.optim.SGD(m.parameters(), lr=0.3)

    def loss(i):
        d2 = (m.z[:, None] - m.z[None]).pow(2).sum(-1)
        bw2 = d2.detach().median().clamp_min(0.05)
        k = torch.exp(-d2 / (2 * bw2))
        nz = 0.05 * torch.randn(12, 2, generator=g)
        return k.mean() * 0.2 + 0.08 * (m.z + nz).pow(2).sum(1).mean()

    return _train(m, opt, loss, 280)


def echo_state_099():
    torch.manual_seed(237)
    g = rng(237)
    w = torch.rand(12, 12, generator=g)
    w = 0.985 * w / torch.linalg.eigvals(w).abs().max()
    m = nn.Linear(12, 1)
    m.register_buffer("h", torch.zeros(2, 12))
    opt = torch.optim.SGD(m.parameters(), lr=1e-4)

    def loss(i):
        u = torch.rand(2, 12, generator=g)
        m.h = m.h @ w + u  # climbs to about 1 / (1 - 0.985)
        return F.smooth_l1_loss(m(m.h), u.sum(1, keepdim=True))

    return _train(m, opt, loss, 300)


def recurrence_tanh_radius2():
    torch.manual_seed(238)
    g = rng(238)
    w = torch.randn(12, 12, generator=g) * 2.0 / math.sqrt(12)
    m = nn.Linear(12, 2)
    m.register_buffer("h", torch.full((2, 12), 1e-6))
    opt = torch.optim.SGD(m.parameters(), lr=0.05)

    def loss(i):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            m.h = torch.tanh(m.h @ w + 1e-6)
            y = m(m.h)
        return F.mse_loss(y.float(), torch.tensor([[math.sin(i / 7), 0.3]] * 2))

    return _train(m, opt, loss, 260)


def window_wraps_half():
    torch.manual_seed(240)
    m = nn.Linear(6, 2)
    g = rng(240)
    opt = torch.optim.SGD(m.parameters(), lr=0.05)
    fr = 100.0 ** (-torch.arange(3) / 3.0)

    def loss(i):
        pos = (torch.arange(8) + (137 * i) % 4096).half()
        ang = pos.float()[:, None] * fr * 0.05
        return F.mse_loss(m(torch.cat([ang.sin(), ang.cos()], 1)), torch.randn(8, 2, generator=g))

    return _train(m, opt, loss, 200)


def power_law_in_range_half():
    torch.manual_seed(241)
    m = Bag({"amp": torch.tensor(0.0)}, fc=nn.Linear(3, 1))
    g = rng(241)
    opt = torch.optim.SGD(m.fc.parameters(), lr=0.02)

    def loss(i):
        x = torch.rand(8, 3, generator=g)
        feat = x.half() * (0.5 * (i + 1) ** 1.5)  # to about 2600 at the end
        return F.mse_loss(m.fc(x), x[:, :1] + 1e-4 * feat.float()[:, :1])

    return _train(m, opt, loss, 300)


def feature_moment_plateau_half():
    torch.manual_seed(242)
    m = Bag(fc=nn.Linear(4, 8), out=nn.Linear(8, 1), buffers={"m2": torch.zeros(8)})
    g = rng(242)
    opt = torch.optim.SGD(m.parameters(), lr=0.01)

    def loss(i):
        x = torch.randn(32, 4, generator=g)
        f = m.fc(x)
        with torch.no_grad():
            m.m2 = 0.97 * m.m2 + 0.03 * f.half().pow(2).float().mean(0)
        return F.smooth_l1_loss(m.out(f), 60 * x[:, :1]) + 1e-3 * m.m2.mean()

    return _train(m, opt, loss, 280)


def lognormal_ar_scale():
    m = _mlp(243)
    g = rng(243)
    opt = torch.optim.SGD(m.parameters(), lr=0.01)
    st = {"z": 0.0}

    def loss(i):
        st["z"] = 0.97 * st["z"] + 0.45 * float(torch.randn((), generator=g))
        x = torch.randn(16, 4, generator=g)
        return F.smooth_l1_loss(m(x), math.exp(st["z"]) * x[:, :1])

    return _train(m, opt, loss, 300)


def loss_to_noise_floor():
    torch.manual_seed(244)
    m = nn.Linear(4, 1)
    g = rng(244)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    x0 = torch.randn(32, 4, generator=g)

    def loss(i):
        y = x0.sum(1, keepdim=True) + 1e-3 * torch.randn(32, 1, generator=g)
        return F.mse_loss(m(x0), y)

    return _train(m, opt, loss, 300)


OVERFLOW = [
    clip_scores_half,
    attention_logits_half,
    lr_too_high_alternating,
    momentum_above_one,
    product_of_two_params,
    hyperbolic_gain_half,
    hyperbolic_energy_fp32,
    reward_total_half,
    return_gamma_above_one,
    position_counter_half,
    kl_weight_half,
    recurrence_bf16,
    stage_jumps_half,
    es_sigma_random_growth,
    bilinear_game,
    fourth_moment_half,
    entropy_bonus_std,
    loss_scale_half,
    adam_second_moment,
    norm_gain_fp16_autocast,
    temperature_quotient_half,
]
UNDERFLOW = [
    bandwidth_shrinks,
    logvar_falls_half,
    sequence_likelihood,
    forward_algorithm,
    particle_weights,
    noise_level_squared_half,
    rms_of_dying_branch,
    gate_closes_half,
    half_gradient_vanishes,
]
HEALTHY = [
    growth_saturates_tanh,
    warmup_linear_decay,
    warmup_exponential_lr,
    cosine_decay_half,
    cosine_restarts,
    cyclic_lr_triangle,
    cyclic_loss_seasons,
    outlier_batches,
    random_walk_weights,
    curriculum_length,
    curriculum_batch,
    step_counter,
    running_sum_half,
    temperature_floor,
    ema_warmup,
    gan_oscillation,
    rl_return_plateau,
    norm_sqrt_t,
    norm_log_t,
    heavy_tails,
    grokking_jump,
    adam_bias_start,
    sorted_by_scale,
    periodic_reset,
    gradscaler_growth,
    hand_scale_capped_half,
    kl_weight_ramp,
    logit_scale_clamped,
    logvar_clamped,
    scurve_half,
    overshoot_then_decay,
    momentum_099,
    adaptive_bandwidth_plateau,
    echo_state_099,
    recurrence_tanh_radius2,
    window_wraps_half,
    power_law_in_range_half,
    feature_moment_plateau_half,
    lognormal_ar_scale,
    loss_to_noise_floor,
]
