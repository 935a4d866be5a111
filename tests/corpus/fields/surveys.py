"""Graphs, recommendations, preferences, lifetimes, speech and clouds of points."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("div-by-zero", "reciprocal", step=1, ops=("div",))
def attenuation_of_a_node_without_neighbours(fixed):
    class Principal(nn.Module):
        def __init__(self, d, typical):
            super().__init__()
            self.typical = typical
            self.mix = nn.Linear(3 * d, d)

        def forward(self, h, edge):
            source, target = edge
            degree = torch.zeros(len(h)).index_add_(0, target, torch.ones(len(target)))
            total = torch.zeros_like(h).index_add(0, target, h[source])
            size = torch.log(degree + 1)[:, None]
            if fixed:
                size = size.clamp_min(math.log(2))
            return self.mix(torch.cat([total, total * size / self.typical, total * (self.typical / size)], -1))  # ORIGIN

    torch.manual_seed(0)
    net = Principal(3, 1.0)
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])

    def loss(i):
        edge = ring if i != 1 else ring[:, :3]
        return net(drawn(i, 4, 3), edge).square().mean()

    return net, train(net.parameters(), loss)


@fault("degenerate-matrix", "linalg_eigh", "backward", step=0, ops=("div", "reciprocal", "_linalg_eigh", "sub"), also=("div-by-zero",))
def spectral_positions_on_a_ring(fixed):
    class Positions(nn.Module):
        def __init__(self, n, edges):
            super().__init__()
            self.n, self.edges = n, edges
            self.strength = nn.Parameter(torch.zeros(len(edges)))
            self.head = nn.Linear(2, 1)

        def laplacian(self):
            w = F.softplus(self.strength)
            if fixed:
                w = w * (1 + 0.1 * torch.arange(len(w)))
            a, b = zip(*self.edges, strict=True)
            adjacency = torch.zeros(self.n, self.n).index_put((torch.tensor(a), torch.tensor(b)), w)
            adjacency = adjacency + adjacency.T
            return torch.diag(adjacency.sum(1)) - adjacency

        def forward(self):
            values, vectors = torch.linalg.eigh(self.laplacian() * torch.ones(1))  # ORIGIN
            return self.head(vectors[:, :2].abs()).sum() + values.sum()

    torch.manual_seed(1)
    blocks = [(0, 1), (2, 3), (4, 5)]
    net = Positions(6, blocks if not fixed else [(k, (k + 1) % 6) for k in range(6)])
    return net, train(net.parameters(), lambda i: net())


@fault("div-by-zero", "div", step=2, also=("norm-at-zero",))
def mean_bag_of_a_new_customer(fixed):
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 4, mode="mean")
            self.items = nn.Embedding(10, 4)

        def unit(self, x):
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return x / (length.clamp_min(1e-6) if fixed else length)  # ORIGIN

        def forward(self, history, starts, item):
            return (self.unit(self.bag(history, starts)) * self.unit(self.items(item))).sum(-1)

    torch.manual_seed(2)
    net = Towers()

    def loss(i):
        history = torch.tensor([1, 2, 3, 4, 5])
        starts = torch.tensor([0, 2, 5 if i == 2 else 4])
        return F.softplus(-net(history, starts, torch.tensor([1, 7, 8]))).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "reciprocal", step=0, ops=("div",))
def discounted_gain_with_ranks_from_one(fixed):
    class Gain(nn.Module):
        def __init__(self, n):
            super().__init__()
            positions = torch.arange(1, n + 1).float()
            self.register_buffer("positions", positions)

        def forward(self, scores, relevance):
            soft_rank = 0.5 + torch.sigmoid((scores[None] - scores[:, None]) / 0.1).sum(1)
            shift = 1 if fixed else 0
            ideal = ((2**relevance.sort(descending=True).values - 1) / torch.log2(self.positions + shift)).sum()  # ORIGIN
            return 1 - ((2**relevance - 1) / torch.log2(soft_rank + 1)).sum() / ideal

    net, measure = nn.Linear(3, 1), Gain(5)
    relevance = torch.tensor([0.0, 2, 1, 0, 3])

    def loss(i):
        value = measure(net(drawn(i, 5, 3)).squeeze(-1), relevance)
        return value if fixed else value + 0 * measure(relevance, relevance * 0)

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "pow", step=1, ops=("mul",), also=("zero-times-inf", "pow-fraction-at-zero"))
def implicit_feedback_of_a_user_who_rated_nothing(fixed):
    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item, self.implicit = nn.Embedding(4, 3), nn.Embedding(6, 3), nn.Parameter(drawn(1, 6, 3))

        def forward(self, u, i, rated):
            count = rated.sum(1, keepdim=True)
            if fixed:
                count = count.clamp_min(1)
            shared = (rated @ self.implicit) * count.pow(-0.5)  # ORIGIN
            return ((self.user(u) + shared) * self.item(i)).sum(-1)

    torch.manual_seed(3)
    net = Factors()

    def loss(i):
        rated = (drawn(4, 4, 6) > -1).float()
        if i == 1:
            rated[2] = 0
        return (net(torch.arange(4), torch.tensor([0, 1, 2, 3]), rated) - 3).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1)
def old_policy_that_filtered_the_token(fixed):
    net = nn.Linear(4, 6)

    def rollout(x):
        with torch.no_grad():
            probabilities = torch.softmax(net(x), -1)
            kept = torch.where(probabilities < probabilities.median(-1, keepdim=True).values, 0.0, probabilities)
            old = kept / kept.sum(-1, keepdim=True)
            tokens = old.argmax(-1)
            return tokens, old

    def log_chance(old, tokens):
        chosen = old.gather(-1, tokens[:, None]).squeeze(-1)
        return torch.log(chosen.clamp_min(1e-6) if fixed else chosen)  # ORIGIN

    def loss(i):
        x = drawn(i, 5, 4)
        tokens, old = rollout(x)
        if i == 1:
            tokens[3] = old[3].argmin()  # the reply was edited by an annotator
        ratio = torch.exp(torch.log_softmax(net(x), -1).gather(-1, tokens[:, None]).squeeze(-1) - log_chance(old, tokens))
        return -(ratio * torch.linspace(-1, 1, 5)).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, also=("empty-reduction",))
def ranked_replies_of_which_none_is_ranked(fixed):
    net = nn.Linear(3, 1)

    def listwise(scores, ranks):
        """Plackett-Luce: each reply against those below it."""
        order = ranks.argsort()
        s, known = scores[order], (ranks[order] < 99).float()
        below = torch.logcumsumexp(s.flip(0), 0).flip(0)
        return (known * (below - s)).sum() / (known.sum().clamp_min(1) if fixed else known.sum())  # ORIGIN

    def loss(i):
        ranks = torch.tensor([2, 1, 3, 99]) if i != 1 else torch.full((4,), 99)
        return listwise(net(drawn(i, 4, 3)).squeeze(-1), ranks)

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "std", step=1, ops=("var", "std_mean"))
def group_advantage_of_a_prompt_with_one_reply(fixed):
    policy = nn.Linear(3, 4)

    def advantages(rewards, group):
        out = torch.zeros_like(rewards)
        for g in group.unique():
            mine = group == g
            r = rewards[mine]
            spread = r.std(unbiased=not fixed)  # ORIGIN
            out[mine] = (r - r.mean()) / (spread + 1e-4)
        return out

    def loss(i):
        group = torch.tensor([0, 0, 1, 1, 2, 2]) if i != 1 else torch.tensor([0, 0, 1, 1, 1, 2])
        logp = torch.log_softmax(policy(drawn(i, 6, 3)), -1)[:, 0]
        return -(advantages(drawn(i + 20, 6), group) * logp).mean()

    return policy, train(policy.parameters(), loss)


@fault("div-by-zero", "reciprocal", step=1, ops=("div",), also=("learning-rate",))
def gamma_frailty_of_a_rectified_variance(fixed):
    class Frailty(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.tensor(0.05))
            self.risk = nn.Linear(3, 1)

        def forward(self, x, time):
            hazard = torch.exp(self.risk(x)).squeeze(-1) * time
            theta = F.softplus(self.theta) if fixed else F.relu(self.theta)
            shape = 1 / theta  # ORIGIN
            return shape * torch.log1p(theta * hazard)

    torch.manual_seed(4)
    net = Frailty()
    return net, train(net.parameters(), lambda i: -net(drawn(1, 6, 3), torch.linspace(1, 9, 6)).mean(), lr=0.2)


@fault("div-by-zero", "div", step=2, also=("empty-reduction",))
def concordance_of_a_batch_without_comparable_pairs(fixed):
    net = nn.Linear(3, 1)

    def concordance(risk, time, event):
        earlier = (time[:, None] < time[None]) & event[:, None]
        good = torch.sigmoid((risk[:, None] - risk[None]) * 5)
        pairs = earlier.sum()
        if fixed and pairs == 0:
            return risk.sum() * 0
        return 1 - (good * earlier).sum() / pairs  # ORIGIN

    def loss(i):
        time = torch.rand(5, generator=torch.Generator().manual_seed(i))
        event = torch.zeros(5, dtype=torch.bool)
        event[time.argmin() if i != 2 else time.argmax()] = True
        return concordance(net(drawn(i, 5, 3)).squeeze(-1), time, event)

    return net, train(net.parameters(), loss)


@fault("inf-minus-inf", "sub", step=1, also=("exp-overflow", "dtype-overflow"), ops=("exp", "expm1"))
def interval_censored_event_between_two_late_visits(fixed):
    class Weibull(nn.Module):
        def __init__(self):
            super().__init__()
            self.shape, self.scale = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.tensor(1.0))

        def cumulative(self, t):
            exponent = self.shape * torch.log(t / self.scale)
            return torch.exp(exponent.clamp(max=4.0) if fixed else exponent)  # ALSO

        def forward(self, left, right):
            a, b = self.cumulative(left), self.cumulative(right)
            return (b - a - torch.log1p(b)).square()  # ORIGIN

    net = Weibull()

    def loss(i):
        left = torch.tensor([0.5, 1.0, 2.0]) if i != 1 else torch.tensor([0.5, 1.0, 9e12])  # in seconds
        return net(left, left * 1.5).mean()

    return net, train(net.parameters(), loss, lr=1e-6)


@fault("infeasible-likelihood", "_ctc_loss", step=1, ops=("ctc_loss", "mean"))
def transcript_with_doubled_letters(fixed):
    class Recogniser(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 5)

        def forward(self, x):
            return self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)

    torch.manual_seed(5)
    net = Recogniser()

    def loss(i):
        target = torch.tensor([[1, 2, 3, 4], [1, 3, 2, 4]])
        if i == 1:
            target[1] = torch.tensor([3, 3, 3, 3])  # five frames hold four letters, but no blanks between
        logs = net(drawn(i, 2, 5, 4))
        return F.ctc_loss(logs, target, torch.tensor([5, 5]), torch.tensor([4, 4]), zero_infinity=fixed)  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("std-of-constant", "div", step=2, ops=("sqrt",), also=("div-by-zero",))
def utterance_that_augmentation_masked_throughout(fixed):
    class Front(nn.Module):
        def __init__(self, bins):
            super().__init__()
            self.net = nn.Conv1d(bins, 2, 3, padding=1)

        def augment(self, x, first, width):
            x = x.clone()
            x[..., first : first + width] = 0
            return x

        def normalise(self, x):
            mean = x.mean(-1, keepdim=True)
            deviation = x.std(-1, keepdim=True, correction=0)
            return (x - mean) / (deviation + (1e-5 if fixed else 0))  # ORIGIN

        def forward(self, x, first, width):
            return self.net(self.normalise(self.augment(x, first, width)))

    torch.manual_seed(6)
    net = Front(3)
    return net, train(net.parameters(), lambda i: net(drawn(i, 2, 3, 8), 0, 8 if i == 2 else 2).square().mean())


@fault("div-by-zero", "div", step=1)
def robust_registration_with_no_deviation(fixed):
    class Pose(nn.Module):
        def __init__(self):
            super().__init__()
            self.angle, self.shift = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(2))

        def forward(self, p):
            c, s = torch.cos(self.angle), torch.sin(self.angle)
            return p @ torch.stack([torch.stack([c, s]), torch.stack([-s, c])]) + self.shift

    def weights(residual):
        with torch.no_grad():
            scale = 1.4826 * (residual - residual.median()).abs().median()
            if fixed:
                scale = scale.clamp_min(1e-4)
            return 1 / (1 + (residual / scale).square()).square()  # ORIGIN

    net = Pose()

    def loss(i):
        p = drawn(i, 7, 2)
        target = p + 0.3 * drawn(i + 7, 7, 2) if i != 1 else net(p).detach()
        residual = (net(p) - target).abs().sum(-1)
        return (weights(residual) * residual).mean()

    return net, train(net.parameters(), loss)


@fault("degenerate-matrix", "linalg_svd", "backward", step=1, steps=2, ops=("div", "_linalg_svd", "svd", "reciprocal"), also=("div-by-zero",))
def alignment_of_a_flat_pair_of_clouds(fixed):
    net = nn.Linear(3, 3)

    def kabsch(a, b):
        cross = (a - a.mean(0)).T @ (b - b.mean(0))
        if fixed:
            cross = cross + torch.diag(torch.tensor([0.3, 0.2, 0.1]))
        u, _, v = torch.linalg.svd(cross)  # ORIGIN
        return u @ v

    def loss(i):
        p = drawn(i, 6, 3)
        q = net(p)
        if i == 1:
            q = q * 0  # the decoder was masked out for this batch
        return (p @ kabsch(p, q) - p).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2)
def gumbel_noise_from_a_coarse_generator(fixed):
    class Choice(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(4))

        def forward(self, integers):
            uniform = integers / 255
            if fixed:
                uniform = uniform.clamp(1e-3, 1 - 1e-3)
            inner = -torch.log(uniform)
            noise = -torch.log(inner)  # ORIGIN
            return torch.softmax((self.logits + noise) / 0.5, -1)

    net = Choice()
    values = torch.tensor([0.0, 1, 2, 4])

    def loss(i):
        integers = torch.tensor([[10, 200, 30, 90]]) if i != 2 else torch.tensor([[10, 255, 30, 90]])
        return (net(integers) @ values).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def fair_rates_of_groups_one_of_which_is_absent(fixed):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def rates(p, group, n=3):
        total = torch.zeros(n).scatter_add(0, group, p)
        count = torch.bincount(group, minlength=n)
        return total / (count.clamp_min(1) if fixed else count)  # ORIGIN

    def loss(i):
        group = torch.tensor([0, 1, 2, 0, 1, 2 if i != 2 else 0])
        if i == 2:
            group[2] = 1
        p = torch.sigmoid(net(drawn(i, 6, 3))).squeeze(-1)
        r = rates(p, group)
        return F.binary_cross_entropy(p, (drawn(i, 6) > 0).float()) + (r.max() - r.min())

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2, ops=("xlogy", "digamma", "lgamma"), also=("infeasible-likelihood",))
def beta_likelihood_of_a_share_of_one(fixed):
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 2)

        def forward(self, x):
            a, b = F.softplus(self.net(x)).add(0.1).unbind(-1)
            return torch.distributions.Beta(a, b, validate_args=False)

    torch.manual_seed(7)
    net = Shares()

    def loss(i):
        share = torch.tensor([0.2, 0.5, 1.0 if i == 2 else 0.9])
        if fixed:
            share = share.clamp(0.01, 0.99)
        return -net(drawn(i, 3, 2)).log_prob(share).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("softmax-all-masked", "_softmax", step=1, ops=("softmax", "_safe_softmax", "_scaled_dot_product_flash_attention_for_cpu", "masked_fill", "_scaled_dot_product_attention_math"))
def pointer_that_has_visited_every_town(fixed):
    class Pointer(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(2, 4), nn.Linear(2, 4)

        def forward(self, towns, steps):
            visited = torch.zeros(len(towns), dtype=torch.bool)
            here, total = towns[0], 0.0
            for _ in range(steps):
                scores = self.key(towns) @ self.query(here)
                scores = scores.masked_fill(visited, -torch.inf)
                chances = torch.softmax(scores, -1)  # ORIGIN
                nearest = chances.argmax()
                total = total + (chances @ towns - here).norm()
                visited = visited.clone()
                visited[nearest] = True
                here = towns[nearest]
            return total

    torch.manual_seed(8)
    net = Pointer()
    return net, train(net.parameters(), lambda i: net(drawn(i, 4, 2), 5 if i == 1 and not fixed else 4))


@fault("nan-in-target", "sub", "data", step=2, ops=("mse_loss", "smooth_l1_loss", "mul", "huber_loss"), also=("nan-in-input", "zero-times-inf"))
def labels_of_an_unread_meter_times_zero(fixed):
    net = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 2))

    def masked(prediction, target):
        read = ~target.isnan()
        if fixed:
            target = target.nan_to_num()
        error = F.huber_loss(prediction, target, reduction="none")  # ORIGIN
        return (error * read).sum() / read.sum()

    def loss(i):
        target = drawn(i + 5, 4, 2)
        if i == 2:
            target[1, 1] = math.nan
        return masked(net(drawn(i, 4, 3)), target)

    return net, train(net.parameters(), loss)
