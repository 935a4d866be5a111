"""Speech and sound."""

import torch
from programs import fault, healthy, train
from torch import nn


@fault("div-by-zero", "div", step=2)
def autocorrelation_of_silence(fixed):
    torch.manual_seed(0)
    net = nn.Conv1d(1, 1, 5, padding=2, bias=False)
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        wave = torch.randn(4, 1, 64, generator=gen)
        if i >= 2:
            wave[1] = 0.0
        y = net(wave).squeeze(1)
        spectrum = torch.fft.rfft(y, 128)
        correlation = torch.fft.irfft(spectrum * spectrum.conj())[:, :64]
        normalised = correlation / (correlation[:, :1] + 1e-8 * fixed)  # ORIGIN
        return (normalised[:, 1:] - 0.1).square().mean()

    return net, train(net.parameters(), loss)


@fault("norm-at-zero", "div", step=1, also=("div-by-zero",), ops=("sgn", "mul"))
def phase_of_an_empty_bin(fixed):
    torch.manual_seed(2)
    magnitude = nn.Parameter(torch.rand(17, 9))
    wave = torch.randn(128)

    def loss(i):
        x = wave.clone()
        if i >= 1:
            x[:] = 0.0
        frames = torch.fft.rfft(x[: 144 - 16].reshape(4, 32), dim=-1).T
        size = frames.abs().clamp_min(1e-6) if fixed else frames.abs()
        phase = frames / size  # ORIGIN
        rebuilt = torch.fft.irfft(magnitude[:, :4] * phase, dim=0)
        return (rebuilt - x.reshape(4, 32).T).square().mean()

    return None, train([magnitude], loss)


@fault("div-by-zero", "div", step=1, also=("log-of-zero",))
def ratio_of_a_perfect_estimate(fixed):
    torch.manual_seed(3)
    gain = nn.Parameter(torch.tensor([0.5, 1.0]))
    source = torch.randn(2, 50)

    def loss(i):
        s = source.clone()
        if i >= 1:
            s[1] = 2.0 ** torch.randint(-2, 2, (50,), generator=torch.Generator().manual_seed(4))
        estimate = gain[:, None] * s if i < 1 else torch.stack([gain[0] * s[0], s[1] * gain[1].clamp(1, 1)])
        noise = (estimate - s).square().sum(-1)
        if i < 1:
            noise = noise + 1.0
        ratio = s.square().sum(-1) / (noise + 1e-4 * fixed)  # ORIGIN
        return -10 * torch.log10(ratio).mean()

    return None, train([gain], loss)


@fault("div-by-zero", "div", step=0)
def area_ratio_of_a_closed_tube(fixed):
    torch.manual_seed(5)
    net = nn.Linear(8, 4)
    x = torch.randn(16, 8)
    x[3] *= 200

    def loss(i):
        k = torch.tanh(net(x)) * (0.999 if fixed else 1.0)
        ratio = (1 - k) / (1 + k)  # ORIGIN
        return torch.log1p(ratio).mean()

    return net, train(net.parameters(), loss)


@fault(
    "infeasible-likelihood",
    "full",
    step=2,
    also=("inf-in-loss",),
    ops=("minimum", "min", "add", "logsumexp", "tensor", "lift_fresh", "detach"),
)
def warping_band_narrower_than_the_difference(fixed):
    torch.manual_seed(6)
    net = nn.Linear(3, 3)
    short, long, longer = torch.randn(5, 3), torch.randn(6, 3), torch.randn(9, 3)

    def aligned(a, b):
        band = 5 if fixed else 2
        cost = torch.cdist(a, b).square()
        table = [[torch.tensor(torch.inf)] * (len(b) + 1) for _ in range(len(a) + 1)]  # ALSO
        table[0][0] = torch.zeros(())
        for n in range(1, len(a) + 1):
            for m in range(max(1, n - band), min(len(b), n + band) + 1):
                best = torch.stack([table[n - 1][m - 1], table[n - 1][m], table[n][m - 1]]).min()
                table[n][m] = cost[n - 1, m - 1] + best  # ALSO
        return table[-1][-1]  # ORIGIN

    def loss(i):
        return aligned(net(short), long) + aligned(net(short), long if i < 2 else longer)

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", "init", step=0, also=("poisoned-buffer", "empty-reduction"), building=True)
def filterbank_finer_than_the_spectrum(fixed):
    torch.manual_seed(7)
    net = nn.Linear(12, 3)
    centres = torch.linspace(0, 8 if fixed else 3, 12)
    bins = torch.arange(9.0)
    triangles = torch.relu(1 - 2.5 * (bins - centres[:, None]).abs())
    net.register_buffer("bank", triangles / (triangles.sum(-1, keepdim=True) + 1e-6 * fixed))  # ORIGIN
    gen = torch.Generator().manual_seed(8)

    def loss(i):
        return net(torch.rand(4, 9, generator=gen) @ net.bank.T).square().mean()

    return net, train(net.parameters(), loss)


@fault("std-of-constant", "div", step=2, also=("div-by-zero",))
def cepstral_normalisation_of_a_constant_utterance(fixed):
    torch.manual_seed(9)
    net = nn.GRU(5, 6, batch_first=True)
    gen = torch.Generator().manual_seed(10)

    def loss(i):
        x = torch.randn(3, 20, 5, generator=gen)
        if i == 2:
            x[0] = 4.0
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5 * fixed)  # ORIGIN
        return net(x)[0].square().mean()

    return net, train(net.parameters(), loss)


@fault(
    "nan-in-input", "mul", "data", step=2, also=("div-by-zero",), ops=("div", "conv1d", "convolution", "addmm", "mm")
)
def gain_of_an_empty_recording(fixed):
    torch.manual_seed(11)
    net = nn.Linear(16, 2)
    gen = torch.Generator().manual_seed(12)

    def recordings(i):
        x = torch.randn(6, 16, generator=gen).numpy()
        if i == 2:
            x[4] = 0
        peak = abs(x).max(1, keepdims=True)
        return torch.from_numpy(x / (peak + (peak == 0) if fixed else peak))  # DATA

    def loss(i):
        return net(recordings(i)).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@healthy("log energies are floored, silence becomes a constant, the rest of the batch learns")
def floored_energies(fixed=False):
    torch.manual_seed(13)
    net = nn.Linear(8, 2)
    gen = torch.Generator().manual_seed(14)

    def loss(i):
        x = torch.randn(6, 8, generator=gen)
        x[2] = 0.0
        return net(torch.log(x.square().clamp_min(1e-10))).square().mean()

    return net, train(net.parameters(), loss)


@healthy("a lattice whose unreachable corners are -inf, with a path of finite score")
def feasible_lattice(fixed=False):
    torch.manual_seed(15)
    net = nn.Linear(3, 4)
    x = torch.randn(7, 3)

    def loss(i):
        score = net(x).log_softmax(-1)
        alpha = torch.full((4,), -torch.inf)
        alpha = torch.where(torch.arange(4) == 0, score[0], alpha)
        for t in range(1, 7):
            moved = torch.cat([torch.tensor([-torch.inf]), alpha[:-1]])
            top = torch.maximum(alpha, moved)
            base = torch.where(top.isinf(), torch.zeros_like(top), top)
            total = torch.exp(alpha - base) + torch.exp(moved - base)
            log = torch.where(total > 0, torch.log(total.clamp_min(1e-30)) + base, torch.full_like(top, -torch.inf))
            alpha = score[t] + log
        return -alpha[-1]

    return net, train(net.parameters(), loss)
