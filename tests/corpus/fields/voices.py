"""Speech and sound."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("div-by-zero", "div", step=2)
def projection_on_a_silent_target(fixed):
    torch.manual_seed(0)
    net = nn.Conv1d(1, 1, 5, padding=2)
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        clean = torch.randn(3, 1, 64, generator=gen)
        if i == 2:
            clean[1] = 0.0
        estimate = net(clean + 0.1 * torch.randn(3, 1, 64, generator=gen))
        energy = clean.square().sum(-1, keepdim=True)
        dot = (estimate * clean).sum(-1, keepdim=True)
        projected = dot / (energy + 1e-8) * clean if fixed else dot / energy * clean  # ORIGIN
        return (estimate - projected).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log2", step=1, also=("zero-times-inf",), ops=("mul",))
def octaves_of_unvoiced_frames(fixed):
    torch.manual_seed(2)
    net = nn.Linear(4, 1)
    gen = torch.Generator().manual_seed(3)

    def loss(i):
        frames = torch.rand(10, 4, generator=gen)
        pitch = 100 + 100 * torch.rand(10, generator=gen)
        if i == 1:
            pitch[4:7] = 0.0
        voiced = (pitch > 0).float()
        octave = torch.log2(pitch.clamp_min(1.0) if fixed else pitch)  # ORIGIN
        return ((net(frames)[:, 0] - octave) * voiced).square().mean()

    return net, train(net.parameters(), loss)


@fault("pow-fraction-at-zero", "pow", "backward", step=0, ops=("mul",))
def cube_root_compression_of_silence(fixed):
    torch.manual_seed(4)
    net = nn.Conv1d(1, 4, 9, padding=4, bias=False)
    sound = torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(5))
    sound[1] = 0.0

    def loss(i):
        power = net(sound).square()
        loud = (power + (1e-5 if fixed else 0.0)) ** 0.3  # ORIGIN
        return (loud.mean((1, 2)) - 0.5).square().mean()

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "std", step=2, ops=("var", "std_mean", "var_mean"))
def statistics_pooling_of_one_frame(fixed):
    torch.manual_seed(6)
    net = nn.Linear(3, 4)
    head = nn.Linear(8, 2)
    gen = torch.Generator().manual_seed(7)

    def loss(i):
        frames = net(torch.randn(2, 1 if i == 2 else 9, 3, generator=gen))
        spread = frames.std(1, unbiased=not fixed) if not fixed else frames.var(1, unbiased=False)  # ORIGIN
        return head(torch.cat([frames.mean(1), spread], -1)).square().mean()

    return nn.ModuleList([net, head]), train([*net.parameters(), *head.parameters()], loss)


@fault("infeasible-likelihood", "_ctc_loss", step=1, ops=("ctc_loss",))
def transcript_longer_than_its_audio(fixed):
    torch.manual_seed(8)
    net = nn.Linear(5, 6)
    gen = torch.Generator().manual_seed(9)

    def loss(i):
        x = torch.randn(12, 2, 5, generator=gen)
        target = torch.randint(1, 6, (2, 7), generator=gen)
        length = torch.tensor([12, 12 if i != 1 else 4])
        logs = F.log_softmax(net(x), -1)
        return F.ctc_loss(logs, target, length, torch.tensor([5, 7]), zero_infinity=fixed)  # ORIGIN

    return net, train(net.parameters(), loss)
