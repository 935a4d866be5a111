"""Decompositions, complex numbers, distributions, sparse tensors and bags."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("degenerate-matrix", "svd", "backward", step=0, steps=1, ops=("_linalg_svd", "linalg_svd", "div", "mul", "reciprocal"))
def low_rank_projector_of_an_orthogonal_start(fixed):
    """The weights begin orthogonal: equal singular values, and the vectors have no derivative."""
    torch.manual_seed(0)

    class Rank(nn.Module):
        def __init__(self, n, k):
            super().__init__()
            w = torch.eye(n)
            if fixed:
                w = w * torch.linspace(0.5, 1.5, n)
            self.w, self.k = nn.Parameter(w), k

        def project(self):
            u, s, vh = torch.linalg.svd(self.w)  # ORIGIN
            return u[:, : self.k] @ torch.diag(s[: self.k]) @ vh[: self.k]

        def forward(self, x):
            return x @ self.project()

    net = Rank(4, 2)
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), y))


@fault("degenerate-matrix", "linalg_slogdet", step=1, ops=("_linalg_slogdet", "log", "_linalg_det", "lu"), also=("log-of-zero",))
def volume_of_a_repeated_item(fixed):
    torch.manual_seed(1)
    net = nn.Embedding(6, 4)

    class Dpp:
        def kernel(self, ids):
            z = F.normalize(net(ids), dim=-1)
            k = z @ z.T
            return k + 1e-3 * torch.eye(len(ids)) if fixed else k

        def log_volume(self, ids):
            return torch.linalg.slogdet(self.kernel(ids)).logabsdet  # ORIGIN

    dpp = Dpp()
    net.weight.data[4] = torch.tensor([1.0, 0, 0, 0])
    net.weight.data[5] = torch.tensor([0, 1.0, 0, 0])

    def loss(i):
        ids = torch.tensor([4, 4, 5]) if i == 1 else torch.tensor([0, 1, 2])
        return -dpp.log_volume(ids)

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("degenerate-matrix", "linalg_cholesky_ex", step=1, ops=("linalg_cholesky", "cholesky", "log", "linalg_solve_triangular"), also=("sqrt-of-negative", "log-of-negative", "div-by-zero", "log-of-zero"))
def covariance_of_fewer_samples_than_features(fixed):
    """cholesky_ex of a matrix that is not positive definite stops, and its info is not looked at."""
    torch.manual_seed(2)
    net = nn.Linear(4, 4, bias=False)
    net.weight.data = torch.eye(4)

    def gaussian_nll(z):
        c = z - z.mean(0)
        cov = c.T @ c / len(z)
        if fixed:
            cov = cov + 1e-3 * torch.eye(4)
        factor, _ = torch.linalg.cholesky_ex(cov)  # ORIGIN
        white = torch.linalg.solve_triangular(factor, c.T, upper=False)  # ALSO
        return white.square().mean() + factor.diagonal().log().sum()  # ALSO

    def loss(i):
        z = torch.randn(16, 4, generator=torch.Generator().manual_seed(i))
        if i == 1:
            z = torch.tensor([[1.0, 2, 0, 0], [-1, -2, 0, 0]])
        return gaussian_nll(net(z))

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("div-by-zero", "div", step=1, ops=("linalg_solve_triangular", "triangular_solve"), also=("degenerate-matrix",))
def triangular_system_with_a_dead_pivot(fixed):
    torch.manual_seed(3)

    class Layer(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.raw = nn.Parameter(torch.eye(n) + 0.1 * torch.randn(n, n))

        def lower(self):
            lower = self.raw.tril(-1)
            pivot = F.relu(self.raw.diagonal())
            return lower + torch.diag(pivot + 1e-2 if fixed else pivot)

        def forward(self, x):
            return torch.linalg.solve_triangular(self.lower(), x.T, upper=False).T  # ORIGIN

    net, gen = Layer(3), torch.Generator().manual_seed(4)

    def loss(i):
        if i == 1:
            with torch.no_grad():
                net.raw[1, 1] = -0.5
        return net(torch.randn(5, 3, generator=gen)).tanh().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, ops=("reciprocal", "mul"), also=("zero-times-inf",))
def phase_of_an_empty_frequency(fixed):
    torch.manual_seed(5)
    net = nn.Linear(16, 16)
    gen = torch.Generator().manual_seed(6)

    class PhaseLoss(nn.Module):
        def unit(self, spec):
            size = spec.abs()
            return spec / (size + 1e-8 if fixed else size)  # ORIGIN

        def forward(self, x, y):
            a, b = torch.fft.rfft(x), torch.fft.rfft(y)
            return (1 - (self.unit(a) * self.unit(b).conj()).real).mean()

    crit = PhaseLoss()

    def loss(i):
        x, y = torch.randn(3, 16, generator=gen), torch.randn(3, 16, generator=gen)
        if i == 1:
            y[1] = 0
        return crit(net(x), y)

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=0, ops=("pow",))
def envelope_of_a_windowed_edge(fixed):
    """A Hann window is 0 at its end, and so is the envelope there."""
    gain = nn.Parameter(torch.ones(16))
    x = torch.sin(torch.arange(16.0))

    def analytic(x):
        spec = torch.fft.fft(x)
        h = torch.zeros(16)
        h[0] = h[8] = 1
        h[1:8] = 2
        return torch.fft.ifft(spec * h)

    def loss(i):
        window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(16.0) / 16)
        z = analytic(x * gain) * window
        power = z.real**2 + z.imag**2
        if fixed:
            power = power + 1e-10
        return (torch.sqrt(power) - 0.3).square().mean()  # ORIGIN

    return None, train([gain], loss)


@fault("infeasible-likelihood", "where", step=1, ops=("masked_fill", "index_put_", "index_put", "log", "div", "full", "mul", "add", "fill_", "masked_fill_"), also=("inf-minus-inf", "intended-inf-in-loss", "log-of-zero"))
def divergence_to_a_narrower_uniform(fixed):
    low = nn.Parameter(torch.tensor([0.1, 0.2]))
    high = nn.Parameter(torch.tensor([0.8, 0.7]))

    def prior(i):
        return torch.distributions.Uniform(torch.zeros(2), torch.ones(2) * (0.75 if i == 1 and not fixed else 1.0))

    def loss(i):
        q = torch.distributions.Uniform(low, high)
        return torch.distributions.kl_divergence(q, prior(i)).sum()  # ORIGIN

    return None, train([low, high], loss)


@fault("log-of-zero", "log", step=2, ops=("log1p", "pow"), also=("infeasible-likelihood",))
def kumaraswamy_at_its_edge(fixed):
    torch.manual_seed(7)
    net = nn.Linear(3, 2)
    gen = torch.Generator().manual_seed(8)

    class Kumaraswamy:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def log_prob(self, x):
            if fixed:
                x = x.clamp(1e-5, 1 - 1e-5)
            return (
                self.a.log()
                + self.b.log()
                + (self.a - 1) * x.log()
                + (self.b - 1) * torch.log(1 - x**self.a)  # ORIGIN
            )

    def loss(i):
        a, b = (F.softplus(net(torch.randn(5, 3, generator=gen))) + 0.1).unbind(-1)
        x = torch.rand(5, generator=gen) * 0.8 + 0.1
        if i == 2:
            x[1] = 1.0
        return -Kumaraswamy(a, b).log_prob(x).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1)
def mean_of_an_empty_bag_by_hand(fixed):
    torch.manual_seed(9)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(30, 6), nn.Linear(6, 2)

        def pooled(self, ids, offsets):
            sizes = torch.diff(offsets)
            row = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
            total = torch.zeros(len(sizes), 6).index_add(0, row, self.table(ids))
            return total / (sizes.clamp(min=1) if fixed else sizes)[:, None]  # ORIGIN

        def forward(self, ids, offsets):
            return self.out(self.pooled(ids, offsets))

    net, gen = Bag(), torch.Generator().manual_seed(10)

    def loss(i):
        ids = torch.randint(0, 30, (8,), generator=gen)
        offsets = torch.tensor([0, 3, 3, 8]) if i == 1 else torch.tensor([0, 3, 5, 8])
        return F.cross_entropy(net(ids, offsets), torch.tensor([0, 1, 0]))

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, ops=("reciprocal", "pow", "mul"), also=("zero-times-inf",))
def sparse_rows_that_sum_to_nothing(fixed):
    """The values of one row cancel: its normalised entries are x / 0."""
    torch.manual_seed(11)
    net = nn.Linear(4, 4)
    x = torch.randn(5, 4)
    index = torch.tensor([[0, 0, 1, 2, 3, 4, 4], [1, 2, 0, 3, 4, 0, 1]])

    def normalise(value):
        rows = torch.zeros(5).index_add(0, index[0], value)
        if fixed:
            rows = rows.abs() + 1e-3
        return value / rows[index[0]]  # ORIGIN

    def loss(i):
        value = torch.ones(7)
        if i == 1:
            value[-1] = -1.0
        a = torch.sparse_coo_tensor(index, normalise(value), (5, 5))
        return torch.sparse.mm(a, net(x)).square().mean()

    return net, train(net.parameters(), loss)
