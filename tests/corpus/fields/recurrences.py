"""Recurrent nets, attention by hand, lattices and dynamic programmes, speech."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("softmax-all-masked", "_softmax", step=2, ops=("softmax",))
def pooling_of_an_empty_sequence(fixed):
    torch.manual_seed(0)

    class AttentionPool(nn.Module):
        """Weights over time, masked by the lengths."""

        def __init__(self, dim, guarded):
            super().__init__()
            self.score = nn.Linear(dim, 1)
            self.guarded = guarded

        def forward(self, h, lengths):
            mask = torch.arange(h.shape[1])[None] >= lengths[:, None]
            if self.guarded:
                mask[:, 0] = False
            score = self.score(h).squeeze(-1).masked_fill(mask, float("-inf"))
            weight = torch.softmax(score, -1)  # ORIGIN
            return (weight.unsqueeze(-1) * h).sum(1)

    net = nn.ModuleDict({"rnn": nn.LSTM(4, 6, batch_first=True), "pool": AttentionPool(6, fixed), "out": nn.Linear(6, 2)})
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        x = torch.randn(3, 5, 4, generator=gen)
        lengths = torch.tensor([5, 3, 0 if i == 2 else 1])
        h, _ = net["rnn"](x)
        return F.cross_entropy(net["out"](net["pool"](h, lengths)), torch.tensor([0, 1, 0]))

    return net, train(net.parameters(), loss)


@fault("norm-at-zero", "div", step=1, also=("div-by-zero",))
def unit_state_before_the_first_token(fixed):
    """A cell that normalises its state by hand meets the zeros it begins with."""
    torch.manual_seed(2)

    class UnitCell(nn.Module):
        def __init__(self, n_in, n):
            super().__init__()
            self.cell = nn.GRUCell(n_in, n)

        def step(self, x, h):
            h = self.cell(x, h)
            return h

        def forward(self, x, h=None):
            h = torch.zeros(x.shape[1], 5) if h is None else h
            outs = []
            for t in range(x.shape[0]):
                size = h.pow(2).sum(1, keepdim=True).sqrt()
                unit = h / (size + 1e-6 if fixed else size)  # ORIGIN
                h = self.step(x[t], unit)
                outs.append(h)
            return torch.stack(outs)

    net, gen = UnitCell(3, 5), torch.Generator().manual_seed(3)

    def loss(i):
        x = torch.randn(3, 2, 3, generator=gen)
        return net(x, None if i == 1 else torch.ones(2, 5)).mean().square()

    return net, train(net.parameters(), loss)


@fault("softmax-all-masked", "_softmax", step=1, ops=("softmax", "div", "sub"))
def query_that_sees_no_key(fixed):
    torch.manual_seed(4)

    class CrossAttention(nn.Module):
        def __init__(self, d, heads):
            super().__init__()
            self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
            self.heads = heads

        def split(self, x):
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        def attend(self, q, k, v, allowed):
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            scores = scores + torch.where(allowed, 0.0, -torch.inf)
            return torch.softmax(scores, -1) @ v  # ORIGIN

        def forward(self, x, memory, allowed):
            k, v = self.kv(memory).chunk(2, -1)
            y = self.attend(self.split(self.q(x)), self.split(k), self.split(v), allowed[:, None])
            return self.o(y.transpose(1, 2).flatten(2))

    net, gen = CrossAttention(8, 2), torch.Generator().manual_seed(5)

    def loss(i):
        x, memory = torch.randn(2, 3, 8, generator=gen), torch.randn(2, 4, 8, generator=gen)
        near = (torch.arange(3)[:, None] - torch.arange(4)[None]).abs() <= 1
        allowed = near.expand(2, 3, 4).clone()
        if i == 1 and not fixed:
            allowed[1, 2] = False
        return net(x, memory, allowed).square().mean()

    return net, train(net.parameters(), loss)


@fault("inf-minus-inf", "sub", step=1, ops=("logsumexp", "add", "exp"), also=("softmax-all-masked",))
def partition_of_a_crf_with_no_legal_tag(fixed):
    """A word for which every tag is forbidden leaves a log-sum-exp of nothing."""
    torch.manual_seed(6)

    class Crf(nn.Module):
        def __init__(self, words, tags):
            super().__init__()
            self.emit = nn.Embedding(words, tags)
            self.trans = nn.Parameter(torch.randn(tags, tags) * 0.1)

        def score(self, e, tags):
            picked = e.gather(1, tags[:, None]).sum()
            return picked + self.trans[tags[:-1], tags[1:]].sum()

        def partition(self, e, legal):
            e = e.masked_fill(~legal, float("-inf"))
            a = e[0]
            for t in range(1, len(e)):
                m = (a[:, None] + self.trans).max(0).values
                a = torch.log(torch.exp(a[:, None] + self.trans - m).sum(0)) + m + e[t]  # ORIGIN
            return torch.logsumexp(a, 0)

    net = Crf(12, 3)

    def loss(i):
        ids, tags = torch.tensor([1, 4, 7, 2]), torch.tensor([0, 1, 1, 2])
        legal = torch.ones(4, 3, dtype=torch.bool)
        legal[0, 2] = False
        if i == 1 and not fixed:
            legal[2] = False
        e = net.emit(ids)
        return net.partition(e, legal) - net.score(e, tags)

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2, ops=("exp", "prod", "mul"), also=("dtype-underflow",))
def scaled_forward_pass_of_an_outlier(fixed):
    """Every emission of one observation underflows, and the scaling factor is 0."""
    torch.manual_seed(7)
    mean = nn.Parameter(torch.tensor([-1.0, 0.0, 1.0]))
    trans = torch.full((3, 3), 1 / 3)

    def emission(x):
        gap = (x[:, None] - mean) ** 2
        if fixed:
            gap = gap.clamp(max=20)
        return torch.exp(-gap / 0.5)  # ALSO

    def loss(i):
        x = torch.randn(6, generator=torch.Generator().manual_seed(i))
        if i == 2:
            x[3] = 40.0
        b = emission(x)
        alpha, total = b[0] / 3, 0.0
        for t in range(1, 6):
            alpha = (alpha @ trans) * b[t]
            scale = alpha.sum()
            alpha = alpha / scale  # ORIGIN
            total = total - torch.log(scale)  # ALSO
        return total

    return None, train([mean], loss, lr=1e-4)


@fault("inf-minus-inf", "sub", step=1, ops=("logsumexp", "add", "exp"), also=("softmax-all-masked", "intended-inf-in-loss", "zero-times-inf"))
def soft_minimum_of_three_borders(fixed):
    """Outside of a narrow band every predecessor of a cell is inf."""
    torch.manual_seed(8)
    net = nn.Linear(2, 2)
    a = torch.randn(4, 2)
    gamma = 0.5

    def softmin(x):
        z = -x / gamma
        m = z.max()
        return -gamma * (torch.log(torch.exp(z - m).sum()) + m)  # ORIGIN

    def soft_dtw(cost, band):
        n, m = cost.shape
        far = cost.new_tensor(float("inf"))
        r = {(0, 0): cost.new_zeros(())}
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                if abs(i - j) <= band or (i, j) == (n, m):
                    near = [r.get((i - 1, j - 1), far), r.get((i - 1, j), far), r.get((i, j - 1), far)]
                    r[i, j] = cost[i - 1, j - 1] + softmin(torch.stack(near))
        return r[n, m]

    def loss(i):
        b = torch.randn(7 if i == 1 else 5, 2, generator=torch.Generator().manual_seed(i))
        return soft_dtw(torch.cdist(net(a), net(b)), 9 if fixed else 1)

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("div-by-zero", "div", step=1)
def prediction_error_of_a_silent_frame(fixed):
    """Levinson's recursion divides by the error, which is 0 in silence."""
    torch.manual_seed(9)
    net = nn.Linear(16, 16)
    gen = torch.Generator().manual_seed(10)

    def levinson(r, order=3):
        a, e = [torch.ones_like(r[:, 0])], r[:, 0]
        for m in range(1, order + 1):
            acc = sum(a[j] * r[:, m - j] for j in range(m))
            k = -acc / (e + 1e-5 if fixed else e)  # ORIGIN
            a = [*a, torch.zeros_like(k)]
            a = [x + k * y for x, y in zip(a, reversed(a), strict=True)]
            e = e * (1 - k**2)
        return torch.stack(a, 1)

    def loss(i):
        frame = torch.randn(3, 16, generator=gen)
        if i == 1:
            frame[2] = 0
        r = torch.stack([(frame[:, k:] * frame[:, : 16 - k]).sum(1) for k in range(4)], 1)
        return (levinson(r).sum(1, keepdim=True) * net(frame)).square().mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("exploding-gradient", "mm", "backward", step=1, ops=("sin", "mul", "matmul"), also=("dtype-overflow",))
def bounded_recurrence_of_a_long_clip(fixed):
    """The state stays within 1, and its derivative grows by each of 500 frames."""
    torch.manual_seed(11)

    class Memory(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.w = nn.Parameter(torch.linalg.qr(torch.randn(n, n))[0] * (0.9 if fixed else 6.0))

        def forward(self, h, frames):
            for _ in range(frames):
                h = torch.sin(h @ self.w)  # ORIGIN
            return h

    net = Memory(4)
    h0 = torch.randn(2, 4)
    return net, train(net.parameters(), lambda i: net(h0, 500 if i == 1 else 5).sum(), lr=1e-6)


@fault("log-of-zero", "log", step=1, also=("dtype-underflow",), ops=("prod", "mul"))
def product_of_many_posteriors(fixed):
    torch.manual_seed(12)
    net = nn.Linear(4, 6)
    gen = torch.Generator().manual_seed(13)

    def loss(i):
        frames = torch.randn(200 if i == 1 else 10, 4, generator=gen)
        p = net(frames).softmax(-1)[:, 0]
        if fixed:
            return -p.log().sum() / len(p)
        return -torch.log(p.prod())  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def normalised_attention_of_a_gated_off_segment(fixed):
    """Location-sensitive weights are gated by a hard mask, then made to sum to 1 again."""
    torch.manual_seed(14)
    net = nn.Linear(5, 1)
    gen = torch.Generator().manual_seed(15)

    def window(weights, centre, width=2):
        at = torch.arange(weights.shape[1])
        gate = ((at[None] - centre[:, None]).abs() <= width).float()
        gated = weights * gate
        total = gated.sum(1, keepdim=True)
        return gated / (total.clamp(min=1e-8) if fixed else total)  # ORIGIN

    def loss(i):
        h = torch.randn(3, 8, 5, generator=gen)
        w = net(h).squeeze(-1).softmax(1)
        centre = torch.tensor([1, 4, 20 if i == 2 else 7])
        return ((window(w, centre).unsqueeze(-1) * h).sum(1) - 1).square().mean()

    return net, train(net.parameters(), loss)

