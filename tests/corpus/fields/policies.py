"""Agents, routed experts, flows, codebooks and graphs of users' own classes."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("zero-times-inf", "mul", step=2, ops=("log",), also=("log-of-zero",))
def soft_value_of_a_certain_policy(fixed):
    """The expectation of log pi under pi: an action of probability 0 is 0 times -inf."""
    torch.manual_seed(0)

    class SoftAgent(nn.Module):
        def __init__(self):
            super().__init__()
            self.pi, self.q = nn.Linear(4, 3), nn.Linear(4, 3)

        def value(self, obs):
            p = F.softmax(self.pi(obs), -1)
            logp = F.log_softmax(self.pi(obs), -1) if fixed else torch.log(p)  # ALSO
            return (p * (self.q(obs) - 0.2 * logp)).sum(-1)  # ORIGIN

    agent, gen = SoftAgent(), torch.Generator().manual_seed(1)

    def loss(i):
        obs = torch.randn(6, 4, generator=gen)
        if i == 2:
            obs = obs * 300
        return (agent.value(obs) - 1).tanh().square().mean()

    return agent, train(agent.parameters(), loss)


@fault("exp-overflow", "exp", step=1, ops=("cumprod", "mul", "cumsum"), also=("dtype-overflow",))
def importance_weights_along_an_episode(fixed):
    torch.manual_seed(2)
    pi = nn.Linear(4, 2)

    def ratios(logp, behaviour):
        log_ratio = (logp - behaviour).cumsum(0)
        if fixed:
            log_ratio = log_ratio.clamp(max=2.0)
        return torch.exp(log_ratio)  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        obs, act = torch.randn(40, 4, generator=gen), torch.randint(0, 2, (40,), generator=gen)
        logp = torch.log_softmax(pi(obs), -1).gather(1, act[:, None]).squeeze(1)
        behaviour = torch.full((40,), -9.0 if i == 1 else -0.7)
        returns = torch.randn(40, generator=gen)
        return -(ratios(logp, behaviour) * returns).mean()

    return pi, train(pi.parameters(), loss)


@fault("infeasible-likelihood", "log", step=1, ops=("xlogy", "sub", "add", "log1p", "mul"), also=("log-of-zero", "zero-times-inf", "inf-minus-inf"))
def stored_action_on_the_bound(fixed):
    """A Beta policy scores an action of a replay buffer that was clipped to 1."""
    torch.manual_seed(3)
    net = nn.Linear(3, 4)
    buffer = []

    class BetaPolicy:
        def dist(self, obs):
            a, b = (F.softplus(net(obs)) + 1).chunk(2, -1)
            return torch.distributions.Beta(a, b, validate_args=False)

        def log_prob(self, obs, action):
            if fixed:
                action = action.clamp(1e-4, 1 - 1e-4)
            return self.dist(obs).log_prob(action).sum(-1)  # ORIGIN

    policy = BetaPolicy()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        obs, action = torch.randn(5, 3, generator=gen), torch.rand(5, 2, generator=gen) * 0.9 + 0.05
        if i == 1:
            action[2, 0] = (action[2, 0] + 3).clamp(max=1)
        buffer.append((obs, action))
        return -policy.log_prob(*buffer[-1]).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, also=("std-of-constant",))
def balance_of_experts_that_are_all_idle(fixed):
    """A batch of padding routes nothing: the coefficient of variation is var / 0."""
    torch.manual_seed(4)

    class Router(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.gate, self.experts = nn.Linear(d, n), nn.ModuleList(nn.Linear(d, d) for _ in range(n))

        def cv_squared(self, load):
            return load.var() / (load.mean() ** 2 + (1e-10 if fixed else 0))  # ORIGIN

        def forward(self, x, keep):
            p = self.gate(x).softmax(-1) * keep[:, None]
            out = sum(p[:, [k]] * e(x) for k, e in enumerate(self.experts))
            return out, self.cv_squared(p.sum(0))

    net, gen = Router(4, 3), torch.Generator().manual_seed(5)

    def loss(i):
        x = torch.randn(6, 4, generator=gen)
        out, aux = net(x, torch.zeros(6) if i == 1 else torch.ones(6))
        return (out - 1).square().mean() + 0.01 * aux

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "pow", step=2, ops=("square", "mul", "logsumexp", "_to_copy"))
def squared_normaliser_of_a_router_in_half(fixed):
    torch.manual_seed(6)
    net = nn.Linear(8, 4)
    gen = torch.Generator().manual_seed(7)

    def z_loss(logits):
        z = torch.logsumexp(logits.float() if fixed else logits, -1)
        return (z**2).mean()  # ORIGIN

    def loss(i):
        x = torch.randn(6, 8, generator=gen) * (500 if i == 2 else 1)
        logits = net(x).half()
        return 1e-3 * z_loss(logits).float() + logits.float().softmax(-1)[:, 0].mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("log-of-negative", "log", step=3, ops=("log1p",), also=("learning-rate",))
def determinant_of_a_residual_flow_that_folds(fixed):
    """log(1 + f') with an f' below -1 after one large update."""
    torch.manual_seed(8)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.u = nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([0.5]))

        def forward(self, x):
            u = self.u if not fixed else F.softplus(self.u)
            w = self.w if not fixed else F.softplus(self.w)
            h = torch.tanh(w * x)
            return x + u * h, torch.log(1 + u * w * (1 - h**2))  # ORIGIN

    net, gen = Residual(), torch.Generator().manual_seed(9)

    def loss(i):
        x = torch.randn(32, 1, generator=gen) * 0.3
        z, logdet = net(x)
        return (0.5 * z**2 - logdet).mean() + (4.0 if i == 2 else 0.0) * net.u.sum()

    return net, train(net.parameters(), loss, lr=0.6)


@fault("zero-times-inf", "mul", step=0, ops=("log",), also=("log-of-zero",))
def entropy_of_unused_codes(fixed):
    torch.manual_seed(10)

    class Quantiser(nn.Module):
        def __init__(self, codes, dim):
            super().__init__()
            self.book = nn.Parameter(torch.randn(codes, dim))

        def usage(self, z):
            d = (z[:, None] - self.book[None]).square().sum(-1)
            soft = torch.softmax(-d * 50, -1)
            hard = F.one_hot(d.argmin(-1), len(self.book)).float()
            return (hard + soft - soft.detach()).mean(0)

        def bonus(self, z):
            p = self.usage(z)
            if fixed:
                return (p * torch.log(p + 1e-6)).sum()
            return (p * torch.log(p)).sum()  # ORIGIN

    net = nn.ModuleDict({"enc": nn.Linear(3, 2), "vq": Quantiser(16, 2)})
    x = torch.randn(4, 3)

    def loss(i):
        z = net["enc"](x)
        return z.square().mean() + 0.1 * net["vq"].bonus(z.detach())

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, also=("empty-reduction",))
def spread_of_a_graph_with_one_node(fixed):
    torch.manual_seed(11)

    class GraphNorm(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(d))

        @staticmethod
        def sum_by(x, batch, n):
            return x.new_zeros(n, x.shape[1]).scatter_add(0, batch[:, None].expand_as(x), x)

        def forward(self, x, batch):
            n = int(batch.max()) + 1
            count = torch.bincount(batch, minlength=n).float()[:, None]
            mean = self.sum_by(x, batch, n) / count
            centred = x - mean[batch]
            freedom = (count - 1).clamp(min=1) if fixed else count - 1
            var = self.sum_by(centred**2, batch, n) / freedom  # ORIGIN
            return self.scale * centred / (var[batch] + 1e-5).sqrt()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm = nn.Linear(3, 4), GraphNorm(4)

        def forward(self, x, batch):
            return self.norm(self.lin(x), batch)

    net = Net()

    def loss(i):
        x = torch.randn(7, 3, generator=torch.Generator().manual_seed(i))
        batch = torch.tensor([0, 0, 0, 1, 2, 2, 2]) if i == 1 else torch.tensor([0, 0, 0, 1, 1, 2, 2])
        return (net(x, batch) - 0.5).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=0, also=("norm-at-zero",))
def reflection_by_a_zero_vector(fixed):
    torch.manual_seed(12)

    class Householder(nn.Module):
        def __init__(self, d, k):
            super().__init__()
            self.v = nn.ParameterList(nn.Parameter(torch.randn(d)) for _ in range(k))
            if not fixed:
                nn.init.zeros_(self.v[-1])

        def reflect(self, x, v):
            return x - 2 * (x @ v)[:, None] * v / (v @ v)  # ORIGIN

        def forward(self, x):
            for v in self.v:
                x = self.reflect(x, v)
            return x

    net = Householder(4, 3)
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), y))


@fault("div-by-zero", "div", step=2, also=("poisoned-buffer", "std-of-constant"), ops=("sqrt", "sub"))
def returns_scaled_by_running_statistics(fixed):
    """The scale of returns is refreshed after an update; an episode of equal returns leaves 0 for the next."""
    torch.manual_seed(13)
    critic = nn.Linear(3, 1)

    class Scale:
        def __init__(self):
            self.std = torch.ones(())

        def update(self, returns):
            self.std = returns.std()

        def __call__(self, returns):
            return (returns - returns.mean()) / (self.std + 1e-8 if fixed else self.std)  # ORIGIN

    scale = Scale()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        obs = torch.randn(8, 3, generator=gen)
        returns = torch.zeros(8) if i == 1 else torch.randn(8, generator=gen)
        value = critic(obs).squeeze(1)
        out = F.mse_loss(value, scale(returns))
        scale.update(returns)
        return out

    return critic, train(critic.parameters(), loss)
