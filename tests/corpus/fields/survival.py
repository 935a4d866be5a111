"""Times until an event, some of them censored."""

import torch
from programs import fault, healthy, train
from torch import nn


def cohort(seed, n=24):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=gen), torch.rand(n, generator=gen) * 5 + 0.1, torch.rand(n, generator=gen) < 0.6


def risk(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))


@fault("div-by-zero", "div", step=3, also=("empty-reduction",))
def cox_batch_without_events(fixed):
    net = risk(0)

    def loss(i):
        x, t, e = cohort(i)
        if i == 3:
            e = torch.zeros_like(e)
        order = t.argsort(descending=True)
        eta, e = net(x[order]).squeeze(-1), e[order].float()
        partial = (eta - torch.logcumsumexp(eta, 0)) * e
        return -partial.sum() / (e.sum().clamp_min(1) if fixed else e.sum())  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2)
def hazard_that_saturates(fixed):
    net = risk(1)

    def loss(i):
        x, t, _e = cohort(i)
        logits = net(x) * torch.ones(1, 6) + (40.0 if i == 2 else 0.0)
        at = t.long()[:, None]
        survived = (torch.arange(6) < at).float()
        if fixed:
            alive = nn.functional.logsigmoid(-logits)
        else:
            alive = torch.log(1 - torch.sigmoid(logits))  # ORIGIN
        return -(survived * alive).sum(-1).mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1)
def event_on_the_day_of_admission(fixed):
    net = risk(2)

    def loss(i):
        x, t, e = cohort(i)
        if i >= 1:
            t[3] = 0.0
        scale = nn.functional.softplus(net(x).squeeze(-1)) + 0.5
        z = (torch.log(t + 0.5 * fixed) - 1.0) / scale  # ORIGIN
        return (nn.functional.softplus(z) * 2 - z * e + scale.log()).mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=2)
def gompertz_in_days(fixed):
    net = risk(3)
    shape = nn.Parameter(torch.tensor(0.1))

    def loss(i):
        x, t, e = cohort(i)
        t = t * 365 if i >= 2 and not fixed else t
        log_rate = net(x).squeeze(-1) - 3
        cumulative = log_rate.exp() * (torch.exp(shape * t) - 1) / shape  # ORIGIN
        return (cumulative - e * (log_rate + shape * t)).mean()

    return net, train([*net.parameters(), shape], loss, 1e-6)


@fault("div-by-zero", "div", step=0, ops=("reciprocal",))
def weight_by_a_censoring_curve_that_ends(fixed):
    net = risk(4)

    def loss(i):
        x, t, e = cohort(7)
        order = t.argsort()
        x, t, e = x[order], t[order], e[order].clone()
        e[-2:] = torch.tensor([True, False])
        at_risk = torch.arange(len(t), 0, -1.0)
        curve = torch.cumprod(1 - (~e).float() / at_risk, 0)
        if fixed:
            curve = curve.clamp_min(0.05)
        weight = 1 / curve  # ORIGIN
        return (weight * e * (net(x).squeeze(-1) - t).square() + 0.0 * weight).mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2, also=("zero-times-inf",))
def competing_risk_that_never_occurs(fixed):
    net = nn.Sequential(risk(5), nn.Linear(1, 3))

    def loss(i):
        x, t, _e = cohort(i)
        present = torch.tensor([1.0, 1.0, 0.0 if i >= 2 else 1.0])
        share = net(x).softmax(-1) * present
        share = share / share.sum(-1, keepdim=True)
        cause = torch.nn.functional.one_hot(t.long() % 2, 3).float()
        log = torch.log(share.clamp_min(1e-8) if fixed else share)  # ORIGIN
        return -(cause * log).sum(-1).mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1)
def tail_of_a_lognormal(fixed):
    net = risk(6)

    def loss(i):
        x, t, e = cohort(i)
        t = t.clone()
        t[0] = 5.0 if i < 1 else 1e9
        z = t.log() - net(x).squeeze(-1)
        if fixed:
            censored = torch.special.log_ndtr(-z)
        else:
            censored = torch.log(1 - torch.special.ndtr(z))  # ORIGIN
        return torch.where(e, 0.5 * z.square(), -censored).mean() if fixed else -censored.mean() + z.square().mean()

    return net, train(net.parameters(), loss)


@healthy("a batch in which the censored rows contribute exactly nothing to the event term")
def censored_rows(fixed=False):
    net = risk(7)

    def loss(i):
        x, t, e = cohort(i)
        rate = nn.functional.softplus(net(x).squeeze(-1)) + 1e-3
        return (rate * t - e * rate.log()).mean()

    return net, train(net.parameters(), loss)


@healthy("the running maximum of risk sets starts from -inf")
def risk_sets_by_hand(fixed=False):
    net = risk(8)

    def loss(i):
        x, t, e = cohort(i, 8)
        eta = net(x).squeeze(-1)
        mask = t[None, :] >= t[:, None]
        sets = eta[None, :].masked_fill(~mask, -torch.inf).logsumexp(-1)
        return ((sets - eta) * e).sum() / e.sum().clamp_min(1)

    return net, train(net.parameters(), loss)
