"""Scans, schedules of noise, and speech."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("div-by-zero", "div", step=2, also=("div-by-tiny", "dtype-underflow"), ops=("cumprod",))
def parallel_scan_by_dividing_by_decays(fixed):
    torch.manual_seed(0)

    class Selective(nn.Module):
        def __init__(self, width=3):
            super().__init__()
            self.delta, self.inp = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x):
            decay = torch.exp(-F.softplus(self.delta(x)))
            u = self.inp(x)
            if fixed:
                h, out = torch.zeros_like(u[0]), []
                for a, b in zip(decay, u, strict=True):
                    h = a * h + b
                    out.append(h)
                return torch.stack(out)
            total = decay.cumprod(0)
            return total * torch.cumsum(u / total, 0)  # ORIGIN

    net = Selective()

    def loss(i):
        x = drawn(i, 24, 3) * (60.0 if i == 2 else 1.0)
        return net(x).square().mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("exp-overflow", "exp", step=3, also=("dtype-overflow",))
def weighted_keys_without_their_maximum(fixed):
    torch.manual_seed(1)
    key, value = nn.Linear(4, 4), nn.Linear(4, 4)
    decay = nn.Parameter(torch.full((4,), 0.5))

    def mix(x):
        k, v = key(x), value(x)
        if fixed:
            k = k - k.amax(0, keepdim=True)
        num = den = torch.zeros(4)
        out = []
        for kt, vt in zip(k, v, strict=True):
            e = torch.exp(kt)  # ORIGIN
            num, den = num * decay + e * vt, den * decay + e
            out.append(num / (den + 1e-6))
        return torch.stack(out)

    def loss(i):
        x = drawn(i, 10, 4) * (400.0 if i == 3 else 1.0)
        return mix(x).tanh().square().mean()

    return nn.ModuleList([key, value]), train([*key.parameters(), *value.parameters(), decay], loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=35, steps=38, ops=("div", "mul"))
def ring_of_states_that_forgets_nothing(fixed):
    """Training moves the modulus of the eigenvalues to 1, where their normaliser is 0."""
    nu = nn.Parameter(torch.full((4,), 0.1))
    b = nn.Parameter(torch.ones(4))
    x = torch.ones(6)

    def scan():
        modulus = torch.exp(-torch.exp(nu))
        gain = torch.sqrt((1 - modulus**2).clamp_min(1e-9)) if fixed else torch.sqrt(1 - modulus**2)  # ORIGIN
        h = torch.zeros(4)
        for t in range(6):
            h = modulus * h + gain * b * x[t]
        return h

    def step(i):
        nu.grad = b.grad = None
        h = scan()
        loss = h.mean()
        loss.backward()
        with torch.no_grad():
            nu.sub_(0.5)
            b.sub_(1e-3 * b.grad)
        return loss

    step.parameters = {"nu": nu, "b": b}
    return None, step


@fault("div-by-zero", "div", step=0)
def hold_of_a_pole_at_the_origin(fixed):
    rate = nn.Parameter(-torch.arange(4.0))
    gain = nn.Parameter(torch.ones(4))
    u = drawn(2, 12)

    def discretise(dt):
        a = torch.exp(dt * rate)
        if fixed:
            return a, dt * gain
        return a, torch.expm1(dt * rate) / rate * gain  # ORIGIN

    def loss(i):
        a, b = discretise(0.1)
        h = torch.zeros(4)
        for v in u:
            h = a * h + b * v
        return (h - 1).square().mean()

    return None, train([rate, gain], loss)


@fault("div-by-zero", "div", step=4)
def weight_of_the_last_time_without_signal(fixed):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))
    alpha_bar = torch.linspace(1, 0, 51) ** 2
    alpha_bar[0] = 0.9999

    def loss(i):
        t = torch.randint(1, 50, (8,), generator=torch.Generator().manual_seed(i))
        if i == 4:
            t[6] = 50
        x, noise = drawn(i, 8, 2), drawn(i + 70, 8, 2)
        a = alpha_bar[t][:, None]
        guess = net(torch.cat([a.sqrt() * x + (1 - a).sqrt() * noise, t[:, None] / 50], 1))
        snr = alpha_bar[t] / (1 - alpha_bar[t])
        weight = snr.clamp(max=5.0) / (snr.clamp_min(1e-8) if fixed else snr)  # ORIGIN
        return (weight * (guess - noise).square().mean(1)).mean()

    return net, train(net.parameters(), loss, lr=1e-2, optimizer=torch.optim.AdamW)


@fault("div-by-zero", "div", step=3, ops=("neg", "mul"))
def score_of_data_without_noise(fixed):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    sigma = torch.tensor(25.0)

    def spread(t):
        return torch.sqrt((sigma ** (2 * t) - 1) / 2 / sigma.log())

    def loss(i):
        t = torch.rand(6, generator=torch.Generator().manual_seed(i)).clamp_min(1e-3)
        if i == 3 and not fixed:
            t[0] = 0.0
        std = spread(t)[:, None]
        z = drawn(i, 6, 2)
        x = drawn(i + 9, 6, 2) + std * z
        score = net(torch.cat([x, t[:, None]], 1)) / std  # ORIGIN
        return (score * std + z).square().sum(1).mean()

    return net, train(net.parameters(), loss)


@fault("inf-minus-inf", "logaddexp", "backward", step=0, steps=3, ops=("sub", "exp", "mul"), also=("softmax-all-masked", "intended-inf-in-loss", "zero-times-inf"))
def transducer_with_unreachable_cells(fixed):
    torch.manual_seed(5)
    joint = nn.Linear(6, 4)
    low = -1e9 if fixed else -float("inf")
    audio, text = drawn(6, 5, 3), drawn(7, 4, 3)
    target = torch.tensor([1, 2, 3])

    def forward_variable(logp):
        blank, emit = logp[:, :, 0], logp[:, :-1].gather(2, target.expand(5, 3)[..., None])[..., 0]
        row = torch.tensor([0.0, low, low, low])
        for u in range(1, 4):
            row = torch.cat([row[:u], (row[u - 1] + emit[0, u - 1])[None], row[u + 1 :]])
        # half of the lattice is cut away: late labels are not allowed in early frames
        row = torch.where(torch.arange(4) > 1, low, row)
        for t in range(1, 5):
            down = row + blank[t - 1]
            cells = [down[0]]
            for u in range(1, 4):
                if t == 1 and u == 3:
                    left = torch.tensor(low)
                else:
                    left = cells[u - 1] + emit[t, u - 1]
                cells.append(torch.logaddexp(down[u], left))  # ORIGIN
            row = torch.stack(cells)
        return row[-1] + blank[-1, -1]

    def loss(i):
        pairs = torch.cat([audio[:, None].expand(5, 4, 3), text[None].expand(5, 4, 3)], -1)
        return -forward_variable(joint(pairs).log_softmax(-1))

    return joint, train(joint.parameters(), loss, lr=1e-2)


@fault("pow-fraction-at-zero", "pow", step=3, also=("zero-times-inf", "div-by-zero"), ops=("mul", "div"))
def channel_energies_of_a_muted_band(fixed):
    torch.manual_seed(6)

    class Pcen(nn.Module):
        def __init__(self, bands=5):
            super().__init__()
            self.alpha = nn.Parameter(torch.full((bands,), 0.9))
            self.root = nn.Parameter(torch.full((bands,), 0.5))
            self.eps = 1e-6 if fixed else 0.0

        def forward(self, e, s=0.2):
            m, out = e[0], []
            for frame in e:
                m = (1 - s) * m + s * frame
                out.append((frame * (self.eps + m) ** -self.alpha + 2.0) ** self.root)  # ORIGIN
            return torch.stack(out)

    net = nn.Sequential(Pcen(), nn.Linear(5, 2))

    def loss(i):
        e = drawn(i, 8, 5).square()
        if i == 3:
            e[:, 4] = 0.0
        return net(e).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def voicing_of_frames_that_are_silent(fixed):
    torch.manual_seed(7)
    net = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def voicing(frames):
        spectrum = torch.fft.rfft(frames, n=64)
        auto = torch.fft.irfft(spectrum * spectrum.conj(), n=64)
        energy = auto[..., :1]
        if fixed:
            energy = energy + 1e-5
        return (auto / energy)[..., 4:20].amax(-1)  # ORIGIN

    def loss(i):
        wave = torch.sin(torch.arange(160) * 0.4) + 0.1 * drawn(i, 160)
        if i == 2:
            wave[64:] = 0.0
        frames = net(wave.view(1, 1, -1)).view(-1).unfold(0, 32, 32)
        return (voicing(frames) - 0.9).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=3, also=("div-by-tiny", "dtype-underflow"))
def monotonic_attention_that_is_sure(fixed):
    torch.manual_seed(8)
    energy = nn.Linear(4, 1)

    def attend(memory, steps=3):
        alpha = F.one_hot(torch.tensor(0), memory.shape[0]).float()
        out = []
        for _ in range(steps):
            p = torch.sigmoid(energy(memory))[:, 0]
            rest = torch.cat([torch.ones(1), torch.cumprod(1 - p, 0)[:-1]])
            alpha = p * rest * torch.cumsum(alpha / (rest.clamp(1e-6, 1) if fixed else rest), 0)  # ORIGIN
            out.append(alpha @ memory)
        return torch.stack(out)

    def loss(i):
        memory = drawn(i, 7, 4) * (200.0 if i == 3 else 1.0)
        return attend(memory).abs().mean()

    return energy, train(energy.parameters(), loss)


@fault("log-of-zero", "log", step=2, also=("zero-times-inf",))
def entropy_of_a_spectrum_with_empty_bins(fixed):
    torch.manual_seed(9)
    gain = nn.Parameter(torch.ones(17))

    def loss(i):
        wave = drawn(i, 3, 32)
        if i == 2:
            wave[1] = torch.cos(torch.arange(32) * math.pi) * 0 + 1.0
        power = torch.stft(wave, 32, 32, window=torch.ones(32), center=False, return_complex=True).abs().square()[..., 0]
        p = power * gain.square()
        p = p / p.sum(1, keepdim=True)
        if fixed:
            p = p.clamp_min(1e-9)
        return -(p * torch.log(p)).sum(1).mean()  # ORIGIN

    return None, train([gain], loss, lr=1e-2)
