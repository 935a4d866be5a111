"""Pitch, prediction and spectra of recorded speech."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("div-by-zero", "div", step=1, ops=("reciprocal",))
def pitch_of_a_lag_of_zero(fixed):
    torch.manual_seed(0)
    net = nn.Conv1d(1, 4, 5, padding=2)

    def contour(wave):
        frames = wave.unfold(-1, 16, 8)
        spectrum = torch.fft.rfft(frames, 32).abs() ** 2
        lag = torch.fft.irfft(spectrum)[..., 1 if fixed else 0 :16].argmax(-1) + int(fixed)
        return 160.0 / lag  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        wave = torch.randn(1, 1, 64, generator=gen)
        if i == 0:
            return net(wave).square().mean()
        pitch = contour(wave[0, 0])
        out = net(wave)[0, :, ::8][:, : len(pitch)]
        return (out[:, : len(pitch)] - pitch[: out.shape[1]].log()).square().mean()

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "mean", step=2, ops=("div", "sum"), also=("div-by-zero",))
def level_of_an_utterance_that_is_all_masked(fixed):
    """Augmentation masked every frame of one utterance; the mean of what is left is of nothing."""
    torch.manual_seed(1)
    net = nn.Linear(6, 6)

    class Augment:
        def __init__(self, gen):
            self.gen = gen

        def __call__(self, mel, width):
            keep = torch.ones(mel.shape[0], dtype=torch.bool)
            start = int(torch.randint(0, mel.shape[0] - width + 1, (1,), generator=self.gen))
            keep[start : start + width] = False
            return keep

    augment = Augment(torch.Generator().manual_seed(2))

    def loss(i):
        mel = net(torch.randn(9, 6, generator=augment.gen))
        keep = augment(mel, 9 if i == 2 and not fixed else 3)
        level = torch.masked_select(mel, keep[:, None]).mean()  # ORIGIN
        return (mel - level).square().mean()

    return net, train(net.parameters(), loss)


@fault("zero-times-inf", "mul", step=1, ops=("log2",), also=("log-of-zero",))
def voiced_flag_times_the_logarithm_of_pitch(fixed):
    torch.manual_seed(3)
    head = nn.GRU(5, 2, batch_first=True)
    gen = torch.Generator().manual_seed(4)

    def step_loss(features, pitch):
        voiced = (pitch > 0).float()
        octave = torch.log2(pitch.clamp(min=1.0) if fixed else pitch)  # ALSO
        target = octave * voiced  # ORIGIN
        out, _ = head(features)
        return F.l1_loss(out[..., 0] * voiced, target) + F.binary_cross_entropy_with_logits(
            out[..., 1], voiced
        )

    def loss(i):
        pitch = torch.full((2, 6), 180.0)
        if i == 1:
            pitch[0, 3:] = 0.0
        return step_loss(torch.randn(2, 6, 5, generator=gen), pitch)

    return head, train(head.parameters(), loss)


@fault("div-by-zero", "div", step=1)
def prediction_of_a_constant_frame(fixed):
    """Levinson's recursion on an offset: the first coefficient predicts all, no error is left."""
    torch.manual_seed(5)
    gain = nn.Parameter(torch.ones(4))

    def levinson(r, order=2):
        error, coefficients = r[0], [torch.ones(())]
        for m in range(1, order + 1):
            mixed = sum(coefficients[k] * r[m - k] for k in range(m))
            divisor = error + 1e-6 if fixed else error
            k = -mixed / divisor  # ORIGIN
            padded = [*coefficients, torch.zeros(())]
            coefficients = [a + k * b for a, b in zip(padded, padded[::-1], strict=True)]
            error = error * (1 - k * k)
        return torch.stack(coefficients[1:]), error

    def loss(i):
        r = torch.tensor([1.0, 0.6, 0.2, 0.1]) if i == 0 else torch.ones(4)
        a, error = levinson(r * gain)
        return a.square().sum() + error

    return None, train([gain], loss, 0.0 if not fixed else 1e-3)


@fault("div-by-zero", "div", step=2, also=("norm-at-zero",), ops=("linalg_vector_norm",))
def likeness_of_a_zero_voiceprint(fixed):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU())

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        a, b = torch.randn(2, 5, 4, generator=gen)
        za, zb = net(a), net(b)
        if i == 2:
            za = za * (torch.arange(5) != 1)[:, None]
        score = F.cosine_similarity(za, zb, dim=-1, eps=1e-8 if fixed else 0.0)  # ORIGIN
        return (1 - score).mean()

    return net, train(net.parameters(), loss)
