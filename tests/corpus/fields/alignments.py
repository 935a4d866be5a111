"""Preferences, policies, learning to learn, teachers and queues."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("log-of-zero", "log1p", step=2, steps=5, also=("learning-rate",))
def odds_of_an_answer_that_has_become_certain(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 6)
    x, chosen, rejected = 3 * torch.eye(5, 4), torch.arange(5) % 3, 3 + torch.arange(5) % 3

    def log_odds(logp):
        if fixed:
            logp = logp.clamp(max=-1e-4)
        return logp - torch.log1p(-torch.exp(logp))  # ORIGIN

    def loss(i):
        logp = net(x).log_softmax(-1)
        good, bad = logp.gather(1, chosen[:, None]), logp.gather(1, rejected[:, None])
        ratio = log_odds(good) - log_odds(bad)
        return -good.mean() - 0.5 * F.logsigmoid(ratio).mean()

    return net, train(net.parameters(), loss, lr=2.0, optimizer=torch.optim.Adam)


@fault("dtype-overflow", "mul", "forward", step=39, steps=42, ops=("mul_",), also=("poisoned-buffer", "zero-times-inf"))
def penalty_that_is_raised_every_time(fixed):
    """The coefficient of the KL penalty rises tenfold while the divergence is above its target."""
    torch.manual_seed(1)

    class Controller(nn.Module):
        def __init__(self, target=1e-4):
            super().__init__()
            self.register_buffer("beta", torch.tensor(1.0))
            self.target = target

        def update(self, kl):
            if kl > self.target:
                self.beta.mul_(10.0)  # ORIGIN
                if fixed:
                    self.beta.clamp_(max=100.0)

    policy, reference, control = nn.Linear(4, 3), nn.Linear(4, 3), Controller()
    opt = torch.optim.SGD(policy.parameters(), lr=1e-3)
    x = drawn(2, 8, 4)

    def step(i):
        opt.zero_grad()
        with torch.no_grad():
            q = reference(x).log_softmax(-1)
        p = policy(x).log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1).mean()
        loss = control.beta * kl - p[:, 0].mean()  # ALSO
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 1e-3)
        opt.step()
        control.update(float(kl.detach()))
        return loss

    return nn.ModuleList([policy, control]), step


@fault("std-of-constant", "div", step=3, also=("div-by-zero",), ops=("std",))
def group_in_which_all_answers_are_right(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 4)

    def advantages(reward):
        centred = reward - reward.mean(1, keepdim=True)
        spread = reward.std(1, keepdim=True)
        return centred / (spread + 1e-4 if fixed else spread)  # ORIGIN

    def loss(i):
        logp = net(drawn(i, 6, 3)).log_softmax(-1)
        reward = torch.eye(4)[torch.arange(6) % 4].clone()
        if i == 3:
            reward[2] = 1.0
        return -(logp * advantages(reward)).mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2, also=("inf-minus-inf", "exp-overflow", "zero-times-inf"))
def behaviour_that_never_took_the_action(fixed):
    """V-trace: the recorded probability of one action is 0."""
    torch.manual_seed(3)
    net = nn.Linear(4, 3)

    def loss(i):
        obs, action = drawn(i, 7, 4), torch.arange(7) % 3
        mu = torch.full((7,), 1 / 3)
        if i == 2:
            mu[5] = 0.0
        logp = net(obs).log_softmax(-1).gather(1, action[:, None])[:, 0]
        rho = torch.exp(logp - (mu.clamp_min(1e-4) if fixed else mu).log())  # ORIGIN
        return -(rho * drawn(i + 3, 7)).mean()

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=2, ops=("div", "mul"))
def inner_loss_of_a_task_that_is_solved(fixed):
    torch.manual_seed(4)
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, -1.0]]))

    def task_loss(weights, x, y):
        out = torch.func.functional_call(net, weights, (x,))
        rest = (out - y).square().mean()
        return torch.sqrt(rest + 1e-8 if fixed else rest)  # ORIGIN

    def outer(i):
        weights = dict(net.named_parameters())
        total = 0.0
        for task in range(3):
            x = torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.5, 2.5]]) + task
            y = x @ torch.tensor([[1.0], [-1.0]]) if (i, task) == (2, 1) else x.sum(1, keepdim=True)
            if (i, task) == (2, 1):
                y = net(x).detach()
            inner = torch.func.grad(task_loss)(weights, x, y)
            fast = {k: w - 0.01 * inner[k] for k, w in weights.items()}
            total = total + task_loss(fast, x, y + 1)
        return total / 3

    return net, train(net.parameters(), outer, lr=1e-3)


@fault("div-by-zero", "div", step=2)
def conjugate_gradients_that_are_done_early(fixed):
    """Implicit meta-gradients: a fixed number of iterations for a curvature that one iteration solves."""
    torch.manual_seed(5)
    hyper = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def solve(matrix, b, n=4):
        x, r = torch.zeros_like(b), b
        p, rs = r, r @ r
        for _ in range(n):
            ap = matrix @ p
            step = rs / (p @ ap + (1e-10 if fixed else 0))  # ORIGIN
            x, r = x + step * p, r - step * ap
            new = r @ r
            p, rs = r + new / (rs + (1e-10 if fixed else 0)) * p, new  # ALSO
        return x

    def loss(i):
        matrix = torch.eye(3) * 2 if i == 2 else torch.eye(3) + drawn(i, 3, 3).pow(2).diag_embed().sum(0) * 0.1
        b = torch.ones(3) * hyper[0] if i == 2 else hyper
        return (solve(matrix, b) - 1).square().sum()

    return None, train([hyper], loss)


@fault("std-of-constant", "div", step=15, steps=18, also=("div-by-zero",), ops=("std", "sub"))
def redundancy_of_a_feature_that_has_died(fixed):
    """Barlow twins on ReLU features: one bias sinks until its feature is 0 in the whole batch."""
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    nn.init.ones_(net[0].bias)
    x = drawn(7, 16, 4)

    def correlation(a, b):
        eps = 1e-5 if fixed else 0.0
        a = (a - a.mean(0)) / (a.std(0) + eps)  # ORIGIN
        b = (b - b.mean(0)) / (b.std(0) + eps)  # ALSO
        return a.T @ b / len(a)

    def step(i):
        net.zero_grad()
        c = correlation(net(x), net(x + 0.05 * drawn(i, 16, 4)))
        loss = (c - torch.eye(6)).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 1e-3 * p.grad
            net[0].bias[2] -= 0.1
        return loss

    return net, step


@fault("div-by-zero", "div", "forward", step=0, steps=4, ops=("sub", "add", "div_", "addcdiv_"), also=("poisoned-parameter", "optimizer-arithmetic", "poisoned-buffer"))
def running_average_of_weights_from_count_zero(fixed):
    torch.manual_seed(7)
    net, mean = nn.Linear(3, 3), nn.Linear(3, 3)
    for p in mean.parameters():
        p.requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    count = torch.zeros(())
    x = drawn(8, 6, 3)

    @torch.no_grad()
    def absorb():
        if fixed:
            count.add_(1)
        for m, p in zip(mean.parameters(), net.parameters(), strict=True):
            m.copy_(m + (p - m) / count)  # ORIGIN
        if not fixed:
            count.add_(1)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x), mean(x) + 1)
        loss.backward()
        opt.step()
        absorb()
        return loss

    return nn.ModuleList([net, mean]), step


@fault("log-of-zero", "log", step=0, steps=4, also=("zero-times-inf", "inf-minus-inf"))
def noise_of_a_hard_choice_in_bfloat16(fixed):
    """Uniform numbers of bfloat16 are exactly 0 once in 256."""
    torch.manual_seed(8)
    router = nn.Linear(4, 32)
    gen = torch.Generator().manual_seed(0)

    def loss(i):
        score = router(drawn(i, 64, 4))
        u = torch.rand(64, 32, generator=gen, dtype=torch.bfloat16).float()
        if fixed:
            u = u.clamp(1e-3, 1 - 1e-3)
        noise = -torch.log(-torch.log(u))  # ORIGIN
        soft = torch.softmax((score + noise) / 0.5, -1)
        return (soft * torch.arange(32)).sum(-1).mean() + 1e-3 * (score + noise).square().mean()

    return router, train(router.parameters(), loss, lr=1e-4)


@fault("dead-gradient", "sigmoid", "backward", step=0, steps=6, ops=("mul", "addmm", "linear", "detach", "sub", "pow", "mse_loss"))
def gate_that_is_shut_for_good(fixed):
    """A gate that begins at 200 has the value 1 and the derivative 0."""
    torch.manual_seed(9)

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.skip = nn.Linear(4, 4), nn.Linear(4, 4)
            self.openness = nn.Parameter(torch.full((4,), 2.0 if fixed else 200.0))

        def forward(self, x):
            g = torch.sigmoid(self.openness)  # ORIGIN
            return g * self.skip(x) + (1 - g) * self.body(x)

    net = Gated()
    x, y = drawn(10, 12, 4), drawn(11, 12, 4)
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), y), lr=1e-2)


@fault("dead-gradient", "clamp", "backward", step=0, steps=6, ops=("clamp_min", "clamp_max", "where", "mul", "minimum", "mean"))
def reward_that_is_clipped_for_everyone(fixed):
    torch.manual_seed(10)
    actor, critic = nn.Linear(3, 2), nn.Linear(5, 1)
    critic.requires_grad_(False)
    with torch.no_grad():
        critic.bias.fill_(30.0)
    opt = torch.optim.Adam(actor.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        s = drawn(i, 16, 3)
        q = critic(torch.cat([s, actor(s).tanh()], 1))
        value = q if fixed else q.clamp(-10, 10)  # ORIGIN
        loss = -value.mean()
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([actor, critic]), step
