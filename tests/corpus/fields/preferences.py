"""Language models tuned by reward and preference."""

import torch
from programs import fault, healthy, train
from torch import nn


def policy(seed, vocabulary=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary))


def prompt(seed, n=6, length=5, vocabulary=7):
    return torch.randint(0, vocabulary, (n, length), generator=torch.Generator().manual_seed(seed))


def chosen(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)


@fault("inf-minus-inf", "sub", step=2, also=("infeasible-likelihood",))
def forbidden_token_in_both_models(fixed):
    net, frozen = policy(0), policy(1)
    ban = torch.zeros(7)
    ban[3] = -1e4 if fixed else -torch.inf

    def loss(i):
        ids = prompt(i)
        ids[ids == 3] = 2
        if i == 2:
            ids[1, 4] = 3
        new = chosen(net(ids) + ban, ids)  # ALSO
        with torch.no_grad():
            old = chosen(frozen(ids) + ban, ids)
        ratio = (new - old).sum(-1)  # ORIGIN
        return -nn.functional.logsigmoid(0.1 * (ratio[:3] - ratio[3:])).mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=2)
def third_estimator_of_divergence(fixed):
    net, frozen = policy(2), policy(3)

    def loss(i):
        ids = prompt(i)
        logits = net(ids)
        if i == 2:
            logits = logits - 200 * torch.nn.functional.one_hot(ids, 7)
        gap = frozen(ids).detach().log_softmax(-1).gather(-1, ids[..., None]) - logits.log_softmax(-1).gather(
            -1, ids[..., None]
        )
        kl = torch.exp(gap.clamp(max=20) if fixed else gap) - 1 - gap  # ORIGIN
        return kl.mean()

    return net, train(net.parameters(), loss, 1e-8)


@fault("div-by-zero", "div", step=1)
def leave_one_out_of_a_single_answer(fixed):
    net = policy(4)

    def loss(i):
        ids = prompt(i)
        k = 3 if i < 1 else 1
        reward = torch.rand(6 // k, k, generator=torch.Generator().manual_seed(i))
        baseline = (reward.sum(-1, keepdim=True) - reward) / max(k - 1, int(fixed))  # ORIGIN
        score = chosen(net(ids), ids).sum(-1).reshape(6 // k, k)
        return -((reward - baseline) * score).mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2)
def preference_by_log_of_sigmoid(fixed):
    torch.manual_seed(5)
    net = nn.Linear(8, 1)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        good, bad = torch.randn(6, 8, generator=gen), torch.randn(6, 8, generator=gen)
        if i == 2:
            bad = bad + 4000 * net.weight.detach()
        margin = (net(good) - net(bad)).squeeze(-1)
        if fixed:
            return -nn.functional.logsigmoid(margin).mean()
        return -torch.log(torch.sigmoid(margin)).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("zero-times-inf", "mul", step=0, also=("log-of-zero",))
def entropy_of_a_filtered_distribution(fixed):
    net = policy(6)

    def loss(i):
        logits = net(prompt(i))
        kept = logits >= logits.topk(3, -1).values[..., -1:]
        log = logits.masked_fill(~kept, -1e4 if fixed else -torch.inf).log_softmax(-1)
        entropy = -(log.exp() * log).sum(-1)  # ORIGIN
        return (logits.square().mean() - 0.01 * entropy).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2, also=("empty-reduction",))
def mean_over_an_empty_answer(fixed):
    net = policy(7)

    def loss(i):
        ids = prompt(i)
        answer = torch.ones(6, 5)
        answer[:, 0] = 0
        if i >= 2:
            answer[4] = 0
        log = chosen(net(ids), ids) * answer
        length = answer.sum(-1)
        return -(log.sum(-1) / (length.clamp_min(1) if fixed else length)).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("sqrt-of-negative", "sqrt", step=1, also=("sqrt-at-zero",))
def reward_scale_by_cancellation(fixed):
    net = policy(8)
    memory = {"sum": torch.zeros(()), "squares": torch.zeros(()), "n": 0}

    def loss(i):
        ids = prompt(i)
        reward = 30000.0 + 0.01 * torch.rand(6, generator=torch.Generator().manual_seed(i)) if i else torch.rand(6)
        if i == 1:
            memory.update({"sum": torch.zeros(()), "squares": torch.zeros(()), "n": 0})
        memory["sum"] = memory["sum"] + reward.sum()
        memory["squares"] = memory["squares"] + reward.square().sum()
        memory["n"] += 6
        mean = memory["sum"] / memory["n"]
        variance = memory["squares"] / memory["n"] - (mean + (0.01 if i else 0.0)).square()
        if fixed:
            variance = variance.clamp_min(0) + 1e-4
        scale = torch.sqrt(variance)  # ORIGIN
        return -((reward - mean) / scale * chosen(net(ids), ids).sum(-1)).mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log1p", "backward", step=1, also=("div-by-zero",), ops=("log",))
def odds_of_a_certain_token(fixed):
    net = policy(9)

    def loss(i):
        ids = prompt(i)
        logits = net(ids) + (60 * nn.functional.one_hot(ids, 7) if i == 1 else 0.0)
        log = chosen(logits, ids).mean(-1)
        if fixed:
            log = log.clamp(max=-1e-4)
        odds = log - torch.log1p(-torch.exp(log))  # ORIGIN
        return -nn.functional.logsigmoid(odds[:3] - 0.5).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=3)
def greedy_temperature(fixed):
    net = policy(10)

    def loss(i):
        ids = prompt(i)
        temperature = max(1.0 - i / 3, 0.1 if fixed else 0.0)
        logits = net(ids) / temperature  # ORIGIN
        return -chosen(logits, ids).mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "exp", step=0, also=("dtype-underflow",), ops=("mul", "erfc"))
def acquisition_far_from_the_best(fixed):
    torch.manual_seed(11)
    candidates = nn.Parameter(torch.rand(5, 2).double())
    best = torch.tensor(3.0 if fixed else 400.0, dtype=torch.float64)

    def loss(i):
        mean = (candidates * 6).sin().sum(-1)
        z = (mean - best) / 0.5
        density = torch.exp(-0.5 * z.square())  # ORIGIN
        return -(density * 0.4).sum()

    return None, train([candidates], loss)


@fault(
    "dead-gradient",
    "clamp",
    step=0,
    phase="backward",
    ops=("mul", "where", "ge", "clamp_backward", "logical_and", "le"),
)
def reward_head_behind_a_clamp(fixed):
    torch.manual_seed(12)
    net = nn.Linear(4, 1)
    with torch.no_grad():
        net.bias.fill_(0.5 if fixed else 30.0)
    x = torch.randn(16, 4)

    def loss(i):
        score = net(x).clamp(-5, 5)  # ORIGIN
        return (score - 1).square().mean()

    return net, train(net.parameters(), loss)


@healthy("ratios at which the clipped objective has no gradient for most tokens")
def clipped_objective(fixed=False):
    net, frozen = policy(13), policy(14)

    def loss(i):
        ids = prompt(i, 12)
        ratio = torch.exp(chosen(net(ids), ids) - chosen(frozen(ids), ids).detach())
        gain = torch.randn(12, 1, generator=torch.Generator().manual_seed(i))
        return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()

    return net, train(net.parameters(), loss)


@healthy("a vocabulary filter of -inf whose tokens are never drawn")
def nucleus_filter(fixed=False):
    net = policy(15)

    def loss(i):
        ids = prompt(i)
        logits = net(ids)
        top = logits.topk(4, -1)
        kept = torch.full_like(logits, -torch.inf).scatter(-1, top.indices, top.values)
        target = top.indices[..., i % 4]
        return nn.functional.cross_entropy(kept.flatten(0, 1), target.flatten())

    return net, train(net.parameters(), loss)


@healthy("a frozen reference model whose parameters have no gradient")
def frozen_reference(fixed=False):
    net, frozen = policy(16), policy(17).requires_grad_(False)

    def loss(i):
        ids = prompt(i)
        return nn.functional.kl_div(
            net(ids).log_softmax(-1), frozen(ids).log_softmax(-1), log_target=True, reduction="batchmean"
        )

    return nn.ModuleList([net, frozen]), train(net.parameters(), loss)
