"""Healthy training scripts once more: what looks like a fault and is none."""

import math

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(a, b, c):
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c))


@healthy("the mean over a window that is empty at first is asked for only when it is not", steps=6)
def window_that_is_empty_at_first(fixed):
    torch.manual_seed(0)
    net, seen = mlp(4, 8, 1), []
    x = rows(1, 16, 4)

    def loss(i):
        base = torch.stack(seen).mean() if seen else torch.zeros(())
        out = net(x)[:, 0]
        seen.append(out.detach().mean())
        return F.mse_loss(out, x[:, 0] + 0 * base)

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("the logarithm of zero stands where the mask has already put a one")
def logarithm_behind_a_double_where(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3), rows(2, 10, 4)

    def loss(i):
        p = torch.relu(net(x))
        safe = torch.where(p > 0, p, torch.ones_like(p))
        return torch.where(p > 0, p * safe.log(), torch.zeros_like(p)).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("pairs without distance are counted, not differentiated")
def neighbours_within_a_radius(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), rows(3, 9, 3)

    def loss(i):
        z = net(x)
        with torch.no_grad():
            weight = torch.exp(-torch.cdist(z, z)) / torch.cdist(z, z)
            weight[weight.isinf()] = 0
        return (weight[..., None] * (z[:, None] - z[None]).square()).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("gradients are clipped each step by design", steps=8)
def recurrent_net_that_is_always_clipped(fixed):
    torch.manual_seed(0)
    rnn, head = nn.RNN(4, 12, batch_first=True), nn.Linear(12, 1)
    params = [*rnn.parameters(), *head.parameters()]
    opt = torch.optim.SGD(params, lr=0.1)
    x = rows(4, 8, 20, 4)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(head(rnn(x)[0][:, -1])[:, 0], 10 * x.mean((1, 2)))
        loss.backward()
        nn.utils.clip_grad_norm_(params, 0.01)
        opt.step()
        return loss

    return nn.ModuleList([rnn, head]), step


@healthy("early layers of a fine-tuned net have a tiny rate", steps=8)
def rates_that_differ_by_layers(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 2)
    opt = torch.optim.AdamW([{"params": net[0].parameters(), "lr": 1e-5}, {"params": net[2].parameters(), "lr": 1e-2}])
    x, y = rows(5, 24, 6), torch.arange(24) % 2

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("the log-softmax of a forbidden class is -inf and is never picked")
def forbidden_classes_that_are_never_picked(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(5, 4), rows(6, 12, 5)
    mask = torch.tensor([0.0, 0.0, -math.inf, 0.0])

    def loss(i):
        logp = (net(x) + mask).log_softmax(-1)
        return -logp[torch.arange(12), torch.tensor([0, 1, 3]).repeat(4)].mean()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("float64 throughout, values near its least", steps=5)
def tiny_numbers_in_double(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(4, 1).double(), rows(7, 12, 4).double()

    def loss(i):
        likelihood = torch.exp(-50 - net(x).square()[:, 0])
        return -torch.log(likelihood).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("dropout drops nearly all in a step", steps=8)
def heavy_dropout(fixed):
    torch.manual_seed(0)
    a, b = nn.Linear(6, 16), nn.Linear(16, 2)
    x, y = rows(8, 8, 6), torch.arange(8) % 2

    def loss(i):
        return F.cross_entropy(b(F.dropout(torch.relu(a(x)), 0.9)), y)

    return nn.ModuleList([a, b]), train([*a.parameters(), *b.parameters()], loss, lr=0.1)


@healthy("an embedding whose padding row stays zero", steps=6)
def mean_of_words_with_padding(fixed):
    torch.manual_seed(0)
    emb, head = nn.Embedding(20, 6, padding_idx=0), nn.Linear(6, 2)
    ids = torch.randint(0, 20, (8, 5), generator=torch.Generator().manual_seed(9))
    ids[3] = 0

    def loss(i):
        count = (ids > 0).sum(1, keepdim=True).clamp(min=1)
        return F.cross_entropy(head(emb(ids).sum(1) / count), torch.arange(8) % 2)

    return nn.ModuleList([emb, head]), train([*emb.parameters(), *head.parameters()], loss, lr=0.1)


@healthy("a loss that is negative and falls", steps=8)
def likelihood_of_a_narrow_density(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), rows(10, 20, 3)

    def loss(i):
        mean, log_scale = net(x).unbind(1)
        dist = torch.distributions.Normal(mean, F.softplus(log_scale) + 1e-3)
        return -dist.log_prob(0.01 * x[:, 0]).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("two optimizers share one backward", steps=6)
def two_optimizers_one_backward(fixed):
    torch.manual_seed(0)
    net = mlp(5, 10, 1)
    a, b = torch.optim.SGD(net[0].parameters(), lr=0.1), torch.optim.Adam(net[2].parameters(), lr=1e-2)
    x = rows(11, 16, 5)

    def step(i):
        a.zero_grad()
        b.zero_grad()
        loss = F.mse_loss(net(x)[:, 0], x.sum(1))
        loss.backward()
        a.step()
        b.step()
        return loss

    return net, step


@healthy("hard samples alone are learned: the others have a weight of zero", steps=6)
def online_hard_mining(fixed):
    torch.manual_seed(0)
    net, x = mlp(5, 10, 3), rows(12, 20, 5)
    y = torch.arange(20) % 3

    def loss(i):
        each = F.cross_entropy(net(x), y, reduction="none")
        return each.topk(4).values.mean()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("the generator learns every third step", steps=9)
def generator_every_third_step(fixed):
    torch.manual_seed(0)
    gen, critic = mlp(3, 8, 2), mlp(2, 8, 1)
    og, oc = torch.optim.Adam(gen.parameters(), lr=1e-3), torch.optim.Adam(critic.parameters(), lr=1e-3)
    real, noise = rows(13, 16, 2), torch.Generator().manual_seed(14)

    def step(i):
        z = torch.randn(16, 3, generator=noise)
        oc.zero_grad()
        loss = F.softplus(critic(gen(z).detach())).mean() + F.softplus(-critic(real)).mean()
        loss.backward()
        oc.step()
        if i % 3 == 2:
            og.zero_grad()
            F.softplus(-critic(gen(z))).mean().backward()
            og.step()
        return loss

    return nn.ModuleList([gen, critic]), step


@healthy("a frozen half of the net is let go after some steps", steps=9)
def gradual_unfreezing(fixed):
    torch.manual_seed(0)
    net = mlp(5, 10, 2)
    net[0].requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = rows(15, 16, 5), torch.arange(16) % 2

    def step(i):
        if i == 4:
            net[0].requires_grad_(True)
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("an output in bfloat16 is rounded, the loss is in float32", steps=6)
def autocast_to_bfloat16(fixed):
    torch.manual_seed(0)
    net, x = mlp(6, 16, 3), rows(16, 24, 6)
    y = torch.arange(24) % 3

    def loss(i):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        return F.cross_entropy(out.float(), y)

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("the greatest so far begins at minus infinity")
def running_maximum_of_the_logits(fixed):
    torch.manual_seed(0)
    q, k = nn.Linear(5, 5), nn.Linear(5, 5)
    x = rows(17, 12, 5)

    def loss(i):
        score = q(x) @ k(x).T
        top, total = torch.full((12,), -math.inf), torch.zeros(12)
        for part in score.split(4, 1):
            new = torch.maximum(top, part.amax(1))
            total = total * torch.exp(top - new) + torch.exp(part - new[:, None]).sum(1)
            top = new
        return (top + total.log()).mean() - score.diagonal().mean()

    return nn.ModuleList([q, k]), train([*q.parameters(), *k.parameters()], loss, lr=0.05)


@healthy("a unit vector with the library's own bound", steps=5)
def normalised_rows_with_a_zero_among_them(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3, bias=False), rows(18, 10, 4)
    x[2] = 0

    def loss(i):
        z = F.normalize(net(x), dim=1)
        return (z @ z.T).square().mean() + z.sum(1).mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("weights are pruned: a mask keeps most of them at zero", steps=6)
def pruned_weights(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(10, 2), rows(19, 20, 10)
    mask = (torch.rand(2, 10, generator=torch.Generator().manual_seed(20)) < 0.2).float()
    return net, train(net.parameters(), lambda i: F.cross_entropy(F.linear(x, net.weight * mask, net.bias), torch.arange(20) % 2), lr=0.1)


@healthy("a straight line is found to the last bit, and stays", steps=40)
def problem_that_is_solved_exactly(fixed):
    torch.manual_seed(0)
    net = nn.Linear(1, 1, bias=False)
    x = torch.tensor([[1.0], [2.0]])
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), 0.5 * x), lr=0.2)


@healthy("the hinge of an ensemble: a member that is never wrong rests", steps=8)
def member_that_is_never_wrong(fixed):
    torch.manual_seed(0)
    a, b = nn.Linear(3, 1), nn.Linear(3, 1)
    x = rows(21, 16, 3)
    y = torch.sign(x[:, 0])
    with torch.no_grad():
        b.weight.copy_(torch.tensor([[60.0, 0, 0]]))
        b.bias.zero_()
    x[:, 0] += 0.1 * y

    def loss(i):
        return F.relu(1 - y * a(x)[:, 0]).mean() + F.relu(1 - y * b(x)[:, 0]).mean()

    return nn.ModuleList([a, b]), train([*a.parameters(), *b.parameters()], loss, lr=0.1)


@healthy("a running sum in float32 of many steps", steps=10)
def counters_in_float32(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU(), nn.Linear(6, 1))
    x = rows(22, 10, 16, 4)
    return net, train(net.parameters(), lambda i: net(x[i]).square().mean(), lr=0.05)


@healthy("infinite bounds of a box that is not bounded")
def clamp_with_open_bounds(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3), rows(23, 12, 4)
    low, high = torch.tensor([-math.inf, 0.0, -1.0]), torch.tensor([math.inf, math.inf, 1.0])
    return net, train(net.parameters(), lambda i: (torch.maximum(torch.minimum(net(x), high), low) - 0.3).square().mean(), lr=0.05)


@healthy("complex spectra, with a phase only where there is power")
def spectral_loss_with_a_floor(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(16, 16), rows(24, 6, 16)

    def loss(i):
        s = torch.fft.rfft(net(x))
        return (torch.log(s.abs().square() + 1e-4) - 1).square().mean()

    return net, train(net.parameters(), loss, lr=0.01)


@healthy("the divergence of equal distributions is zero, and so is its gradient", steps=6)
def student_that_begins_as_its_teacher(fixed):
    torch.manual_seed(0)
    student, x = nn.Linear(5, 3), rows(25, 12, 5)
    teacher = nn.Linear(5, 3).requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    gen = torch.Generator().manual_seed(26)

    def loss(i):
        noisy = x + (0.3 * torch.randn(12, 5, generator=gen) if i else 0)
        return F.kl_div(student(noisy).log_softmax(-1), teacher(x).softmax(-1), reduction="batchmean")

    return student, train(student.parameters(), loss, lr=0.1)


@healthy("unscaled by hand, skipped by hand, the scale halved by hand", steps=8)
def loss_scale_by_hand(fixed):
    torch.manual_seed(0)
    net = mlp(6, 12, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scale = 2.0**20
    x, y = 20 * rows(27, 24, 6), torch.arange(24) % 2

    def step(i):
        nonlocal scale
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        (loss * scale).backward()
        if all(bool(p.grad.isfinite().all()) for p in net.parameters()):
            for p in net.parameters():
                p.grad.div_(scale)
            opt.step()
        else:
            scale /= 16
        return loss

    return net, step


@healthy("the last layer begins at zero", steps=6)
def head_that_begins_at_zero(fixed):
    torch.manual_seed(0)
    net, x = mlp(5, 10, 3), rows(28, 18, 5)
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), torch.arange(18) % 3), lr=0.1)


@healthy("a layer sleeps for some batches and wakes", steps=12)
def gate_that_sleeps_for_some_batches(fixed):
    torch.manual_seed(0)
    a, b = nn.Linear(4, 6), nn.Linear(4, 1)
    x = rows(29, 12, 10, 4).abs()

    def loss(i):
        sign = -1.0 if 3 <= i < 10 else 1.0
        side = torch.relu(sign * x[i].sum(1, keepdim=True)) * a(x[i])
        return (b(x[i])[:, 0] + side.mean(1) - x[i][:, 0]).square().mean()

    return nn.ModuleList([a, b]), train([*a.parameters(), *b.parameters()], loss, lr=0.01)


@healthy("rows of missing data are filled before they are used")
def gaps_filled_before_use(fixed):
    torch.manual_seed(0)
    net, x = mlp(5, 8, 1), rows(30, 20, 5)
    y = x.sum(1)
    x[torch.rand(20, 5, generator=torch.Generator().manual_seed(31)) < 0.2] = float("nan")
    known = ~x.isnan()
    x = torch.nan_to_num(x, nan=0.0)
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x * known)[:, 0], y), lr=0.05)


@healthy("momentum in half precision beside weights in float32", steps=8)
def momentum_in_bfloat16(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(6, 2), rows(32, 24, 6)
    kept = [torch.zeros_like(p, dtype=torch.bfloat16) for p in net.parameters()]

    def step(i):
        net.zero_grad()
        loss = F.cross_entropy(net(x), torch.arange(24) % 2)
        loss.backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), kept, strict=True):
                m.mul_(0.9).add_(p.grad.bfloat16())
                p.sub_(0.05 * m.float())
        return loss

    return net, step


@healthy("a mesh with equal points, whose edges are left out")
def edges_of_no_length_left_out(fixed):
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), rows(33, 8, 3)
    x[5] = x[4]
    i, j = torch.triu_indices(8, 8, 1)
    keep = ~((i == 4) & (j == 5))
    i, j = i[keep], j[keep]
    return net, train(net.parameters(), lambda n: ((net(x)[i] - net(x)[j]).norm(dim=1) - 1).square().mean(), lr=0.05)
