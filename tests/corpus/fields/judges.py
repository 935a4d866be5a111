"""Rewards, preferences and importance ratios."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def actor(seed, vocabulary=6):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary))


def score_of(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)


@fault("zero-times-inf", "mul", step=1, ops=("exp", "sub"), also=("exp-overflow", "inf-minus-inf", "where-grad-trap"))
def ratio_to_a_truncated_behaviour(fixed):
    """The padding token had probability 0 when it was sampled; the mask comes after the ratio."""
    net = actor(0)

    def surrogate(new, old, mask, advantage):
        log_ratio = new - old  # ALSO
        if fixed:
            log_ratio = log_ratio.masked_fill(~mask, 0.0)
        ratio = torch.exp(log_ratio)  # ALSO
        return -(ratio * advantage * mask).sum() / mask.sum()  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 5, (3, 4), generator=gen)
        mask = torch.ones(3, 4, dtype=torch.bool)
        old = score_of(net(ids).detach(), ids)
        if i == 1:
            mask[0, 2:] = False
            old = old.masked_fill(~mask, -torch.inf)
        return surrogate(score_of(net(ids), ids), old, mask, torch.ones(3, 1))

    return net, train(net.parameters(), loss, 1e-2)


@fault("log-of-zero", "log", step=2, ops=("rsub", "sub"))
def loss_of_an_undesired_answer(fixed):
    net = actor(1)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def undesired(margin, beta=0.5):
        if fixed:
            return -F.logsigmoid(-beta * margin)
        return -torch.log(1 - torch.sigmoid(beta * margin))  # ORIGIN

    def step(i):
        gen = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 6, (4, 5), generator=gen)
        policy = score_of(net(ids), ids).sum(-1)
        reference = torch.full((4,), -9.0 if i != 2 else -120.0)
        loss = undesired(policy - reference).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("exp-overflow", "exp", "backward", step=1, also=("where-grad-trap", "zero-times-inf"), ops=("mul", "clamp"))
def clipped_ratio_of_an_abandoned_action(fixed):
    net = actor(2)

    class Clipped(nn.Module):
        def forward(self, new, old, advantage):
            gap = new - old
            ratio = (gap.clamp(max=20.0) if fixed else gap).exp()  # ORIGIN
            return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()

    objective = Clipped()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 6, (8,), generator=gen)
        new = score_of(net(ids), ids)
        old = new.detach() - (torch.arange(8) == 5) * (100.0 if i == 1 else 0.1)
        return objective(new, old, torch.linspace(-1, 1, 8))

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div_", step=2, ops=("div", "corrcoef"), also=("std-of-constant",))
def agreement_with_a_judge_who_likes_all(fixed):
    torch.manual_seed(3)
    reward = nn.Linear(4, 1)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(6, 4, generator=gen)
        marks = torch.randn(6, generator=gen) if i != 2 else torch.full((6,), 5.0)
        if fixed:
            marks = marks + 1e-3 * torch.arange(6)
        pair = torch.stack([reward(x).squeeze(-1), marks])
        return 1 - torch.corrcoef(pair)[0, 1]  # ORIGIN

    return reward, train(reward.parameters(), loss)


@fault("zero-times-inf", "mul", step=2, also=("inf-minus-inf",))
def mixture_with_a_reference_of_no_weight(fixed):
    """Geometric mixtures of policy and reference; at beta = 0 a forbidden token gives 0 * -inf."""
    net = actor(4)
    betas = [0.2, 0.1, 0.0, 0.0, 0.0]

    def mixture(logp, ref, beta):
        scaled = beta * (ref.masked_fill(ref == -torch.inf, -1e4) if fixed else ref)  # ORIGIN
        return torch.log_softmax((1 - beta) * logp + scaled, -1)

    def loss(i):
        ids = torch.tensor([0, 2, 4])
        ref = torch.zeros(3, 6).masked_fill(torch.arange(6) == 5, -torch.inf).log_softmax(-1)
        out = mixture(net(ids).log_softmax(-1), ref, torch.tensor(betas[i]))
        return F.nll_loss(out, torch.tensor([1, 2, 3]))

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "rsqrt", step=1, ops=("div", "pow", "reciprocal"))
def bonus_of_an_unseen_state(fixed):
    torch.manual_seed(5)
    value = nn.Linear(4, 1)
    counts = torch.ones(4)
    opt = torch.optim.RMSprop(value.parameters(), lr=1e-3)

    def step(i):
        state = torch.tensor([0, 1, 2 if i != 1 else 3])
        if i == 0:
            counts[3] = 0
        bonus = torch.rsqrt(counts[state] + (1.0 if fixed else 0.0))  # ORIGIN
        counts.index_add_(0, state, torch.ones(3))
        target = 1.0 + 0.5 * bonus
        loss = F.mse_loss(value(F.one_hot(state, 4).float()).squeeze(-1), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return value, step
