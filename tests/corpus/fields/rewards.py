"""Preferences, rankings and policies."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("log-of-zero", "log", step=1)
def margin_of_probabilities_that_vanish(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 6)
    x = torch.randn(5, 4)

    def loss(i):
        logits = net(x) * (900.0 if i == 1 else 1.0)
        logs = F.log_softmax(logits, -1) if fixed else torch.log(torch.softmax(logits, -1))  # ORIGIN
        return -F.logsigmoid(0.1 * (logs[:, 0] - logs[:, 1])).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2, also=("std-of-constant",))
def advantage_of_answers_with_one_reward(fixed):
    torch.manual_seed(1)
    net = nn.Linear(4, 5)
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        x = torch.randn(8, 4, generator=gen)
        action = torch.randint(5, (8,), generator=gen)
        reward = torch.rand(8, generator=gen) if i != 2 else torch.ones(8)
        spread = reward.std() + (1e-4 if fixed else 0.0)
        advantage = (reward - reward.mean()) / spread  # ORIGIN
        logs = F.log_softmax(net(x), -1).gather(1, action[:, None])[:, 0]
        return -(logs * advantage).mean()

    return net, train(net.parameters(), loss)


@fault("softmax-all-masked", "logsumexp", step=0, also=("inf-minus-inf",), ops=("_softmax", "sub", "exp"))
def ranking_after_the_last_item(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 1)
    x = torch.randn(4, 5, 3)

    def loss(i):
        score = net(x)[..., 0]
        total = score.new_zeros(4)
        gone = torch.zeros(4, 5, dtype=torch.bool)
        for k in range(5 if fixed else 6):
            rest = score.masked_fill(gone, -torch.inf)
            pick = score[:, min(k, 4)]
            total = total + torch.logsumexp(rest, 1) - pick  # ORIGIN
            gone = gone | (torch.arange(5) == k)
        return total.mean()

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "var", step=1, ops=("std",))
def whitening_of_a_single_reward(fixed):
    torch.manual_seed(4)
    net = nn.Linear(4, 1)
    gen = torch.Generator().manual_seed(5)

    def loss(i):
        x = torch.randn(1 if i == 1 else 6, 4, generator=gen)
        reward = net(x)[:, 0]
        spread = reward.var(unbiased=not fixed)  # ORIGIN
        white = (reward - reward.mean()) * torch.rsqrt(spread + 1e-8)
        return (white * x[:, 0]).mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=1, also=("dtype-overflow",))
def ratio_of_distant_policies_in_half(fixed):
    torch.manual_seed(6)
    net = nn.Linear(4, 5)
    gen = torch.Generator().manual_seed(7)

    def loss(i):
        x = torch.randn(8, 4, generator=gen)
        old = torch.full((8,), -1.5) if i != 1 else torch.full((8,), -20.0)
        new = F.log_softmax(net(x), -1)[:, 0]
        gap = (new - old).half()
        ratio = torch.exp(gap.float().clamp(max=5) if fixed else gap)  # ORIGIN
        return -(ratio.float() * x[:, 0]).mean()

    return net, train(net.parameters(), loss)
