"""Programs that look suspicious and are not."""

import math

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def model_steps(net, loss, lr=1e-2, optimizer=torch.optim.SGD, **more):
    opt = optimizer([p for p in net.parameters() if p.requires_grad], lr=lr, **more)

    def step(i):
        opt.zero_grad()
        value = loss(i)
        value.backward()
        opt.step()
        return value

    return net, step


@healthy("the gate of a residual branch begins at zero")
def rezero_branch(fixed=False):
    torch.manual_seed(0)
    net = nn.ModuleDict({"branch": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    net.alpha = nn.Parameter(torch.zeros(1))
    x = torch.randn(8, 4)
    return model_steps(
        net, lambda i: net["head"](x + net.alpha * net["branch"](x).tanh()).square().mean()
    )


@healthy("a convolution of a control branch begins at zero, and so does its bias", steps=3)
def zero_convolution(fixed=False):
    torch.manual_seed(1)
    net = nn.ModuleDict(
        {"control": nn.Conv1d(2, 3, 3, padding=1), "zero": nn.Conv1d(3, 3, 1), "main": nn.Conv1d(2, 3, 3, padding=1)}
    )
    nn.init.zeros_(net["zero"].weight)
    nn.init.zeros_(net["zero"].bias)
    x = torch.randn(2, 2, 9)

    def loss(i):
        return (net["main"](x) + net["zero"](net["control"](x))).square().mean()

    return model_steps(net, loss)


@healthy("an adapter whose second factor is zero, trained for two steps only", steps=2)
def adapter_of_two_steps(fixed=False):
    torch.manual_seed(2)
    net = nn.Linear(6, 6)
    net.requires_grad_(False)
    net.a, net.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    return model_steps(net, lambda i: (net(x) + x @ net.a.T @ net.b.T - y).square().mean(), 1e-3)


@healthy("adapters under accumulation: the first gradients of the other factor are zero", steps=4)
def adapter_under_accumulation(fixed=False):
    torch.manual_seed(3)
    net = nn.Linear(6, 6)
    net.requires_grad_(False)
    net.a, net.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    opt = torch.optim.AdamW([net.a, net.b], lr=1e-3)

    def step(i):
        loss = (net(x) + x @ net.a.T @ net.b.T - y).square().mean() / 4
        loss.backward()
        if i % 4 == 3:
            opt.step()
            opt.zero_grad()
        return loss

    return net, step


@healthy("a warm-up begins at a rate of zero, and the zero-initialised factor with it", steps=4)
def adapter_under_warmup(fixed=False):
    torch.manual_seed(4)
    net = nn.Linear(6, 6)
    net.requires_grad_(False)
    net.a, net.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    opt = torch.optim.AdamW([net.a, net.b], lr=1e-3)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: k / 100)

    def step(i):
        opt.zero_grad()
        loss = (net(x) + x @ net.a.T @ net.b.T - y).square().mean()
        loss.backward()
        opt.step()
        plan.step()
        return loss

    return net, step


@healthy("one of four experts gets no token")
def expert_without_tokens(fixed=False):
    torch.manual_seed(5)
    net = nn.ModuleDict({"router": nn.Linear(4, 4), **{f"e{k}": nn.Linear(4, 4) for k in range(4)}})
    with torch.no_grad():
        net["router"].bias[3] = -50.0
    x = torch.randn(16, 4)

    def loss(i):
        gate = torch.softmax(net["router"](x), -1)
        best, where = gate.max(-1)
        out = torch.zeros(16, 4)
        for k in range(4):
            mine = where == k
            out[mine] = best[mine, None] * net[f"e{k}"](x[mine])
        return (out - x).square().mean()

    return model_steps(net, loss)


@healthy("experts are computed for all tokens and weighted by a gate that is exactly zero for some")
def dense_experts_with_a_sparse_gate(fixed=False):
    torch.manual_seed(6)
    net = nn.ModuleDict({"router": nn.Linear(4, 4), **{f"e{k}": nn.Linear(4, 4) for k in range(4)}})
    with torch.no_grad():
        net["router"].bias[3] = -50.0
    x = torch.randn(16, 4)

    def loss(i):
        logits = net["router"](x)
        top = logits.topk(2, -1)
        kept = torch.full_like(logits, -torch.inf).scatter(1, top.indices, top.values)
        gate = torch.softmax(kept, -1)
        return (sum(gate[:, k : k + 1] * net[f"e{k}"](x) for k in range(4)) - x).square().mean()

    return model_steps(net, loss)


@healthy("rows of an embedding that no batch names have no gradient")
def unused_rows(fixed=False):
    torch.manual_seed(7)
    net = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(12, 1))
    gen = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 8, (6, 3), generator=gen)
    return model_steps(net, lambda i: net(ids).square().mean(), optimizer=torch.optim.Adam)


@healthy("a sparse gradient of an embedding of which most rows are unused")
def sparse_embedding(fixed=False):
    torch.manual_seed(8)
    table = nn.Embedding(40, 4, sparse=True)
    ids = torch.tensor([[1, 2], [2, 3]])
    return model_steps(table, lambda i: (table(ids).sum(1) - 1).square().mean(), optimizer=torch.optim.SparseAdam)


@healthy("a batch of padding alone: its loss is a sum of nothing, and zero")
def batch_of_padding(fixed=False):
    torch.manual_seed(9)
    net = nn.Sequential(nn.Embedding(10, 6, padding_idx=0), nn.Linear(6, 10))
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        ids = torch.randint(1, 10, (4, 5), generator=gen)
        if i in (2, 3):
            ids[:] = 0
        logits = net(ids)
        keep = (ids != 0).float()
        each = F.cross_entropy(logits.view(-1, 10), ids.view(-1), reduction="none")
        return (each * keep.view(-1)).sum() / keep.sum().clamp_min(1)

    return model_steps(net, loss)


@healthy("the loss reaches exactly zero, and every gradient with it", steps=12)
def converged_hinge(fixed=False):
    torch.manual_seed(10)
    net = nn.Linear(2, 1)
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    y = torch.tensor([1.0, -1.0])
    return model_steps(net, lambda i: F.relu(1 - y * net(x)[:, 0]).mean(), 0.5)


@healthy("the watch begins when the problem is already solved")
def solved_before_the_watch(fixed=False):
    net = nn.Linear(2, 1, bias=False)
    nn.init.constant_(net.weight, 1.0)
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    return model_steps(net, lambda i: (net(x)[:, 0] - x.sum(1)).square().mean())


@healthy("the triplets of these batches are all easy", steps=4)
def easy_triplets(fixed=False):
    torch.manual_seed(11)
    net = nn.Linear(3, 4)
    a = torch.tensor([[5.0, 0, 0], [0, 5.0, 0]])
    n = a.flip(0)
    return model_steps(net, lambda i: F.triplet_margin_loss(net(a), net(a + 0.01), net(n), margin=0.1))


@healthy("the critic is frozen while the generator moves, and the other way round")
def adversaries(fixed=False):
    torch.manual_seed(12)
    g, d = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(2)

    def step(i):
        real, z = torch.randn(8, 2, generator=gen), torch.randn(8, 2, generator=gen)
        od.zero_grad()
        (F.softplus(-d(real)).mean() + F.softplus(d(g(z).detach())).mean()).backward()
        od.step()
        for p in d.parameters():
            p.requires_grad_(False)
        og.zero_grad()
        loss = F.softplus(-d(g(z))).mean()
        loss.backward()
        og.step()
        for p in d.parameters():
            p.requires_grad_(True)
        return loss

    return nn.ModuleList([g, d]), step


@healthy("the discriminator wins: its loss and the gradients of both are tiny, none is zero for good")
def saturated_discriminator(fixed=False):
    torch.manual_seed(13)
    d = nn.Linear(2, 1)
    with torch.no_grad():
        d.weight.fill_(8.0)
    real, fake = torch.ones(4, 2), -torch.ones(4, 2)
    return model_steps(d, lambda i: F.softplus(-d(real)).mean() + F.softplus(d(fake)).mean())


@healthy("targets come from a detached copy that is averaged")
def detached_teacher(fixed=False):
    torch.manual_seed(14)
    net, teacher = nn.Linear(3, 3), nn.Linear(3, 3)
    teacher.load_state_dict(net.state_dict())
    teacher.requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    gen = torch.Generator().manual_seed(3)

    def step(i):
        x = torch.randn(6, 3, generator=gen)
        opt.zero_grad()
        with torch.no_grad():
            y = teacher(x)
        loss = 2 - 2 * F.cosine_similarity(net(x + 0.1), y).mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 0.01)
        return loss

    return nn.ModuleList([net, teacher]), step


@healthy("the first layers are frozen, and clipping sees no gradient of theirs")
def frozen_layers(fixed=False):
    torch.manual_seed(15)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    x = torch.randn(6, 4)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), torch.tensor([0, 1, 0, 1, 0, 1]))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step


@healthy("gradients of 1e-30 that Adam brings back to size")
def tiny_gradients(fixed=False):
    torch.manual_seed(16)
    net = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    return model_steps(net, lambda i: 1e-12 * net(x).square().mean(), 1e-3, torch.optim.Adam, eps=1e-30)


@healthy("the best loss of early stopping begins at infinity")
def early_stopping(fixed=False):
    torch.manual_seed(17)
    net = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    kept = {"best": torch.tensor(torch.inf), "bad": 0}
    opt = torch.optim.SGD(net.parameters(), 0.05)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        opt.step()
        better = loss.detach() < kept["best"]
        kept["best"] = torch.minimum(kept["best"], loss.detach())
        kept["bad"] = 0 if better else kept["bad"] + 1
        return loss

    return net, step


@healthy("a scaler skips its first steps while the scale comes down", steps=8)
def scaler_that_calibrates(fixed=False):
    torch.manual_seed(18)
    net = nn.Linear(4, 1)
    x = torch.randn(8, 4) * 5
    opt = torch.optim.SGD(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@healthy("a rectified layer with some units that never fire")
def dead_units(fixed=False):
    torch.manual_seed(19)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        net[0].bias[:5] = -30.0
    x = torch.randn(8, 4)
    return model_steps(net, lambda i: (net(x) - 1).square().mean())


@healthy("attention over padded keys with -inf, no row empty")
def padded_keys(fixed=False):
    torch.manual_seed(20)
    net = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    pad = torch.tensor([[False] * 5, [False, False, True, True, True]])
    return model_steps(net, lambda i: net(x, x, x, key_padding_mask=pad)[0].square().mean())


@healthy("queries of padding see nothing; the rows of NaN are cut out before the loss", steps=3)
def rows_without_keys_cut_out(fixed=False):
    torch.manual_seed(21)
    q, v = nn.Linear(4, 4), nn.Linear(4, 4)
    x = torch.randn(5, 4)
    keep = torch.tensor([True, True, True, False, False])

    def loss(i):
        score = (q(x) @ x.T).masked_fill(~(keep[:, None] & keep), -torch.inf)
        weight = torch.softmax(score, -1).masked_fill(~keep[:, None], 0.0)
        return (weight @ v(x))[keep].square().mean()

    return model_steps(nn.ModuleList([q, v]), loss)


@healthy("a shortest path in which missing edges are infinite")
def shortest_paths(fixed=False):
    torch.manual_seed(22)
    cost = nn.Parameter(torch.rand(5, 5) + 0.5)
    absent = torch.eye(5, dtype=torch.bool)
    absent[0, 4] = absent[0, 3] = True

    def loss(i):
        edge = cost.masked_fill(absent, torch.inf)
        best = torch.full((5,), torch.inf)
        best[0] = 0.0
        for _ in range(4):
            best = torch.minimum(best, (best[:, None] + edge).amin(0))
        return best[4]

    return None, train([cost], loss)


@healthy("a forward pass of a hidden Markov model whose forbidden moves are -inf")
def forbidden_moves(fixed=False):
    torch.manual_seed(23)
    emit = nn.Parameter(torch.randn(3, 4))
    move = torch.log(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]))
    seen = torch.tensor([0, 1, 2, 3, 3])

    def loss(i):
        log_emit = F.log_softmax(emit, -1)
        level = torch.log(torch.tensor([0.6, 0.2, 0.2]))
        level = level + log_emit[:, 0]
        for t in seen[1:]:
            level = torch.logsumexp(level[:, None] + move, 0) + log_emit[:, t]
        return -torch.logsumexp(level[2:], 0).sum()

    return None, train([emit], loss)


@healthy("log of zero in a target distribution, through xlogy")
def one_hot_divergence(fixed=False):
    torch.manual_seed(24)
    net = nn.Linear(3, 4)
    x = torch.randn(4, 3)
    y = torch.eye(4)
    return model_steps(net, lambda i: F.kl_div(F.log_softmax(net(x), -1), y, reduction="batchmean"))


@healthy("missing targets are NaN and taken out before the loss")
def missing_targets(fixed=False):
    torch.manual_seed(25)
    net = nn.Linear(3, 1)
    x = torch.randn(6, 3)
    y = torch.tensor([0.1, math.nan, 0.3, math.nan, 0.2, 0.0])
    keep = ~torch.isnan(y)
    return model_steps(net, lambda i: (net(x)[keep, 0] - y[keep]).square().mean())


@healthy("missing values of the input are replaced before they are used")
def missing_inputs(fixed=False):
    torch.manual_seed(26)
    net = nn.Linear(3, 1)
    x = torch.randn(6, 3)
    x[1, 2] = x[4, 0] = math.nan

    def loss(i):
        gap = torch.isnan(x)
        middle = torch.nanmean(x, 0)
        return net(torch.where(gap, middle, x)).square().mean()

    return model_steps(net, loss)


@healthy("gradient penalty of a second derivative, not at zero")
def gradient_penalty(fixed=False):
    torch.manual_seed(27)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(i):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(i), requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    return model_steps(net, loss)


@healthy("a bias before a softmax over its own dimension gets a gradient that is only rounding")
def shift_before_a_softmax(fixed=False):
    torch.manual_seed(28)
    net = nn.Linear(4, 5)
    net.shift = nn.Parameter(torch.zeros(1))
    x = torch.randn(6, 4)
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    return model_steps(net, lambda i: F.cross_entropy(net(x) + net.shift, y))


@healthy("a hard gate by the estimator that passes straight through")
def straight_through_gate(fixed=False):
    torch.manual_seed(29)
    net = nn.Linear(4, 4)
    x = torch.randn(6, 4)

    def loss(i):
        soft = torch.sigmoid(net(x))
        hard = (soft > 0.5).float()
        return ((hard - soft).detach() + soft - 0.3).square().mean()

    return model_steps(net, loss)


@healthy("a codebook of which few entries are used")
def codebook(fixed=False):
    torch.manual_seed(30)
    net = nn.ModuleDict({"enc": nn.Linear(3, 2), "dec": nn.Linear(2, 3)})
    net.codes = nn.Parameter(torch.randn(32, 2))
    x = torch.randn(5, 3)

    def loss(i):
        z = net["enc"](x)
        near = torch.cdist(z.detach(), net.codes.detach()).argmin(1)
        q = net.codes[near]
        through = z + (q - z).detach()
        return (net["dec"](through) - x).square().mean() + (q - z.detach()).square().mean() + 0.25 * (z - q.detach()).square().mean()

    return model_steps(net, loss)


@healthy("a spare head takes part in the loss with weight zero in the first epoch", steps=4)
def head_that_waits(fixed=False):
    torch.manual_seed(31)
    net = nn.ModuleDict({"body": nn.Linear(4, 4), "main": nn.Linear(4, 1), "spare": nn.Linear(4, 1)})
    x = torch.randn(5, 4)

    def loss(i):
        h = net["body"](x)
        weight = 0.0 if i < 4 else 1.0
        return net["main"](h).square().mean() + weight * net["spare"](h).square().mean()

    return model_steps(net, loss)


@healthy("annealing of the divergence begins at a weight of zero")
def annealed_divergence(fixed=False):
    torch.manual_seed(32)
    net = nn.ModuleDict({"mean": nn.Linear(3, 2), "logvar": nn.Linear(3, 2), "dec": nn.Linear(2, 3)})
    x = torch.randn(6, 3)
    gen = torch.Generator().manual_seed(4)

    def loss(i):
        mean, logvar = net["mean"](x), net["logvar"](x)
        z = mean + torch.exp(logvar / 2) * torch.randn(6, 2, generator=gen)
        kl = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(-1).mean()
        return (net["dec"](z) - x).square().mean() + i / 100 * kl

    return model_steps(net, loss)


@healthy("weights of which half are pruned by a mask")
def pruned(fixed=False):
    torch.manual_seed(33)
    net = nn.Linear(6, 3)
    mask = (torch.rand(3, 6) > 0.5).float()
    x = torch.randn(5, 6)
    return model_steps(net, lambda i: F.linear(x, net.weight * mask, net.bias).square().mean())


@healthy("ratios of clipped policies: every ratio of this batch is beyond its bound for once", steps=4)
def clipped_for_once(fixed=False):
    torch.manual_seed(34)
    net = nn.Linear(3, 4)
    x = torch.randn(6, 3)

    def loss(i):
        logs = F.log_softmax(net(x), -1)[:, 0]
        old = logs.detach() - (1.0 if i == 2 else 0.0)
        ratio = torch.exp(logs - old)
        return -torch.minimum(ratio, ratio.clamp(0.8, 1.2)).mean()

    return model_steps(net, loss)


@healthy("log-determinant of a triangular flow with large negative values")
def small_determinant(fixed=False):
    torch.manual_seed(35)
    diagonal = nn.Parameter(torch.full((6,), -30.0))
    x = torch.randn(5, 6)
    return None, train([diagonal], lambda i: (x * torch.exp(diagonal)).square().mean() - 1e-3 * diagonal.sum())


@healthy("quantiles bounded by infinite edges in torch.bucketize and a sentinel row of inf")
def sentinel_edges(fixed=False):
    torch.manual_seed(36)
    net = nn.Embedding(4, 1)
    edge = torch.tensor([-torch.inf, -0.5, 0.5, torch.inf])
    x = torch.randn(9)

    def loss(i):
        bin = torch.bucketize(x, edge).clamp(0, 3)
        return (net(bin)[:, 0] - x).square().mean()

    return model_steps(net, loss)


@healthy("log-probabilities of impossible actions are -inf, and only chosen ones enter the loss")
def impossible_actions(fixed=False):
    torch.manual_seed(37)
    net = nn.Linear(3, 5)
    x = torch.randn(4, 3)
    legal = torch.tensor([[1, 1, 0, 0, 1]] * 4).bool()

    def loss(i):
        logs = F.log_softmax(net(x).masked_fill(~legal, -torch.inf), -1)
        return -logs.gather(1, torch.tensor([[0], [1], [4], [0]])).mean()

    return model_steps(net, loss)


@healthy("a distance to itself, taken out of the hinge by an index")
def pairwise_without_the_diagonal(fixed=False):
    torch.manual_seed(38)
    z = nn.Parameter(torch.randn(5, 2))
    i, j = torch.triu_indices(5, 5, 1)
    return None, train([z], lambda k: F.relu(2 - (z[i] - z[j]).norm(dim=-1)).mean())


@healthy("weight decay only: the loss of two steps ignores a head that is not chosen", steps=5)
def tasks_by_turns(fixed=False):
    torch.manual_seed(39)
    net = nn.ModuleDict({"body": nn.Linear(3, 4), "a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})
    x = torch.randn(5, 3)
    return model_steps(net, lambda i: net["ab"[i % 2]](net["body"](x)).square().mean())


@healthy("a float16 shadow copy in which small weights are zero is never trained")
def half_copy_for_inference(fixed=False):
    torch.manual_seed(40)
    net = nn.Linear(3, 1)
    x = torch.randn(5, 3)
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            (net.weight * 1e-6).half() @ x.half().T
        return loss

    return net, step


@healthy("counts in bfloat16 below 256, added one by one", steps=6)
def small_counts_in_bfloat16(fixed=False):
    torch.manual_seed(41)
    net = nn.Linear(3, 3)
    seen = torch.zeros(3, dtype=torch.bfloat16)
    x = torch.randn(5, 3)

    def loss(i):
        out = net(x)
        seen[out.detach().argmax(-1)[0]] += 1
        return out.square().mean()

    return model_steps(net, loss)


@healthy("a counter that saturates on purpose under a mask: nothing is added to the others")
def masked_counts(fixed=False):
    torch.manual_seed(42)
    net = nn.Linear(3, 3)
    seen = torch.full((3,), 1000.0, dtype=torch.bfloat16)
    x = torch.randn(5, 3)

    def loss(i):
        out = net(x)
        seen[:] += torch.zeros(3, dtype=torch.bfloat16)
        return out.square().mean()

    return model_steps(net, loss)
